"""Two or more runs side by side: verdicts that changed, speed against the first run, what differs.

Times of two runs are not paired: their ratio is that of ``repeats.relative``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.records import BASELINES, canonical
from apexbench.report import evidence as source
from apexbench.report import numbers, vocabulary
from apexbench.report.cases import Arm, Case, Versus, merge
from apexbench.report.evidence import Evidence
from apexbench.report.placement import of_one_model
from apexbench.report.repeats import Estimate, relative, verdict

BETWEEN_RUNS, ONE_PROCESS = 0.01, 0.05
"""Margins of a regression: with an interval between runs on both sides, and without."""
_RANK = {"faster": 2, "same": 1, "slower": 0}
Key = tuple[str, str, str]


@dataclass
class Run:
    """A run folder as one column: its cases by (component, case)."""

    letter: str
    path: Path
    evidence: Evidence
    device: str
    notes: list[str]
    cases: dict[tuple[str, str], Case]

    def lacks(self, component: str) -> bool:
        """Whether a case of ``component`` was to be measured in this run, and its job was lost."""
        return any(entry.component == component for entry in self.evidence.missing)

    def arm(self, key: Key) -> tuple[Case, Arm] | None:
        """The case and arm of (component, case, implementation), or None."""
        case = self.cases.get(key[:2])
        arm = case.arm(key[2]) if case else None
        return (case, arm) if case and arm else None


@dataclass(frozen=True)
class Changed:
    """A verdict that is not the same in all runs; None where a run does not hold it."""

    key: Key
    baseline: str
    versus: list[Versus | None]
    worse: bool


@dataclass(frozen=True)
class Speed:
    """An implementation's speed in a later run relative to the first (above 1 is faster)."""

    key: Key
    run: Run
    times: tuple[Estimate, Estimate]
    ratio: Estimate
    margin: float
    verdict: str
    regression: bool


@dataclass(frozen=True)
class Cells:
    """An implementation whose status is not the same in all runs; None where a run lacks it."""

    key: Key
    statuses: list[str | None]
    lost: bool
    absent: bool
    """Whether a later run of the same device holds nothing of what the first run measured."""


@dataclass
class Comparison:
    """What differs between runs; the first is the one that the others are compared with."""

    runs: list[Run]
    changed: list[Changed]
    speeds: list[Speed]
    cells: list[Cells]
    environment: list[tuple[str, list[str]]]
    verdicts: int

    @property
    def regressions(self) -> int:
        """Verdicts that fell, implementations that are slower, cells that were lost."""
        return (
            sum(entry.worse for entry in self.changed)
            + sum(entry.regression for entry in self.speeds)
            + sum(entry.lost for entry in self.cells)
        )

    @property
    def unjudged(self) -> int:
        """Cells of the first run that a later run of its device does not hold: asked or not."""
        return sum(entry.absent for entry in self.cells)


def compare(folders: Sequence[Path], margin: float | None = None) -> Comparison:
    """Read and compare run folders. Raises UserError for a folder without records or a bad record.

    ``margin`` replaces the margin of a regression in time. Only runs of the same device as the
    first can hold a regression.
    """
    runs = [_run(chr(ord("A") + index), Path(path)) for index, path in enumerate(folders)]
    keys = list(dict.fromkeys(key for run in runs for key in _keys(run)))
    changed, verdicts = _changed(runs, keys)
    return Comparison(
        runs=runs,
        changed=changed,
        speeds=[speed for key in keys for speed in _speeds(runs, key, margin)],
        cells=[cells for key in keys if (cells := _cells(runs, key)) is not None],
        environment=_environment(runs),
        verdicts=verdicts,
    )


def _run(letter: str, path: Path) -> Run:
    evidence, model, notes = of_one_model(source.load(path))
    if not evidence.records:
        raise UserError(f"{path} holds no record: name the folder of a finished run.")
    cases: dict[tuple[str, str], Case] = {}
    for case in merge(evidence.records):
        # A ceiling's work is whatever filled this machine's window: no case of another run's.
        if case.component not in ("selfcheck", "ceiling"):
            cases.setdefault((case.component, case.plain), case)
    return Run(letter, path, evidence, model or "n/a", notes, cases)


