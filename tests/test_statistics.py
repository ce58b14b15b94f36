"""The interval and the verdict, through the very stop rule that measurements use."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from apexbench import records
from apexbench.measuring import statistics, stopping

CONFIDENCE = 0.99


def skewed(random, rounds, block):
    return random.lognormal(0, 0.05, rounds)


def drifting(random, rounds, block):
    return (1 + 0.2 * np.linspace(0, 1, rounds)) * random.lognormal(0, 0.02, rounds)


def autocorrelated(random, rounds, block):
    noise = random.normal(0, 0.02, rounds)
    for index in range(1, rounds):
        noise[index] += 0.6 * noise[index - 1]
    return np.exp(noise)


def bimodal(random, rounds, block):
    return random.lognormal(0, 0.01, rounds) * np.where(random.random(rounds) < 0.3, 1.15, 1.0)


def by_allocation(random, rounds, block):
    """Each block's buffers have their own small effect on the arm."""
    effects = random.normal(0, 0.004, block.max() + 1)
    return random.lognormal(0, 0.02, rounds) * np.exp(effects[block])


SHAPES = [skewed, drifting, autocorrelated, bimodal, by_allocation]


def labels(blocks: int, rounds: int) -> np.ndarray:
    return np.repeat(np.arange(blocks), rounds)


ROUND_SECONDS = 0.0005


def measured(shape, random, factor: float, budget: float = 1.0):
    """The interval of log(A / B) through pilot and stop rule; B is ``factor`` times faster."""
    now = [0.0]

    def take(block, stop_at):
        block = np.array(block)
        now[0] += block.size * ROUND_SECONDS
        common = 1 + 0.1 * np.sin(np.arange(block.size) / 7)  # drift that both arms share
        a = 1000 * common * shape(random, block.size, block)
        b = 1000 * common * shape(random, block.size, block) / factor
        return a, b, block

    outcome = stopping.run(
        take,
        lambda taken: [stopping.Paired(np.log(taken[0]) - np.log(taken[1]), taken[2], 0.005)],
        lambda taken: taken[2].size,
        CONFIDENCE,
        30,
        budget,
        clock=lambda: now[0],
    )
    return statistics.log_ratio(*outcome.samples, CONFIDENCE), outcome


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [2.0, 0.04])
def test_coverage_is_near_nominal_through_the_stop_rule(shape, budget):
    random = np.random.default_rng(7)
    truth = math.log(1.03)
    runs = 600
    covered = sum(
        interval.low <= truth <= interval.high
        for interval, _ in (measured(shape, random, 1.03, budget) for _ in range(runs))
    )
    # 99 % nominal; a binomial with 600 trials at 97.5 % falls below this in one of a thousand runs
    assert covered >= stats.binom.ppf(0.001, runs, 0.975)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_stops_at_the_target_or_says_that_the_budget_ended(shape):
    random = np.random.default_rng(11)
    for budget in (0.02, 100):
        results = [measured(shape, random, 1.0, budget) for _ in range(60)]
        for interval, outcome in results:
            assert (interval.half_width <= 0.005) == (outcome.stop == "target")
        reached = np.mean([outcome.stop == "target" for _, outcome in results])
        assert reached >= 0.9 if budget == 100 else reached <= 0.5


def test_a_percentile_bootstrap_over_blocks_covers_less_often():
    """Why this module uses a trimmed-t interval: twenty blocks are too few for percentiles."""
    random = np.random.default_rng(3)
    ours = percentile = 0
    runs = 1000
    for _ in range(runs):
        values = random.exponential(1, 20) - random.exponential(1, 20)
        interval = statistics.trimmed_t(values, CONFIDENCE)
        ours += interval.low <= 0 <= interval.high
        means = random.choice(values, (500, 20)).mean(axis=1)
        low, high = np.percentile(means, [0.5, 99.5])
        percentile += low <= 0 <= high
    assert percentile < 0.985 * runs
    assert ours > percentile


positive = st.floats(10, 1e9, allow_nan=False)
times = st.integers(8, 60).flatmap(
    lambda size: st.tuples(
        st.lists(positive, min_size=size, max_size=size),
        st.lists(positive, min_size=size, max_size=size),
    )
)
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unclear": "unclear"}


def judged(interval, margin=0.01):
    return records.verdict(math.exp(interval.low), math.exp(interval.high), margin)


