"""Several processes of one case as one estimate with one interval (method, point 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from apexbench import records

FEWEST_PROCESSES = 5
LARGEST = 700.0
"""The largest logarithm taken for a number: e to the 700 is 1e304."""


@dataclass(frozen=True)
class Estimate:
    """A positive number with its interval; ``processes`` fresh processes stand behind it."""

    value: float
    low: float
    high: float
    processes: int = 1

    @property
    def between_runs(self) -> bool:
        """Whether the interval covers what differs from one process to the next."""
        return self.processes >= FEWEST_PROCESSES

    def inverse(self, numerator: float) -> Estimate:
        """``numerator / self``, the interval turned round: tokens per step over ns per step."""
        return Estimate(
            numerator / self.value, numerator / self.high, numerator / self.low, self.processes
        )


def student(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Mean and two-sided Student-t interval of at least two process means."""
    mean = float(np.mean(values))
    scale = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * scale
    return mean, mean - half, mean + half


def combine(estimates: Sequence[Estimate], confidence: float) -> Estimate:
    """One estimate from one per process.

    One process keeps its own interval. Five or more give Student-t over the logarithms. Two to
    four are too few for a 99 % interval between runs: theirs is the hull of all of them.
    """
    if len(estimates) == 1:
        return estimates[0]
    logs = [math.log(estimate.value) for estimate in estimates]
    if len(estimates) >= FEWEST_PROCESSES:
        value, low, high = (exp(x) for x in student(logs, confidence))
    else:
        value = math.exp(float(np.mean(logs)))
        low = min(estimate.low for estimate in estimates)
        high = max(estimate.high for estimate in estimates)
    return Estimate(value, min(low, value), max(high, value), len(estimates))


def exp(value: float) -> float:
    """e to ``value``, held within what a double holds: an absurd interval is wide, not an error."""
    return math.exp(max(-LARGEST, min(LARGEST, value)))


def relative(before: Estimate, after: Estimate) -> Estimate:
    """Speed of ``after`` relative to ``before`` from unpaired times, by MOVER on logarithms.

    With L and U the logarithms of an interval's ends around the logarithm of its value v, the
    interval of v1 - v2 is v1 - v2 - √((v1 - L1)² + (U2 - v2)²) to v1 - v2 + √((U1 - v1)² +
    (v2 - L2)²): Zou and Donner, Statistics in Medicine 27, 2008,
    https://doi.org/10.1002/sim.3095.
    """
    one, two = (
        tuple(math.log(value) for value in (e.value, e.low, e.high)) for e in (before, after)
    )
    middle = one[0] - two[0]
    down = math.hypot(one[0] - one[1], two[2] - two[0])
    up = math.hypot(one[2] - one[0], two[0] - two[1])
    processes = min(before.processes, after.processes)
    return Estimate(exp(middle), exp(middle - down), exp(middle + up), processes)


def verdict(ratio: Estimate, margin: float) -> str:
    """``faster``, ``slower``, ``same`` or ``unclear`` from the shown interval alone (point 6)."""
    return records.verdict(ratio.low, ratio.high, margin)
