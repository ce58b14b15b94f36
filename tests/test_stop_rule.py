"""Properties of a verdict through the very rule that ends a measurement: pilot, plan, interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from apexbench import records
from apexbench.measuring import statistics, stopping

CONFIDENCE, MARGIN, PILOT = 0.99, 0.01, 30
ROUND_SECONDS = 0.0005
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unclear": "unclear"}


def skewed(random, size, spread):
    return random.lognormal(0, spread, size) + random.exponential(spread, size)


def drifting(random, size, spread):
    return (1 + 10 * spread * np.linspace(0, 1, size)) * random.lognormal(0, spread, size)


def autocorrelated(random, size, spread):
    noise = random.normal(0, spread, size)
    for index in range(1, size):
        noise[index] += 0.6 * noise[index - 1]
    return np.exp(noise)


def bimodal(random, size, spread):
    slow = np.where(random.random(size) < 0.3, 1 + 8 * spread, 1.0)
    return random.lognormal(0, spread / 2, size) * slow


SHAPES = {shape.__name__: shape for shape in (skewed, drifting, autocorrelated, bimodal)}


@dataclass
class Run:
    """A simulated machine; the same seed gives the same timings whatever is done with them."""

    shape: str = "skewed"
    seed: int = 0
    factor: float = 1.0
    spread: float = 0.01
    budget: float = 1.0
    members: int = 1
    scale: float = 1.0
    tick: int = 0
    swap: bool = False
    outlier: tuple[int, bool] | None = None

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        self.now, self.taken = 0.0, 0

    def take(self, labels, stop_at):
        size = len(labels)
        common = 1 + 0.1 * np.sin(np.arange(size) / 7)  # drift that both arms share
        a = 1e5 * common * SHAPES[self.shape](self.random, size, self.spread)
        b = 1e5 * common * SHAPES[self.shape](self.random, size, self.spread) / self.factor
        if self.outlier is not None and 0 <= self.outlier[0] - self.taken < size:
            (a if self.outlier[1] else b)[self.outlier[0] - self.taken] *= 1000
        if self.tick:
            a, b = (np.maximum(1, np.round(times / self.tick)) * self.tick for times in (a, b))
        self.now, self.taken = self.now + size * ROUND_SECONDS, self.taken + size
        a, b = a * self.scale, b * self.scale
        return (b, a, labels) if self.swap else (a, b, labels)

    def pairs(self, taken):
        a, b, labels = taken
        floor = self.tick * self.scale / min(np.median(a), np.median(b))
        ratios = np.log(a) - np.log(b)
        return [stopping.Paired(ratios, np.asarray(labels), MARGIN / 2, self.members, floor)]

    def measure(self):
        """(interval, verdict, outcome)."""
        outcome = stopping.run(
            self.take, self.pairs, lambda taken: len(taken[2]), CONFIDENCE, PILOT, self.budget,
            clock=lambda: self.now,
        )  # fmt: skip
        a, b, labels = outcome.samples
        confidence = statistics.member_confidence(CONFIDENCE, self.members)
        interval = statistics.log_ratio(a, b, labels, confidence, self.tick * self.scale)
        ends = math.exp(interval.low), math.exp(interval.high)
        return interval, records.verdict(*ends, MARGIN), outcome


machines = {
    "shape": st.sampled_from(sorted(SHAPES)),
    "seed": st.integers(0, 2**32 - 1),
    "factor": st.floats(0.8, 1.25),
    "spread": st.floats(0.001, 0.05),
    "budget": st.sampled_from([0.03, 0.2, 2.0]),
}


def near_an_edge(interval):
    edge = math.log(1 + MARGIN)
    return min(abs(abs(end) - edge) for end in (interval.low, interval.high)) < 1e-9


@pytest.mark.parametrize("shape", sorted(SHAPES))
@settings(max_examples=6, deadline=None, derandomize=True, phases=NO_SHRINKING)
@given(
    seed=machines["seed"],
    factor=machines["factor"],
    spread=machines["spread"],
    budget=machines["budget"],
    members=st.sampled_from([1, 3]),
)
def test_coverage_is_near_nominal(shape, seed, factor, spread, budget, members):
    runs = 150
    covered = sum(
        interval.low <= math.log(factor) <= interval.high
        for interval, _, _ in (
            Run(shape, seed + index, factor, spread, budget, members).measure()
            for index in range(runs)
        )
    )
    # At least 97.5 % where 99 % is nominal; a binomial falls below this once in 10,000 times.
    assert covered >= stats.binom.ppf(1e-4, runs, 0.975)


@settings(max_examples=50, deadline=None)
@given(**machines)
def test_swapping_the_arms_inverts_the_verdict(**machine):
    there, verdict, outcome = Run(**machine).measure()
    back, inverse, swapped = Run(**machine, swap=True).measure()
    assert len(outcome.samples[2]) == len(swapped.samples[2])
    assert outcome.stop == swapped.stop
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-9)
    assert near_an_edge(there) or verdict == OPPOSITE[inverse]


@settings(max_examples=50, deadline=None)
@given(**machines, tick=st.sampled_from([0, 32]), scale=st.floats(1e-3, 1e3))
def test_scaling_all_samples_changes_nothing(scale, **machine):
    once, verdict, outcome = Run(**machine).measure()
    scaled, again, other = Run(**machine, scale=scale).measure()
    assert len(outcome.samples[2]) == len(other.samples[2])
    assert outcome.stop == other.stop
    assert (once.low, once.high) == pytest.approx((scaled.low, scaled.high), abs=1e-9)
    assert near_an_edge(once) or verdict == again


@settings(max_examples=50, deadline=None)
@given(
    shape=machines["shape"],
    seed=machines["seed"],
    spread=st.sampled_from([0.0, 1e-6, 1e-3, 0.02]),
    tick=st.sampled_from([32, 500, 1000, 5000]),
)
def test_tied_and_quantised_samples_are_never_finer_than_the_tick(shape, seed, spread, tick):
    interval, verdict, outcome = Run(shape, seed, 1.0, spread, 0.2, tick=tick).measure()
    a, b, _ = outcome.samples
    width = tick / min(np.median(a), np.median(b))
    assert interval.high - interval.low >= 0.999 * width
    assert verdict not in ("faster", "slower")
    # A tick that is coarser than the target can't reach it, and the record must not say it did.
    if width / 2 > MARGIN / 2:
        assert outcome.stop == "budget"


@settings(max_examples=50, deadline=None)
@given(
    shape=st.sampled_from(["skewed", "drifting", "autocorrelated"]),
    seed=machines["seed"],
    effect=st.sampled_from([("slower", 0.9), ("same", 1.0), ("faster", 1.1)]),
    spread=st.floats(0.0001, 0.0003),
    budget=st.sampled_from([0.015, 0.02, 0.2, 2.0]),
    place=st.integers(0, PILOT + 7),
    in_a=st.booleans(),
)
def test_one_outlier_of_a_thousand_times_changes_no_verdict(
    shape, seed, effect, spread, budget, place, in_a
):
    """In the pilot, where it may lengthen the run, and after it; also with ten single rounds."""
    verdict, factor = effect
    outcomes = [
        Run(shape, seed, factor, spread, budget, outlier=outlier).measure()
        for outlier in (None, (place, in_a))
    ]
    assert [found for _, found, _ in outcomes] == [verdict, verdict]


@settings(max_examples=50, deadline=None)
@given(seed=machines["seed"], place=st.integers(0, PILOT - 1))
def test_an_outlier_in_the_pilot_does_not_spend_the_whole_budget(seed, place):
    _, _, clean = Run(seed=seed, spread=0.005, budget=20.0).measure()
    _, _, soiled = Run(seed=seed, spread=0.005, budget=20.0, outlier=(place, True)).measure()
    assert soiled.stop == clean.stop == "target"
    assert len(soiled.samples[2]) <= 30 * len(clean.samples[2])


def test_a_larger_baseline_asks_for_more_rounds():
    """Against the best of several each interval is wider, and must still reach the target."""
    rounds = {}
    for members in (1, 5):
        found = [Run(seed=seed, spread=0.03, budget=20, members=members) for seed in range(20)]
        results = [run.measure() for run in found]
        assert all(
            entry[0].half_width <= MARGIN / 2 for entry in results if entry[2].stop == "target"
        )
        rounds[members] = np.mean([len(entry[2].samples[2]) for entry in results])
    assert rounds[5] > 1.2 * rounds[1]