@given(times)
def test_swapping_the_arms_inverts_the_verdict(pair):
    a, b = pair
    block = np.arange(len(a)) // 2
    there, back = (statistics.log_ratio(*arms, block, CONFIDENCE) for arms in ((a, b), (b, a)))
    assert there.low == pytest.approx(-back.high, abs=1e-9)
    assert there.high == pytest.approx(-back.low, abs=1e-9)
    near = min(abs(abs(end) - math.log(1.01)) for end in (there.low, there.high))
    if near > 1e-9:
        assert judged(there) == OPPOSITE[judged(back)]


@given(times, st.floats(1e-3, 1e3))
def test_scaling_all_samples_changes_nothing(pair, factor):
    a, b = (np.array(entry) for entry in pair)
    block = np.arange(len(a)) // 2
    once = statistics.log_ratio(a, b, block, CONFIDENCE)
    scaled = statistics.log_ratio(a * factor, b * factor, block, CONFIDENCE)
    assert scaled.low == pytest.approx(once.low, abs=1e-9)
    assert scaled.high == pytest.approx(once.high, abs=1e-9)


@given(
    st.lists(st.integers(40, 44), min_size=20, max_size=80),
    st.integers(1, 64),
)
def test_quantised_samples_never_give_an_interval_narrower_than_the_tick(counts, tick):
    samples = np.array(counts, dtype=float) * tick
    block = np.arange(samples.size) // 4
    for other in (samples, np.full(samples.size, 42.0 * tick)):
        ratio = statistics.log_ratio(samples, other, block, CONFIDENCE, tick)
        shortest = min(np.median(samples), np.median(other))
        assert ratio.high - ratio.low >= tick / shortest * 0.999
    place = statistics.location(samples, block, CONFIDENCE, tick)
    assert place.high - place.low >= tick * 0.999


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.9, 1.0, 1.1]),
    st.integers(0, 159),
    st.booleans(),
)
def test_one_outlier_of_a_thousand_times_changes_no_verdict(seed, factor, place, in_a):
    random = np.random.default_rng(seed)
    block = labels(20, 8)
    a, b = random.lognormal(0, 0.01, 160), random.lognormal(0, 0.01, 160) / factor
    before = judged(statistics.log_ratio(a, b, block, CONFIDENCE))
    (a if in_a else b)[place] *= 1000
    assert judged(statistics.log_ratio(a, b, block, CONFIDENCE)) == before != "unclear"


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_one_outlier_changes_no_verdict_where_blocks_are_short(rounds):
    random = np.random.default_rng(5)
    block = labels(20, rounds)
    for factor, expected in ((1.0, "same"), (1.1, "faster"), (0.9, "slower")):
        a = random.lognormal(0, 0.002, 20 * rounds)
        b = random.lognormal(0, 0.002, 20 * rounds) / factor
        a[7] *= 1000
        assert judged(statistics.log_ratio(a, b, block, CONFIDENCE)) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.011, 1.2, "faster"),
        (1.009, 1.2, "unclear"),
        (0.8, 0.989, "slower"),
        (0.8, 0.995, "unclear"),
        (0.991, 1.009, "same"),
        (0.95, 1.05, "unclear"),
    ],
)
def test_the_verdict_comes_from_the_interval_alone(low, high, expected):
    assert records.verdict(low, high, 0.01) == expected


def test_faster_than_the_best_means_faster_than_every_member():
    intervals = [statistics.Interval(0.2, 0.1, 0.3), statistics.Interval(0.05, -0.01, 0.11)]
    best = statistics.strongest(intervals)
    assert (best.value, best.low, best.high) == (0.05, -0.01, 0.11)
    assert statistics.member_confidence(0.99, 2) == pytest.approx(0.995)


def test_outliers_are_counted_and_kept():
    random = np.random.default_rng(2)
    samples = random.normal(1000, 10, 200)
    assert statistics.outliers(samples) == 0
    samples[[3, 90]] = 5000, 500
    assert statistics.outliers(samples) == 2
    assert statistics.outliers(np.full(30, 7)) == 0


def test_short_calls_have_a_wider_margin():
    assert statistics.margin_for(29_999) == 0.02
    assert statistics.margin_for(30_000) == 0.01


def test_the_plan_fits_the_budget():
    random = np.random.default_rng(1)
    noisy = random.normal(0, 0.2, 30)
    plan = stopping.plan([stopping.Paired(noisy, labels(6, 5), 0.005)], CONFIDENCE, 0.01, 1.0)
    assert not plan.reaches_target
    assert len(plan.labels) <= 100
    assert set(plan.labels) == set(range(plan.blocks))
