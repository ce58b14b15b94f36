"""A case as the report sees it: its records of all processes merged, each implementation once.

Records are merged only when they were measured on the same GPU, of the same node, with the same
settings and the same environment; a ratio therefore never spans two GPUs. A case that several GPUs
of one model measured, such as the repeats of a run on a cluster, is one case for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import BASELINES, BESIDE, Cell, Record, Work, digest
from apexbench.report.names import readable
from apexbench.report.repeats import Estimate, combine, verdict

NOT_COMPARED = ("ceiling", "selfcheck", "compatibility")
"""Components whose cases are no comparison of implementations."""


@dataclass(frozen=True)
class Versus:
    """Speed of an implementation relative to a baseline, with its verdict."""

    baseline: str
    members: tuple[str, ...]
    ratio: Estimate
    margin: float
    verdict: str
    rounds: int
    flags: tuple[str, ...] = ()


@dataclass
class Arm:
    """One implementation of a case over all its processes; times in ns per call."""

    implementation: str
    package: str
    status: str
    description: str
    reason: str | None
    remedy: str | None
    times: dict[str, Estimate] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    versus: dict[tuple[str, str], Versus] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    parity_error: float | None = None
    kernels: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_apex(self) -> bool:
        """Whether this arm needs Apex, of today or of the past."""
        pieces = (self.details.get("norm"), self.details.get("optimizer"))
        return self.package.lower().startswith("apex") or "apex" in pieces


@dataclass
class Case:
    """One case on one machine with all its implementations."""

    component: str
    name: str
    quantity: str
    confidence: float
    config: dict[str, Any]
    work: Work
    arms: list[Arm]
    baselines: dict[str, dict[str, Any]]
    records: list[Record]
    plain: str = ""
    """``name`` without the GPU that is part of it where several measured the case."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the first process."""
        return self.records[0].provenance

    @property
    def processes(self) -> int:
        """How many fresh processes measured it; each has a record for every group of its arms."""
        return len({record.process for record in self.records})

    @property
    def device(self) -> tuple[str, str]:
        """What a comparison may not span: GPU model and node."""
        return identity(self.records[0])

    def arm(self, implementation: str) -> Arm | None:
        """The arm of that name, or None."""
        return next((arm for arm in self.arms if arm.implementation == implementation), None)

    def versus(self, arm: Arm, baseline: str) -> Versus | None:
        """``arm`` against ``baseline`` in the quantity that this case's verdicts use."""
        return arm.versus.get((self.quantity, baseline))

    def time(self, arm: Arm) -> Estimate | None:
        """``arm``'s time in the quantity that this case's verdicts use."""
        return arm.times.get(self.quantity)


def identity(record: Record) -> tuple[str, str]:
    """GPU model (or CPU) and node of a record."""
    place = record.provenance
    return str(place.get("device_name") or place["machine"]), str(place.get("node") or "")


def merge(records: Iterable[Record]) -> list[Case]:
    """Group records into cases, in a stable order: component, then as the indexes name them."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    places: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for record in records:
        model, node = identity(record)
        same = (record.component, record.case, model)
        place = (node, str(record.provenance.get("gpu_uuid") or ""))
        key = (
            *same,
            *place,
            digest({k: v for k, v in record.config.items() if k not in _divides(record)}),
            digest(record.environment),
        )
        groups.setdefault(key, []).append(record)
        if place not in places.setdefault(same, []):
            places[same].append(place)
    return [
        _case(sorted(group, key=lambda record: record.process), _mark(key[3:5], places[key[:3]]))
        for key, group in groups.items()
    ]


def compared(cases: Iterable[Case]) -> list[Case]:
    """The cases that a report counts: those that compare implementations.

    Not the ceilings, which are this machine's, nor what times nothing, nor the self-check.
    """
    return [case for case in cases if case.component not in NOT_COMPARED]


def _divides(record: Record) -> tuple[str, ...]:
    """Keys that tell records of one case apart: process, and the groups of its arms."""
    own = ("group", "recipes") if "group" in record.config else ()
    return ("process", BESIDE, *own)


def _mark(place: tuple[str, str], places: list[tuple[str, str]]) -> str:
    """What tells a case from the same one on another GPU of its model; empty where there is one."""
    if len(places) == 1:
        return ""
    node, uuid = place
    gpu = uuid.removeprefix("GPU-")[:8]
    return " on " + " ".join(filter(None, [node or "an unnamed node", gpu and f"GPU {gpu}"]))


def _case(group: list[Record], mark: str) -> Case:
    first = group[0]
    names = list(dict.fromkeys(cell.implementation for record in group for cell in record.cells))
    return Case(
        component=first.component,
        name=first.case + mark,
        plain=first.case,
        quantity=first.quantity,
        confidence=first.confidence,
        config=first.config,
        work=first.work,
        arms=[_arm(name, group) for name in names],
        baselines={name: _told(first, _of_any_group(name, group)) for name in first.baselines},
        records=group,
    )


def _of_any_group(name: str, group: list[Record]) -> dict[str, Any]:
    """A baseline as the first record has it that measured one of its members."""
    entries = [record.baselines[name] for record in group if name in record.baselines]
    return next((entry for entry in entries if entry["members"]), entries[0])


def _told(record: Record, baseline: dict[str, Any]) -> dict[str, Any]:
    """A baseline with its reason in a reader's words."""
    reason = baseline.get("reason")
    return {**baseline, "reason": readable(record.component, str(reason)) if reason else None}


