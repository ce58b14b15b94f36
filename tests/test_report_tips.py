"""Every mark of every figure says its value with interval, unit and n; shares and rates too."""

from __future__ import annotations

import re

import pytest

import record_factory as factory
from apexbench.report import ceilings, evidence, loss_gate, methods, numbers
from apexbench.report.cases import merge
from apexbench.report.document import build

INTERVAL = re.compile(r"\[[^\]]+, [^\]]+\]")


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tips") / "run"
    records = [*factory.gpu_records()[:-1], *factory.transformer(factory.LADDER[:1], 1)]
    return build(evidence.load(factory.write_run(folder, records)))


def tips(figure):
    return [tip for tip in re.findall(r"<title>(.*?)</title>", figure.svg, re.S) if ":" in tip]


def test_every_mark_has_its_interval_and_how_many_samples(document):
    told = {figure.id: tips(figure) for figure in document.figures}
    assert sum(map(len, told.values())) > 100
    for name, found in told.items():
        if name == "transformer-loss":
            assert all(
                "at step" in tip and ("n = " in tip or "no held-out" in tip) for tip in found
            )
            continue
        for tip in found:
            measured = re.search(r"\d", tip.split(":", 1)[1]) and "unavailable" not in tip
            if measured and "could not" not in tip:
                assert INTERVAL.search(tip), (name, tip)
                assert "n = " in tip, (name, tip)


def test_a_share_and_its_ceiling_carry_both_intervals():
    cases = merge(factory.gpu_records())
    limits = ceilings.measured(cases)
    assert all(limit.low < limit.per_second < limit.high for limit in limits.values())
    shares = [
        (case, arm, share)
        for case in cases
        for arm in case.arms
        if (share := ceilings.share(case, arm, case.quantity, limits)) is not None
    ]
    assert shares
    for case, arm, share in shares:
        time = case.time(arm)
        assert share.low < share.value * time.value / time.high
        assert share.high > share.value * time.value / time.low


def test_the_loss_gate_is_told_with_its_own_numbers(monkeypatch):
    monkeypatch.setattr(loss_gate, "CONFIDENCE", 0.95)
    monkeypatch.setattr(loss_gate, "MARGIN", 0.5)
    [text] = [entry["text"] for entry in methods.sections([]) if entry["title"] == "Training loss"]
    assert "one-sided 95 % Student-t bound of its mean difference is at most 0.5 nats" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (2.04e-7, "2.04e-07"), (0.0123, "0.0123"), (0.001, "0.00100")]
)
def test_small_errors_have_three_digits(value, text):
    assert numbers.small(value) == text
