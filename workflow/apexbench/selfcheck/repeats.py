"""The component stage in two processes: how far a comparison moves from one start to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.records import Comparison, Record
from apexbench.selfcheck.findings import disturbed

APART = ("selfcheck", "transformer")
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Difference:
    """One comparison, measured in two processes.

    ``value`` is the difference of the log ratios and ``half`` the half-width of its interval, the
    root of the sum of the squares of both half-widths: the processes are independent.
    """

    key: Key
    value: float
    half: float
    flips: bool

    @property
    def holds_zero(self) -> bool:
        """Whether the interval includes 0."""
        return abs(self.value) <= self.half


@dataclass
class Stage:
    """A component stage that was measured twice, in whole or in part.

    ``cases`` were compared; ``disturbed`` were not, since other processes kept the CPU busy.
    """

    differences: list[Difference] = field(default_factory=list)
    cases: int = 0
    disturbed: int = 0
    planned: int = 0
    seconds: float | None = None
    preset: str = ""
    device: str = ""


def load(folder: Path, run: Path) -> Stage | None:
    """The repeats in ``folder`` paired with the records in ``run``, or with each other."""
    second = _read(folder)
    if not second:
        return None
    first = _read(run)
    stage = Stage(device=str(second[0].provenance["device"]))
    plan = _plan(folder)
    stage.planned, stage.preset = int(plan.get("cases", 0)), str(plan.get("preset", ""))
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in [*first, *second]:
        groups.setdefault((record.component, record.case), []).append(record)
    for found in groups.values():
        pair = _two(found)
        if pair is not None:
            spoilt = any(disturbed(entry) for one in pair for entry in one.comparisons)
            stage.disturbed += spoilt
            stage.cases += not spoilt
            stage.differences += [] if spoilt else differences(*pair)
    stage.seconds = _seconds(run, int(plan.get("stage", 0)))
    return stage


def _read(folder: Path) -> list[Record]:
    return [
        record
        for index in sorted((folder / "records").glob("*/index.json"))
        if index.parent.name not in APART
        for record in records.read_index(index)
    ]


def _plan(folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    return records.read_mapping(path) if path.exists() else {}


def _two(found: list[Record]) -> tuple[Record, Record] | None:
    """The repeat and one earlier process of the same case on the same machine, if there is one."""
    last = max(found, key=lambda record: record.process)
    for record in found:
        same = record.environment == last.environment and record.config == last.config
        if record.process != last.process and same:
            return record, last
    return None


def differences(first: Record, second: Record) -> list[Difference]:
    """The log differences of every comparison that both processes hold."""
    before = {_key(first, entry): entry for entry in first.comparisons}
    found = []
    for entry in second.comparisons:
        key = _key(second, entry)
        if (other := before.get(key)) is not None:
            halves = [math.log(one.high / one.low) / 2 for one in (other, entry)]
            found.append(
                Difference(
                    key,
                    math.log(entry.ratio / other.ratio),
                    math.hypot(*halves),
                    {entry.verdict, other.verdict} == {"faster", "slower"},
                )
            )
    return found


def _key(record: Record, entry: Comparison) -> Key:
    return record.component, record.case, entry.quantity, entry.implementation, entry.baseline


def _seconds(folder: Path, planned: int) -> float | None:
    """Wall time of a component stage that was measured whole, in one go and one process."""
    total, cases = 0.0, 0
    for path in sorted((folder / "records").glob("*/index.json")):
        if path.parent.name in APART:
            continue
        index = records.read_mapping(path)
        processes = {entry.get("process") for entry in index["records"]}
        if index.get("measured") != len(index["records"]) or len(processes) != 1:
            return None
        total += float(index["seconds"]["total"])
        cases += len(index["records"])
    return total if cases and cases == planned else None
