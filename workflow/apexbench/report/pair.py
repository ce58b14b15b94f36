"""How much faster one implementation of a case is than another: one interval for a pair, anywhere.

Where a record compared exactly these two, its interval and verdict stand. Elsewhere the interval is
computed as a record computes it (``measuring.statistics``), with the error shared among the rivals
of the largest baseline that the two meet in (Bonferroni), as a record's verdict against that
baseline has it. So a bar, a sentence that names the fastest and a recommendation say the same of a
pair, and none says more than the record's own verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apexbench.measuring import statistics
from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import Record
from apexbench.report.cases import Arm, Case, Versus
from apexbench.report.repeats import Estimate, combine, exp, relative, student, verdict

BLOCKS = 20
MARGIN = 0.01
FLIPPED = {"faster": "slower", "slower": "faster"}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """The speed of one implementation relative to another, and what the interval says of it."""

    ratio: Estimate
    verdict: str


def margin(case: Case) -> float:
    """The equivalence margin that a case's own verdicts used."""
    found = [v.margin for arm in case.arms for v in arm.versus.values()]
    return max(found, default=MARGIN)


def factor(case: Case, slow: Arm, fast: Arm) -> Estimate:
    """How many times faster ``fast`` is than ``slow``."""
    return pair(case, slow, fast).ratio


def pair(case: Case, slow: Arm, fast: Arm) -> Pair:
    """``fast`` against ``slow``, both timed in the case's own quantity."""
    if (found := _recorded(case, slow, fast)) is not None:
        return Pair(found.ratio, found.verdict)
    if (found := _recorded(case, fast, slow)) is not None:
        return Pair(found.ratio.inverse(1.0), FLIPPED.get(found.verdict, found.verdict))
    ratio = _computed(case, slow, fast)
    busy = any(
        BUSY_CPU in versus.flags
        for arm in (slow, fast)
        for (quantity, _), versus in arm.versus.items()
        if quantity == case.quantity
    )
    return Pair(ratio, "unclear" if busy else verdict(ratio, margin(case)))


def _recorded(case: Case, slow: Arm, fast: Arm) -> Versus | None:
    """The record's comparison of exactly these two."""
    for (quantity, _), versus in fast.versus.items():
        if quantity == case.quantity and versus.members == (slow.implementation,):
            return versus
    return None


def rivals(case: Case, one: Arm, two: Arm) -> int:
    """Members of the largest baseline in which one of the two is compared with the other."""
    own = [
        (len(versus.members), other.implementation in versus.members)
        for arm, other in ((one, two), (two, one))
        for (quantity, _), versus in arm.versus.items()
        if quantity == case.quantity
    ]
    met = [size for size, meets in own if meets]
    return max(met or [size for size, _ in own], default=1)


def _computed(case: Case, slow: Arm, fast: Arm) -> Estimate:
    """From samples of the same rounds where there are any, else from blocks or times apart."""
    confidence = statistics.member_confidence(case.confidence, rivals(case, slow, fast))
    found = [
        entry for record in case.records
        if (entry := _paired(record, slow, fast, case.quantity, confidence)) is not None
    ]  # fmt: skip
    if found:
        return combine(found, case.confidence)
    blocks = [entry for entry in log_medians(case, [slow, fast]) if entry.shape[1] > 1]
    if blocks:
        return estimate(case, blocks, lambda times: float(times[0] - times[1]), confidence)
    before, after = case.time(slow), case.time(fast)  # timed in different processes only
    assert before is not None
    assert after is not None
    return relative(before, after)