def _arm(name: str, group: list[Record]) -> Arm:
    cells = [
        (record, cell) for record in group for cell in record.cells if cell.implementation == name
    ]
    good = [(record, cell) for record, cell in cells if cell.status == "ok"]
    shown = good[0][1] if good else cells[0][1]
    arm = Arm(
        implementation=name,
        package=shown.package,
        status=shown.status,
        description=shown.description,
        reason=shown.reason if not good or len(good) == len(cells) else _partly(cells),
        remedy=next((cell.remedy for _, cell in cells if cell.remedy), None),
        kernels=shown.kernels,
        details=shown.details,
        peak_memory_bytes=max((_peak(cell) for _, cell in good), default=0) or None,
        parity_error=_parity_error(cell for _, cell in cells),
    )
    if good:
        _measure(arm, good)
    return arm


def _peak(cell: Cell) -> int:
    """Peak bytes of a cell, with the private pool that a CUDA graph keeps; 0 where not counted."""
    pool = cell.details.get("graph_pool_bytes")
    return (cell.peak_memory_bytes or 0) + (int(pool) if isinstance(pool, int) else 0)


def _partly(cells: list[tuple[Record, Cell]]) -> str:
    record, cell = next((record, cell) for record, cell in cells if cell.status != "ok")
    processes = {record.process for record, _ in cells}
    good = {record.process for record, cell in cells if cell.status == "ok"}
    where = f"process {record.process}"
    if group := record.config.get(BESIDE):  # a baseline is measured in each group of a process
        where += f", beside {', '.join(sorted(set(group['arms']) - set(group['held'])))}"
    of = f"{len(processes)} process{'es' * (len(processes) > 1)}"
    return f"ok in {len(good)} of {of}; {where}: {cell.status}: {cell.reason}"


def _parity_error(cells: Iterable[Cell]) -> float | None:
    errors = [
        check.error
        for cell in cells
        if cell.parity is not None
        for check in cell.parity.checks
        if check.error is not None
    ]
    return max(errors, default=None)


def _measure(arm: Arm, good: list[tuple[Record, Cell]]) -> None:
    # An arm of several groups counts once a process: the first group's samples are its own.
    good = list({record.process: (record, cell) for record, cell in reversed(good)}.values())[::-1]
    confidence = good[0][0].confidence
    for quantity in dict.fromkeys(name for _, cell in good for name in cell.quantities):
        entries = [cell.quantities[quantity] for _, cell in good if quantity in cell.quantities]
        estimates = [Estimate(entry.value, entry.low, entry.high) for entry in entries]
        arm.times[quantity] = combine(estimates, confidence)
        arm.samples[quantity] = sum(len(entry.samples) for entry in entries)
        for baseline in BASELINES:
            found = [
                comparison
                for record, _ in good
                for comparison in record.comparisons
                if comparison.implementation == arm.implementation
                and comparison.baseline == baseline
                and comparison.quantity == quantity
            ]
            if not found:
                continue
            ratio = combine([Estimate(c.ratio, c.low, c.high) for c in found], confidence)
            margin = max(comparison.margin for comparison in found)
            flags = tuple(dict.fromkeys(flag for c in found for flag in c.flags))
            together = "unclear" if BUSY_CPU in flags else verdict(ratio, margin)
            arm.versus[quantity, baseline] = Versus(
                baseline=baseline,
                members=tuple(found[0].members),
                ratio=ratio,
                margin=margin,
                verdict=found[0].verdict if len(found) == 1 else together,
                rounds=sum(comparison.rounds for comparison in found),
                flags=flags,
            )
