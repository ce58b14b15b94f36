"""A pair of implementations has one interval and one verdict in all of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from apexbench.measuring.contention import BUSY_CPU
from apexbench.report import evidence
from apexbench.report.attribution import attribute, extras
from apexbench.report.cases import merge
from apexbench.report.leading import leaders
from apexbench.report.pair import factor, pair, rivals

import record_factory as factory  # isort: skip

REFERENCE = Path(__file__).parents[1] / "results/reference/nvidia-h200"
PLAIN, GRAPH = (f"bf16+torch+fused+compile{more}" for more in ("", "+cudagraph"))
MS = factory.MS


@pytest.fixture(scope="module")
def measured():
    """The cases of the versioned reference, which a GPU measured."""
    return merge(evidence.load(REFERENCE).records)


def test_pairs_are_computed_as_the_record_computes_them(measured):
    """The record's verdict against a set is the least of its pairs, at the same confidence."""
    checked = equal = 0
    for case in measured:
        for arm in case.arms:
            versus = case.versus(arm, "torch_best")
            members = [case.arm(name) for name in versus.members] if versus else []
            if len(members) < 2 or {rivals(case, m, arm) for m in members} != {len(members)}:
                continue
            lows = [pair(case, member, arm).ratio.low for member in members]
            assert min(lows) >= versus.ratio.low * (1 - 1e-9)
            checked += 1
            equal += min(lows) == pytest.approx(versus.ratio.low, rel=1e-9)
    assert equal > 0.8 * checked > 80  # elsewhere torch's default, of its own record, is nearest


def test_a_bar_and_a_sentence_say_the_same_of_two_recipes(measured):
    [case] = [case for case in measured if case.component == "transformer"]
    found = leaders(case, case.arms)
    bar = extras(case)[f"CUDA graph ({GRAPH})"]
    assert {arm.implementation for arm in found.arms} == {PLAIN, GRAPH}
    assert bar == factor(case, case.arm(PLAIN), case.arm(GRAPH))
    assert bar.low < 1.01  # not separated


def between(factor, spread=0.0):
    """The factorial with the captured recipe so many times as fast as the compiled one."""
    records = factory.transformer()
    value = records[0].cell(PLAIN).quantities["step_time"].value
    for seed, (name, times) in enumerate(((PLAIN, 1.0), (GRAPH, factor))):
        records[0].cell(name).quantities["step_time"] = factory.quantity(
            value / times, 40, spread, seed
        )
    torch = [cell for cell in records[0].cells if cell.package == "torch"]
    records[0].comparisons += [
        factory.compare("step_time", own.implementation, "torch_best", others, own)
        for own in torch
        if (others := [cell for cell in torch if cell is not own])
    ]
    return factory.agree(records)


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.02, 0.025, 0.03, 0.04, 0.06])
def test_one_statement_at_any_noise(spread):
    """A bar beyond the margin and a tie of the same two never stand in one report."""
    [case] = merge(between(1.03, spread))
    slow, fast = case.arm(PLAIN), case.arm(GRAPH)
    found = leaders(case, case.arms)
    apart = min(extras(case)[f"CUDA graph ({GRAPH})"].low, 1 / factor(case, fast, slow).high)
    assert (found.sole is fast) == (apart > 1.01) or found.arms[0] is not fast
    back, forth = pair(case, slow, fast).ratio, pair(case, fast, slow).ratio
    assert (back.low, back.high) == pytest.approx((1 / forth.high, 1 / forth.low))
    versus = case.versus(fast, "torch_best")
    assert (found.sole is fast) == (versus.verdict == "faster")


def test_the_allowance_is_that_of_the_largest_baseline_the_two_meet_in():
    [case] = merge(between(1.03, 0.02))
    slow, fast = case.arm(PLAIN), case.arm(GRAPH)
    size = len(case.versus(fast, "torch_best").members)
    assert rivals(case, slow, fast) == rivals(case, fast, slow) == size > 5
    wide = pair(case, slow, fast).ratio
    for arm in case.arms:
        arm.versus = {}
    narrow = pair(case, slow, fast).ratio
    assert rivals(case, slow, fast) == 1
    assert narrow.value == wide.value
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_records_comparison_of_exactly_two_stands():
    [case] = merge(factory.transformer())
    base, fast = case.arm("fp32+torch+default"), case.arm("fp16+apex+apex")
    versus = replace(case.versus(fast, "torch_default"), verdict="unclear")
    fast.versus["step_time", "torch_default"] = versus
    assert pair(case, base, fast).ratio == versus.ratio
    assert pair(case, base, fast).verdict == pair(case, fast, base).verdict == "unclear"
    whole = attribute(case, "fp32", "default").total
    assert (whole.low, whole.high) == (versus.ratio.low, versus.ratio.high)


def test_the_margin_is_the_cases_and_a_busy_cpu_leaves_a_pair_unclear():
    [case] = merge(between(1.03))
    slow, fast = case.arm(PLAIN), case.arm(GRAPH)
    assert pair(case, slow, fast).verdict == "faster"
    assert pair(case, fast, slow).verdict == "slower"
    for key, versus in fast.versus.items():
        fast.versus[key] = replace(versus, margin=0.05)
    assert pair(case, slow, fast).verdict == "same"
    for key, versus in fast.versus.items():
        fast.versus[key] = replace(versus, flags=(BUSY_CPU,))
    assert pair(case, slow, fast).verdict == "unclear"


def test_no_one_leads_whom_the_record_does_not_show_to_beat_a_set():
    [case] = merge(between(1.05))
    fast = case.arm(GRAPH)
    assert leaders(case, case.arms).sole is fast
    versus = case.versus(fast, "torch_best")
    fast.versus["step_time", "torch_best"] = replace(versus, verdict="unclear")
    assert [arm.implementation for arm in leaders(case, case.arms).arms] == [GRAPH, PLAIN]