def _paired(
    record: Record, slow: Arm, fast: Arm, quantity: str, confidence: float
) -> Estimate | None:
    """The ratio of two arms of one record, computed as its comparisons are; None if unpaired."""
    before, after = _per_call(record, slow, quantity), _per_call(record, fast, quantity)
    if before is None or after is None or len(before) != len(after):
        return None
    sampling = record.sampling.get(quantity)
    blocks = _labels(sampling, len(before))
    if len(np.unique(blocks)) < 2:
        return None
    tick = sampling.get("tick_ns", 0) if isinstance(sampling, dict) else 0
    calls = min(
        cell.quantities[quantity].calls_per_sample
        for cell in record.cells
        if cell.implementation in (slow.implementation, fast.implementation)
    )
    interval = statistics.log_ratio(before, after, blocks, confidence, tick / calls)
    return Estimate(exp(interval.value), exp(interval.low), exp(interval.high))


def _labels(sampling: object, rounds: int) -> Array:
    """The block of every round: the record's, or equal ones where it names none."""
    named = sampling.get("block_of_round") if isinstance(sampling, dict) else None
    if isinstance(named, list) and len(named) == rounds:
        return np.asarray(named)
    parts = np.array_split(np.arange(rounds), min(BLOCKS, rounds))
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _block_medians(samples: list[Array], sampling: object) -> Array:
    """Median time by arm and block: the record's blocks, or equal ones where it names none."""
    if len({len(entry) for entry in samples}) > 1:
        blocks = min(BLOCKS, *(len(entry) for entry in samples))
        parts = [np.array_split(entry, blocks) for entry in samples]
        return np.array([[np.median(part) for part in row] for row in parts])
    together = np.array(samples)
    labels = _labels(sampling, together.shape[1])
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.stack([np.median(together[:, group], axis=1) for group in groups], axis=1)


def _per_call(record: Record, arm: Arm, quantity: str) -> Array | None:
    """Nanoseconds a call of every window of an arm in one record, if it was timed there."""
    cell = next((c for c in record.cells if c.implementation == arm.implementation), None)
    if cell is None or quantity not in cell.quantities:
        return None
    found = cell.quantities[quantity]
    return np.asarray(found.samples, dtype=np.float64) / found.calls_per_sample


def log_medians(case: Case, arms: list[Arm]) -> list[Array]:
    """Log median time by arm and block, of every record that timed all arms, so that they pair.

    Where none did (a large model's recipes are divided among records), of every process, from the
    records that hold them: blocks that were not taken in turn are independent of each other.
    """
    timed = [
        (record, [_per_call(record, arm, case.quantity) for arm in arms]) for record in case.records
    ]
    paired = []
    for record, samples in timed:
        if len(known := [entry for entry in samples if entry is not None]) == len(arms):
            paired.append(np.log(_block_medians(known, record.sampling.get(case.quantity))))
    if paired:
        return paired
    apart: dict[int, dict[str, Array]] = {}
    for record, samples in timed:
        for arm, entry in zip(arms, samples, strict=True):
            if entry is not None:
                medians = np.log(_block_medians([entry], record.sampling.get(case.quantity))[0])
                apart.setdefault(record.process, {}).setdefault(arm.implementation, medians)
    whole = [
        found for found in apart.values() if len(found) == len({a.implementation for a in arms})
    ]
    return [
        np.array([found[arm.implementation][: min(map(len, found.values()))] for arm in arms])
        for found in whole
    ]


def estimate(
    case: Case,
    log_times: list[Array],
    value: Callable[[Array], float],
    confidence: float | None = None,
) -> Estimate:
    """exp of a linear function of log step times, with its interval.

    Within a process: Student-t over blocks of rounds, as buffers are allocated anew per block.
    Over processes: as every other estimate of this report. ``confidence`` is the case's own unless
    it is given.
    """
    estimates = []
    for blocks in log_times:
        values = [value(blocks[:, block]) for block in range(blocks.shape[1])]
        if len(values) < 2:
            estimates.append(Estimate(*(exp(values[0]),) * 3))
        else:
            middle, low, high = student(values, confidence or case.confidence)
            estimates.append(Estimate(exp(middle), exp(low), exp(high)))
    return combine(estimates, case.confidence)
