"""From the samples of a case to its comparisons: which pairs, which intervals, which verdicts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from apexbench import records
from apexbench.measuring import statistics
from apexbench.measuring.contention import BUSY_CPU
from apexbench.measuring.sampler import Samples, Settings
from apexbench.measuring.statistics import Interval
from apexbench.records import Comparison, Parity, Record, Work

CLOCK_TOLERANCE = 0.01


def pairs(baselines: dict[str, list[str]], names: list[str]) -> list[tuple[str, str]]:
    """(candidate, baseline member) of every comparison among the arms ``names``."""
    members = {name for entry in baselines.values() for name in entry}
    return [
        (candidate, member)
        for candidate in names
        for member in names
        if member in members and candidate != member
    ]


def bounded(work: Work | None, cache_bytes: int, device: str) -> Work:
    """The work with its reason where a share of the ceiling would mislead."""
    if work is None:
        return Work(None, None, "not built", None, "the case could not be built")
    if work.reason is None and work.bytes is not None and work.ceiling == "copy":
        if device == "cpu":  # a copy also reads the lines it writes, which its bytes leave out
            return dataclasses.replace(work, reason="a CPU copy reads what it writes")
        if work.bytes < 4 * cache_bytes:
            return dataclasses.replace(work, reason="L2-resident")
    return work


def location(samples: Samples, name: str, confidence: float) -> Interval:
    """Median and interval of one arm's time per call, in ns."""
    return statistics.location(
        samples.per_call(name), samples.blocks, confidence, samples.tick_per_call(name)
    )


def sampling(samples: Samples) -> dict[str, Any]:
    """How the samples of one quantity were taken, for the record.

    On a GPU a busy host stands there as a note, where the quantity holds the host's work.
    """
    busy = sum(bool(state.get("host_contended")) for state in samples.state)
    note = f"other processes kept the host's CPU busy in {busy} of {len(samples.state)} blocks"
    return {
        "pilot_rounds": samples.pilot_rounds,
        "rounds": len(samples.blocks),
        "blocks": len(set(samples.blocks)),
        "block_of_round": samples.blocks,
        "stop": samples.stop,
        "tick_ns": samples.tick_ns,
        "null_window_ns": samples.null_window_ns,
        "repeated_blocks": samples.repeated_blocks,
        "cold": samples.cold,
        "outliers": {name: statistics.outliers(times) for name, times in samples.times.items()},
        **({"note": note} if busy and samples.quantity == "step_time" else {}),
    }


def compare(
    record: Record,
    baselines: dict[str, list[str]],
    samples: dict[str, Samples],
    settings: Settings,
    apart: frozenset[str] = frozenset(),
) -> None:
    """Fill ``record.comparisons`` and ``record.baselines``; those ``apart`` are in no verdict."""
    measured = [cell.implementation for cell in record.cells if cell.status == "ok"]
    for baseline, members in baselines.items():
        present = [name for name in members if name in measured]
        reason = None if present else _absent(record, members)
        if baseline == "torch_best":
            compiled = [name for name in members if name not in baselines["torch_eager_best"]]
            if not set(compiled) & set(measured):  # the best would be the best eager one
                present, reason = [], _absent(record, compiled)
        record.baselines[baseline] = {"members": present, "reason": reason}
    for quantity, entry in samples.items():
        for baseline, description in record.baselines.items():
            members = [name for name in description["members"] if name in entry.times]
            for candidate in measured:
                others = [name for name in members if name != candidate]
                if candidate in entry.times and others and candidate not in apart:
                    record.comparisons.append(
                        compared(entry, quantity, candidate, baseline, others, settings)
                    )


def _absent(record: Record, members: list[str]) -> str:
    """Why none of the members that a baseline needs was measured."""
    if not members:
        return "no counterpart in torch"
    states = [
        f"{cell.implementation} is {cell.status}"
        for cell in record.cells
        if cell.implementation in members
    ]
    states += [
        f"{name} had no room in memory beside these" for name in record.displaced if name in members
    ]
    return "; ".join(states) or "not among the implementations asked for"


def compared(
    samples: Samples,
    quantity: str,
    candidate: str,
    baseline: str,
    members: list[str],
    settings: Settings,
) -> Comparison:
    """One implementation against the members of one baseline, from their paired samples."""
    confidence = statistics.member_confidence(settings.confidence, len(members))
    fast = samples.per_call(candidate)
    interval = statistics.strongest(
        [
            statistics.log_ratio(
                samples.per_call(member),
                fast,
                samples.blocks,
                confidence,
                samples.tick_per_call(candidate, member),
            )
            for member in members
        ]
    )
    shortest = min(float(np.median(samples.per_call(name))) for name in (candidate, *members))
    margin = statistics.margin_for(shortest, settings.margin)
    low, high = math.exp(interval.low), math.exp(interval.high)
    return Comparison(
        quantity=quantity,
        implementation=candidate,
        baseline=baseline,
        members=members,
        ratio=math.exp(interval.value),
        low=low,
        high=high,
        margin=margin,
        verdict="unclear" if busy_cpu(samples) else records.verdict(low, high, margin),
        rounds=len(samples.blocks),
        flags=_flags(samples, candidate, members),
    )


def busy_cpu(samples: Samples) -> bool:
    """Whether more blocks were disturbed than the interval cuts from one end of its values.

    What a neighbour takes, it takes from arms of many threads more than from those of one: a shift
    that the interval does not hold, so that no verdict is read off it.
    """
    kept = [state for state in samples.state if not state.get("repeated")]
    return sum(bool(state.get("cpu_contended")) for state in kept) > statistics.trimmed(len(kept))


def _flags(samples: Samples, candidate: str, members: list[str]) -> list[str]:
    flags = []
    clocks = {
        name: float(np.median(samples.clocks[name]))
        for name in (candidate, *members)
        if samples.clocks.get(name)
    }
    if clocks and max(clocks.values()) > (1 + CLOCK_TOLERANCE) * min(clocks.values()):
        flags.append("SM clocks of the arms differ by more than 1 %")
    if any(state.get("hardware_throttle") for state in samples.state if not state.get("repeated")):
        flags.append("hardware throttling")
    if any(state.get("foreign_processes") for state in samples.state):
        flags.append("another process used the GPU")
    if busy_cpu(samples):
        flags.append(BUSY_CPU)
    if {candidate, *members} & set(samples.short):
        flags.append("a window holds too few calls to be long against the empty window")
    flags += samples.flags
    if samples.stop == "budget":
        flags.append("the time budget ended before the target")
    return flags


def parity_failure(parity: Parity) -> str:
    """One sentence for the check that failed worst."""
    failed = [entry for entry in parity.checks if not entry.passed]
    worst = max(
        failed, key=lambda entry: math.inf if entry.error is None else entry.error / entry.tolerance
    )
    if worst.error is None:
        return f"{worst.tensor} is missing or not finite"
    return (
        f"{worst.tensor} is off by {worst.error:.2e}, more than the {worst.tolerance:.2e} allowed"
    )
