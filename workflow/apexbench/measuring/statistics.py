"""From paired samples to an interval and a verdict.

Samples of the arms of a case are paired by round and grouped in blocks; buffers are allocated anew
for every block, so that blocks are the independent unit. A block's value is the interquartile mean
of the paired log ratios of its rounds. The interval of the ratio is the trimmed-t interval of the
block values (Tukey and McLaughlin, Sankhya A 25, 1963): the mean of the block values with a tenth
cut from each end, and the winsorised standard deviation.

This is the method of batch means with robust batches. It takes the place of a percentile bootstrap
over blocks, which covers too rarely with some twenty blocks (``tests/test_statistics.py`` shows
both), and it is exactly antisymmetric: swapping the two arms inverts the ratio and its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

MARGIN = 0.01
MARGIN_SHORT = 0.02
SHORT_NS = 30_000
BLOCKS = 20
TRIM = 0.1

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval, in the unit of the samples (log ratios or ns)."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2


def margin_for(value_ns: float) -> float:
    """The equivalence margin m: 1 %, and 2 % for calls shorter than 30 µs."""
    return MARGIN_SHORT if value_ns < SHORT_NS else MARGIN


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half; the plain median below four values."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.size < 4:
        return float(np.median(ordered))
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def trimmed_t(values: ArrayLike, confidence: float) -> Interval:
    """Trimmed mean of independent values with its Student-t interval.

    A tenth is trimmed from each end (at least one value from ten values on); the standard error is
    s_w / ((1 - 2g/n) sqrt(n)) with the winsorised standard deviation s_w and n - 2g - 1 degrees of
    freedom. Raises ValueError below two values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    size = ordered.size
    if size < 2:
        raise ValueError("an interval needs at least two blocks")
    cut = int(TRIM * size)
    middle = ordered[cut : size - cut]
    winsorised = np.clip(ordered, middle[0], middle[-1])
    error = winsorised.std(ddof=1) / ((1 - 2 * cut / size) * math.sqrt(size))
    reach = float(stats.t.ppf((1 + confidence) / 2, size - 2 * cut - 1)) * float(error)
    centre = float(middle.mean())
    return Interval(centre, centre - reach, centre + reach)


def block_values(samples: Array, blocks: ArrayLike) -> Array:
    """The interquartile mean of ``samples`` in each block; ``blocks`` labels every sample."""
    labels = np.asarray(blocks)
    return np.array([interquartile_mean(samples[labels == name]) for name in np.unique(labels)])


def log_ratio(
    baseline: ArrayLike, candidate: ArrayLike, blocks: ArrayLike, confidence: float, tick: float = 0
) -> Interval:
    """Interval of log(baseline time / candidate time), paired by round: above 0 is faster.

    ``baseline`` and ``candidate`` are times of the same rounds in one unit; ``tick`` is the timer's
    resolution in that unit (per call): the interval is never narrower than one tick of the shorter
    arm, since ties in quantised samples say nothing finer than that.
    """
    slow = np.asarray(baseline, dtype=np.float64)
    fast = np.asarray(candidate, dtype=np.float64)
    interval = trimmed_t(block_values(np.log(slow) - np.log(fast), blocks), confidence)
    floor = tick / min(float(np.median(slow)), float(np.median(fast)))
    reach = max(interval.half_width, floor / 2)
    return Interval(interval.value, interval.value - reach, interval.value + reach)


def location(samples: ArrayLike, blocks: ArrayLike, confidence: float, tick: float = 0) -> Interval:
    """The median of the samples, with the interval of their block values, both on log times."""
    times = np.asarray(samples, dtype=np.float64)
    value = float(np.median(times))
    reach = trimmed_t(block_values(np.log(times), blocks), confidence).half_width
    reach = max(reach, tick / value / 2)
    return Interval(value, value * math.exp(-reach), value * math.exp(reach))


def verdict(low: float, high: float, margin: float) -> str:
    """``faster``, ``slower``, ``same`` or ``unclear`` from the interval of a speed ratio alone."""
    if low > 1 + margin:
        return "faster"
    if high < 1 / (1 + margin):
        return "slower"
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return "same"
    return "unclear"


def strongest(intervals: list[Interval]) -> Interval:
    """The interval against the best of several baselines, from those against each member.

    The least value, the least low and the least high: it lies above 1 only if every member's does.
    Its coverage holds when each member's interval has its share of the error (Bonferroni).
    """
    return Interval(
        min(entry.value for entry in intervals),
        min(entry.low for entry in intervals),
        min(entry.high for entry in intervals),
    )


def member_confidence(confidence: float, members: int) -> float:
    """The confidence of each of ``members`` intervals so that all hold together (Bonferroni)."""
    return 1 - (1 - confidence) / max(members, 1)


@dataclass(frozen=True)
class Plan:
    """How many rounds to sample: ``blocks`` blocks of ``rounds_per_block`` rounds."""

    blocks: int
    rounds_per_block: int
    reaches_target: bool

    @property
    def rounds(self) -> int:
        """All rounds after the pilot."""
        return self.blocks * self.rounds_per_block


def plan(
    pilot: list[tuple[Array, NDArray[np.int_], float]],
    confidence: float,
    round_seconds: float,
    budget_seconds: float,
    largest_block: int = 400,
) -> Plan:
    """Fix the number of rounds from the pilot; its samples are then thrown away.

    ``pilot`` holds, for every comparison, the paired log ratios, their block labels and the
    half-width wanted. The variance of a block's value is split into a part within blocks, which
    falls with the rounds in a block, and one between blocks, which only more blocks reduce.
    """
    blocks, rounds = BLOCKS, 1
    for ratios, labels, target in pilot:
        within, between, length = _variances(ratios, labels)
        reach = float(stats.t.ppf((1 + confidence) / 2, 0.8 * BLOCKS - 1)) * 1.3
        most = (target / reach) ** 2
        if between > 0.5 * most * blocks:
            blocks = min(3 * BLOCKS, max(blocks, math.ceil(2 * between / most)))
        left = max(most * blocks - between, 0.25 * most * blocks)
        rounds = max(rounds, math.ceil(within / left))
    rounds = min(rounds, largest_block)
    affordable = max(int(budget_seconds / max(round_seconds, 1e-9)), 8)
    if blocks * rounds <= affordable:
        return Plan(blocks, rounds, True)
    blocks = min(BLOCKS, affordable)
    return Plan(blocks, max(1, affordable // blocks), False)


def _variances(ratios: Array, labels: NDArray[np.int_]) -> tuple[float, float, int]:
    """Robust variance of one round within its block, variance between blocks, rounds a block."""
    names = np.unique(labels)
    length = max(1, ratios.size // names.size)
    values = block_values(ratios, labels)
    centred = np.concatenate(
        [ratios[labels == name] - centre for name, centre in zip(names, values, strict=True)]
    )
    low, high = np.percentile(centred, [25, 75])
    within = ((high - low) / 1.349) ** 2 * 1.2
    within = max(within, float(np.var(centred)) * 0.1)
    between = 0.0
    if names.size > 2:
        between = max(0.0, float(np.var(values, ddof=1)) - within / length)
    return float(within), between, length
