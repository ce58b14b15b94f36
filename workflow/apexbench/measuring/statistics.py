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

from apexbench.measuring.samples import MARGIN

SHORT_FACTOR = 2
SHORT_NS = 30_000
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


def margin_for(value_ns: float, margin: float = MARGIN) -> float:
    """The equivalence margin m, twice as wide for calls shorter than 30 µs."""
    return SHORT_FACTOR * margin if value_ns < SHORT_NS else margin


def outliers(samples: ArrayLike) -> int:
    """How many samples lie more than three interquartile ranges outside the quartiles.

    Tukey, Exploratory Data Analysis, 1977: "far out". They are counted and kept.
    """
    values = np.asarray(samples, dtype=np.float64)
    low, high = np.percentile(values, [25, 75])
    reach = 3 * (high - low)
    return int(np.sum((values < low - reach) | (values > high + reach)))


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half; the plain median below four values."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.size < 4:
        return float(np.median(ordered))
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def trimmed(size: int) -> int:
    """How many of ``size`` block values are cut from each end."""
    return int(TRIM * size)


def trimmed_t(values: ArrayLike, confidence: float) -> Interval:
    """Trimmed mean of values in order of time, with its Student-t interval.

    A tenth is trimmed from each end (at least one value from ten values on); the standard error is
    s_w / ((1 - 2g/n) sqrt(n)) with the winsorised standard deviation s_w and n - 2g - 1 degrees of
    freedom. Where neighbours resemble each other it grows by sqrt((1 + r) / (1 - r)), r the lag-one
    autocorrelation (the variance of the mean of an AR(1) series). Raises ValueError below two.
    """
    series = np.asarray(values, dtype=np.float64)
    ordered = np.sort(series)
    size = ordered.size
    if size < 2:
        raise ValueError("an interval needs at least two blocks")
    cut = trimmed(size)
    middle = ordered[cut : size - cut]
    winsorised = np.clip(ordered, middle[0], middle[-1])
    error = winsorised.std(ddof=1) / ((1 - 2 * cut / size) * math.sqrt(size))
    error *= _autocorrelation_factor(np.clip(series, middle[0], middle[-1]))
    reach = float(stats.t.ppf((1 + confidence) / 2, size - 2 * cut - 1)) * float(error)
    centre = float(middle.mean())
    return Interval(centre, centre - reach, centre + reach)


def _autocorrelation_factor(series: Array) -> float:
    """sqrt((1 + r) / (1 - r)) for a lag-one autocorrelation r above 0, up to 0.8; else 1."""
    if series.size < 8:
        return 1.0
    centred = series - series.mean()
    total = float(centred @ centred)
    if total == 0:
        return 1.0
    estimate = float(centred[:-1] @ centred[1:]) / total
    unbiased = min(0.8, (estimate + 1 / series.size) / (1 - 4 / series.size))
    return math.sqrt((1 + unbiased) / (1 - unbiased)) if unbiased > 0 else 1.0


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