def _keys(run: Run) -> Iterator[Key]:
    for component, name in sorted(run.cases, key=lambda entry: vocabulary.order(entry[0])):
        for arm in run.cases[component, name].arms:
            yield component, name, arm.implementation


def _changed(runs: Sequence[Run], keys: Sequence[Key]) -> tuple[list[Changed], int]:
    """The verdicts that differ, worse ones first, and how many at least two runs hold."""
    found, shared = [], 0
    for key in keys:
        for baseline in BASELINES:
            versus = [
                pair[0].versus(pair[1], baseline) if pair else None for pair in _pairs(runs, key)
            ]
            known = [entry for entry in versus if entry is not None]
            shared += len(known) > 1
            if len({entry.verdict for entry in known}) > 1:
                worse = any(_fell(runs, versus, index) for index in range(1, len(runs)))
                found.append(Changed(key, baseline, versus, worse))
    return sorted(found, key=lambda entry: not entry.worse), shared


def _pairs(runs: Sequence[Run], key: Key) -> list[tuple[Case, Arm] | None]:
    return [run.arm(key) for run in runs]


def _fell(runs: Sequence[Run], versus: Sequence[Versus | None], index: int) -> bool:
    """Whether a run of the first run's device has a lower verdict; ``unclear`` has no rank."""
    first, own = versus[0], versus[index]
    if first is None or own is None or runs[0].device != runs[index].device:
        return False
    ranks = _RANK.get(first.verdict), _RANK.get(own.verdict)
    return ranks[0] is not None and ranks[1] is not None and ranks[1] < ranks[0]


def _speeds(runs: Sequence[Run], key: Key, margin: float | None) -> Iterator[Speed]:
    first = runs[0].arm(key)
    before = first[0].time(first[1]) if first else None
    for run in runs[1:]:
        own = run.arm(key)
        if first is None or own is None or first[0].quantity != own[0].quantity:
            continue
        after = own[0].time(own[1])
        if before is None or after is None:
            continue
        ratio = relative(before, after)
        wide = margin or (BETWEEN_RUNS if ratio.between_runs else ONE_PROCESS)
        found = verdict(ratio, wide)
        regression = found == "slower" and run.device == runs[0].device
        yield Speed(key, run, (before, after), ratio, wide, found, regression)


def _cells(runs: Sequence[Run], key: Key) -> Cells | None:
    """An implementation's status in each run, where it is not the same in all of them."""
    statuses = [pair[1].status if pair else None for pair in _pairs(runs, key)]
    if len(set(statuses)) == 1:
        return None
    gone = [
        (run, status)
        for run, status in zip(runs, statuses, strict=True)
        if statuses[0] == "ok" and status != "ok" and run.device == runs[0].device
    ]
    lost = any(status or run.lacks(key[0]) for run, status in gone)
    return Cells(key, statuses, lost, absent=bool(gone) and not lost)


def _environment(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Keys of provenance and configuration whose values are not the same in all runs."""
    tables = [_facts(run.evidence) for run in runs]
    rows = []
    for name in dict.fromkeys(name for table in tables for name in table):
        values = [table.get(name, "n/a") for table in tables]
        if len(set(values)) > 1:
            rows.append((name, values))
    return rows


_FACTS = (
    *("device_name", "gpu_uuid", "node", "driver", "torch", "cuda", "cudnn", "triton", "python"),
    *("apexbench", "source", "runtime", "image", "preset", "seed"),
)


def _facts(evidence: Evidence) -> dict[str, str]:
    facts = {key: _text(evidence.provenance(key)) for key in _FACTS}
    for entry in evidence.provenance("apex"):
        if isinstance(entry, dict):
            facts["apex"] = f"{entry.get('state')} {entry.get('commit') or ''}".strip()
    facts |= {f"config: {key}": value for key, value in _flat(evidence.config) if key != "hash"}
    return facts


def _text(values: Sequence[Any]) -> str:
    return numbers.listing([str(value) for value in values]) or "n/a"


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from _flat(entry, f"{above}{key}.")
        elif f"{above}{key}" not in ("indexes", "warnings"):
            yield f"{above}{key}", canonical(entry)
