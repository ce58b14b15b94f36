"""The loss gate: non-inferior, diverged or inconclusive against FP32, paired over seeds."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

import record_factory as factory
from apexbench.records import Record
from apexbench.report import loss_gate
from apexbench.report.cases import merge
from apexbench.report.ceilings import measured
from apexbench.report.tables import component

FAST = "fp16+torch+fused"


def trained(differences: list[float | None], spread: float = 0.3) -> Record:
    """A model whose fast recipe differs from FP32 by these nats/token, a seed each.

    The seeds themselves differ by ``spread``, which pairing has to take out.
    """
    record = factory.transformer()[0]
    rng = random.Random(1)
    base = [3.0 + rng.uniform(-spread, spread) for _ in differences]
    for cell in record.cells:
        off = differences if cell.implementation == FAST else [0.0] * len(base)
        cell.details["held_out_losses"] = [
            [seed, None if d is None else loss + d]
            for seed, (loss, d) in enumerate(zip(base, off, strict=True))
        ]
    return record


def gate(differences: list[float | None]) -> loss_gate.Gate | None:
    case = merge([trained(differences)])[0]
    arm = case.arm(FAST)
    assert arm is not None
    return loss_gate.judge(case, arm)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.001, -0.001, 0.002, 0.0, -0.002], "non-inferior"),
        ([-0.5, -0.51, -0.49, -0.5, -0.5], "non-inferior"),
        ([0.05, 0.051, 0.049, 0.05, 0.052], "diverged"),
        ([0.02, 0.03, 0.01, 0.02, 0.025], "inconclusive"),
        ([0.0, 0.2, -0.2, 0.1, -0.1], "inconclusive"),
        ([0.0, 0.0, None, 0.0, 0.0], "diverged"),
    ],
)
def test_the_verdict_follows_the_bounds(differences, verdict):
    found = gate(differences)
    assert found is not None
    assert found.verdict == verdict


def test_four_seeds_are_not_judged():
    assert gate([0.0] * 4) is None


def test_the_bounds_are_one_sided_student_t_over_paired_seeds():
    differences = [0.001, 0.004, -0.002, 0.003, 0.0]
    found = gate(differences)
    mean = sum(differences) / 5
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / 4)
    half = stats.t.ppf(0.99, 4) * deviation / math.sqrt(5)
    assert (found.low, found.difference, found.high) == pytest.approx(
        (mean - half, mean, mean + half)
    )


def test_a_recipe_at_the_margin_passes_at_most_one_time_in_a_hundred():
    """The false-pass rate of the rule, at a true difference of exactly the margin."""
    rng = random.Random(7)
    passed = 0
    for _ in range(2000):
        differences = [rng.gauss(loss_gate.MARGIN, 0.01) for _ in range(5)]
        mean = sum(differences) / 5
        error = math.sqrt(sum((d - mean) ** 2 for d in differences) / 4 / 5)
        passed += mean + stats.t.ppf(loss_gate.CONFIDENCE, 4) * error <= loss_gate.MARGIN
    assert passed / 2000 < 0.02


def test_the_table_and_the_threats_say_what_the_gate_found():
    record = trained([0.05, 0.051, 0.049, 0.05, 0.052])
    cases = merge([record])
    table = component("transformer", cases, measured(cases), 100)
    column = table.columns.index("loss vs FP32")
    cells = {row[1].text: row[column] for row in table.rows}
    assert cells["fp32+torch+default"].text == "baseline"
    assert (cells[FAST].verdict, cells[FAST].tone) == ("diverged", "bad")
    assert cells[FAST].text.startswith("+0.050 [+0.0")
    assert cells["fp32+torch+fused"].verdict == "non-inferior"
    sentence = loss_gate.sentence(cases)
    assert sentence is not None
    assert f"diverged: {FAST} on gpt2-124M" in sentence
    assert loss_gate.sentence(merge(factory.transformer())).endswith("this run trained 0 seeds.")
