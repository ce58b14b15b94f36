"""Arms that do not fit in memory beside the others: they run in a group that holds the baselines.

Method, point 4. A record names the arms that had no room in it. They are measured in a record of
their own, in a process that holds every baseline that was measured; where not one of them fits
beside those, beside torch's default alone. An arm with no room there has ``out_of_memory``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from apexbench.records import BESIDE, Record


def arms(case: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of ``names`` that the case's group holds; all of them in the first group."""
    group = case.get(BESIDE)
    return [name for name in names if group is None or name in group["arms"]]


def strangers(case: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """What the case's group names and is not one of ``names``: its record was altered."""
    group = case.get(BESIDE)
    return sorted(set(group["arms"]) - set(names)) if group is not None else []


def anchor(case: Mapping[str, Any], baselines: Mapping[str, list[str]]) -> list[str]:
    """The arm beside which alone there must be room: none, or torch's default."""
    group = case.get(BESIDE)
    return (group["held"] if group is not None else baselines["torch_default"])[:1]


def following(record: Record) -> dict[str, Any] | None:
    """The case of the group that comes after ``record``'s, or None where every arm had room."""
    if not record.displaced:
        return None
    group = record.config.get(BESIDE)
    measured = [cell.implementation for cell in record.cells if cell.status == "ok"]
    members = {name for entry in record.baselines.values() for name in entry["members"]}
    held = group["held"] if group else [name for name in measured if name in members]
    if not set(measured) - set(held):  # not one fits beside all of them
        held = held[:1]
    number = 1 if group is None else group["number"] + 1
    entry = {"number": number, "held": held, "arms": [*held, *record.displaced]}
    return {**record.config, BESIDE: entry}
