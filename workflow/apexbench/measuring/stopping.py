"""How many rounds: a pilot fixes the number, and only samples taken after it count.

If the interval of those samples is still wider than wanted and time is left, they become the pilot
of a longer run and are thrown away in turn, so that no interval ever uses the samples that fixed
its own length.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from apexbench.measuring.statistics import (
    Array,
    block_values,
    member_confidence,
    trimmed,
    trimmed_t,
)

BLOCKS = 20
FEWEST_BLOCKS = 10
"""The fewest of which the interval cuts one from each end: one outlier changes no verdict."""
PILOT_BLOCK = 5
LARGEST_BLOCK = 400
SAFETY = 1.3
"""How much narrower than the target a plan aims; more so after every attempt that missed it."""


@dataclass(frozen=True)
class Paired:
    """One comparison: paired log ratios by round, their blocks, the half-width wanted.

    ``members`` is the size of the largest baseline that it is part of: its interval is the one that
    the verdict against that baseline uses. ``floor`` is the tick relative to the shorter arm.
    """

    ratios: Array
    blocks: NDArray[np.int_]
    target: float
    members: int = 1
    floor: float = 0.0

    def half_width(self, confidence: float) -> float:
        """Half-width of the interval of these samples, as a verdict will see it."""
        confidence = member_confidence(confidence, self.members)
        interval = trimmed_t(block_values(self.ratios, self.blocks), confidence)
        return max(interval.half_width, self.floor / 2)


@dataclass(frozen=True)
class Plan:
    """``blocks`` blocks of ``rounds_per_block`` rounds; whether that should reach the target."""

    blocks: int
    rounds_per_block: int
    reaches_target: bool

    @property
    def labels(self) -> list[int]:
        """The block of every round."""
        return [block for block in range(self.blocks) for _ in range(self.rounds_per_block)]


def plan(
    pilot: list[Paired],
    confidence: float,
    round_seconds: float,
    seconds: float,
    safety: float = SAFETY,
) -> Plan:
    """The rounds that bring every comparison to its target, or as many as ``seconds`` allow.

    The variance of a block's value is split into a part within blocks, which falls with the rounds
    in a block, and one between blocks, which only more blocks reduce.
    """
    blocks, rounds = BLOCKS, 1
    freedom = BLOCKS - 2 * trimmed(BLOCKS) - 1
    for pair in pilot:
        within, between = _variances(pair)
        two_sided = (1 + member_confidence(confidence, pair.members)) / 2
        reach = float(stats.t.ppf(two_sided, freedom)) * safety
        most = (pair.target / reach) ** 2
        if between > 0.5 * most * blocks:
            blocks = min(3 * BLOCKS, max(blocks, math.ceil(2 * between / most)))
        left = max(most * blocks - between, 0.25 * most * blocks)
        rounds = max(rounds, math.ceil(within / left))
    rounds = min(rounds, LARGEST_BLOCK)
    affordable = max(int(seconds / max(round_seconds, 1e-9)), FEWEST_BLOCKS)
    if blocks * rounds <= affordable:
        return Plan(blocks, rounds, True)
    blocks = min(BLOCKS, affordable)
    return Plan(blocks, max(1, affordable // blocks), False)


def _variances(pair: Paired) -> tuple[float, float]:
    """Robust variance of one round within its block, and variance between blocks.

    A twentieth of the rounds is clipped at each end: a single outlier of the pilot must not spend
    the whole budget, while a second mode, which every block will hold, still counts.
    """
    names = np.unique(pair.blocks)
    length = max(1, pair.ratios.size // names.size)
    values = block_values(pair.ratios, pair.blocks)
    centred = np.concatenate(
        [
            pair.ratios[pair.blocks == name] - centre
            for name, centre in zip(names, values, strict=True)
        ]
    )
    low, high = np.percentile(centred, [25, 75])
    clipped = np.clip(centred, *np.percentile(centred, [5, 95]))
    within = max(float((high - low) / 1.349) ** 2, 0.1 * float(np.var(clipped)))
    if length == 1:
        return float(np.var(values, ddof=1)) if names.size > 1 else 0.0, 0.0
    within *= length / (length - 1)
    between = float(np.var(values, ddof=1)) - within / length if names.size > 2 else 0.0
    return within, max(0.0, between)


S = TypeVar("S")


@dataclass
class Outcome(Generic[S]):
    """The samples that count, rounds spent on pilots, and why it stopped: target or budget."""

    samples: S
    pilot_rounds: int
    stop: str


def run(
    take: Callable[[list[int], float], S],
    pairs: Callable[[S], list[Paired]],
    length: Callable[[S], int],
    confidence: float,
    pilot_rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome[S]:
    """Pilot, then samples until every comparison reaches its target or ``seconds`` are spent.

    ``take(labels, stop_at)`` samples one round per label (labels name blocks) and may end early, at
    a block's end, past ``stop_at`` on ``clock``; ``pairs`` gives the comparisons of its samples and
    ``length`` their rounds.
    """
    begin = clock()
    pilot = take([index // PILOT_BLOCK for index in range(pilot_rounds)], begin + seconds / 2)
    spent = length(pilot)
    pace = (clock() - begin) / max(spent, 1)
    for attempt in itertools.count():
        safety, left = SAFETY * 1.25**attempt, seconds - (clock() - begin)
        wanted = plan(pairs(pilot), confidence, pace, left, safety)
        samples = take(wanted.labels, math.inf)
        comparisons = pairs(samples)
        if all(pair.half_width(confidence) <= pair.target for pair in comparisons):
            return Outcome(samples, spent, "target")
        left = seconds - (clock() - begin)
        if not wanted.reaches_target or left < pace * length(samples):
            break
        pilot, spent = samples, spent + length(samples)
    return Outcome(samples, spent, "budget")
