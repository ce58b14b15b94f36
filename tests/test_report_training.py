"""What the report reads from training records: steps of a window, groups, GPUs, the ladder."""

import copy

import pytest

from apexbench.report import gpus
from apexbench.report.attribution import attribute, extras
from apexbench.report.cases import merge
from apexbench.report.fastest import winners
from apexbench.report.pair import factor
from apexbench.report.scaling import PIECES, WHOLE, fit, points
from apexbench.transformer.models import LADDER, PRESETS
from apexbench.transformer.recipe import SETS

import record_factory as factory  # isort: skip

SLOW, FAST = "fp32+torch+default", "fp16+apex+apex"


def ratio(case, slow=SLOW, fast=FAST):
    return factor(case, case.arm(slow), case.arm(fast))


def test_windows_of_several_steps_are_counted_per_step():
    [one], [two] = merge(factory.transformer()), merge(factory.transformer())
    for cell in two.records[0].cells:
        found = cell.quantities["step_time"]
        calls = 1 if cell.implementation.startswith("fp32") else 4
        found.samples = [calls * sample for sample in found.samples]
        found.calls_per_sample = calls
    assert ratio(two).value == pytest.approx(ratio(one).value)
    parts = [attribute(case, "fp32", "default").parts for case in (one, two)]
    for name, part in parts[0].items():
        assert parts[1][name].value == pytest.approx(part.value)


def grouped(records):
    """The same measurements as two records a process, FP32 in both."""
    result = []
    for record in records:
        for group, end in enumerate(("default", ("fused", "apex", "compile", "cudagraph"))):
            part = copy.deepcopy(record)
            part.cells = [
                cell for cell in part.cells
                if cell.implementation == SLOW or cell.implementation.endswith(end)
            ]  # fmt: skip
            part.config = {**part.config, "group": group, "recipes": [str(group)]}
            result.append(part)
    return result


def test_records_of_one_models_groups_are_one_case():
    whole = merge(factory.transformer(processes=2))
    divided = merge(grouped(factory.transformer(processes=2)))
    assert len(divided) == len(whole) == 1
    assert {arm.implementation for arm in divided[0].arms} == {
        arm.implementation for arm in whole[0].arms
    }
    assert ratio(divided[0]).value == pytest.approx(ratio(whole[0]).value)
    # An arm of both groups counts once a process.
    assert divided[0].time(divided[0].arm(SLOW)).processes == 2
    assert divided[0].arm(SLOW).samples == whole[0].arm(SLOW).samples


def test_arms_of_different_groups_are_compared_unpaired():
    [whole], [divided] = merge(factory.transformer()), merge(grouped(factory.transformer()))
    slow, fast = "fp16+torch+default", FAST
    paired, unpaired = (ratio(case, slow, fast) for case in (whole, divided))
    assert unpaired.value == pytest.approx(paired.value, rel=1e-3)
    assert unpaired.low < unpaired.value < unpaired.high


def test_flags_have_bars_and_never_stand_for_the_plain_recipe():
    records = factory.transformer()
    plain = records[0].cells[-1]
    assert plain.implementation == "bf16+torch+fused+compile+cudagraph"
    more = copy.deepcopy(plain)
    more.implementation += "+master"
    more.quantities["step_time"].samples = [
        sample // 2 for sample in more.quantities["step_time"].samples
    ]
    eager = copy.deepcopy(more)
    eager.implementation = "fp16+torch+fused+chunked"
    eager.details = {**eager.details, "precision": "fp16", "compile": False, "cudagraph": False}
    records[0].cells[:0] = [more, eager]
    [case] = merge(records)
    bars = extras(case)
    assert bars[f"master weights ({more.implementation})"].value == pytest.approx(2, rel=0.01)
    assert f"CUDA graph ({plain.implementation})" in bars
    [before] = merge(factory.transformer())
    for base in (("fp32", "default"), ("fp32", "fused")):
        assert attribute(case, *base).parts == attribute(before, *base).parts


def test_gpus_have_an_efficiency_and_win_nothing():
    records = factory.transformer()
    for name, speed in (("bf16+torch+fused", 3.6), (FAST, 3.0)):
        cell = copy.deepcopy(records[0].cell(name))
        cell.implementation += "+ddp"
        cell.details["gpus"] = 4
        for found in cell.quantities.values():
            found.samples = [round(sample / speed) for sample in found.samples]
            found.value, found.low, found.high = (
                value / speed for value in (found.value, found.low, found.high)
            )
        records[0].cells.append(cell)
    cases = merge(records)
    found = {entry.recipe: entry for entry in gpus.scalings(cases)}
    assert found["bf16+torch+fused"].efficiency.value == pytest.approx(0.9, rel=1e-3)
    assert found[FAST].speedup.value == pytest.approx(3, rel=1e-3)
    assert "an efficiency of 90.0 %" in gpus.sentences(cases)[0]
    assert all("data parallel" not in winner.name for winner in winners(cases))


def test_the_ladder_carries_claim_c6_for_every_piece():
    sizes = tuple((name, PRESETS[name].parameters()) for name in LADDER)
    cases = merge(factory.transformer(models=sizes))
    for followed in (*WHOLE, *PIECES):
        fast = [*followed.fast, *(["compile"] if followed.compiled else [])]
        assert {"+".join(followed.slow), "+".join(fast)} <= set(SETS["ladder"])
        found = points(cases, followed)
        assert [point.case for point in found] == list(LADDER)
        slope = fit(found, 0.99)
        assert slope.per_doubling.low <= slope.per_doubling.value <= slope.per_doubling.high
