"""A name is called fastest only where the intervals separate it from every other."""

from __future__ import annotations

from dataclasses import replace

import pytest

import record_factory as factory
from apexbench.report import answer, ceilings
from apexbench.report.cases import merge
from apexbench.report.fastest import TIE, winners
from apexbench.report.figures import ceiling, losses, times, transformer
from apexbench.report.leading import leaders
from apexbench.report.repeats import Estimate, relative

MS = factory.MS


def amp(factors: dict[str, float], spread: float = 0.002):
    """The amp case with these arms at ``factor × 1 ms``, ``spread`` the noise of a sample."""
    cells = []
    for seed, (name, factor) in enumerate(factors.items()):
        cell = factory.cell(name, factor * MS, kind="step_time")
        cell.quantities["step_time"] = factory.quantity(factor * MS, 40, spread, seed)
        cells.append(cell)
    eager = tuple(factors)
    return merge(factory.agree([factory.record("amp", "mlp", cells, "step_time", eager[0], eager)]))


NEAR, FAR = {"torch_fp32": 1.0, "torch_tf32": 1.002}, {"torch_fp32": 1.5, "torch_tf32": 1.0}


def test_who_leads_is_a_question_of_intervals() -> None:
    [far], [near] = amp(FAR), amp(NEAR)
    assert leaders(far, far.arms).sole is far.arm("torch_tf32")
    assert leaders(near, near.arms).sole is None
    assert {arm.implementation for arm in leaders(near, near.arms).arms} == set(NEAR)
    [noisy] = amp({"torch_fp32": 1.0, "torch_tf32": 1.05}, spread=0.3)
    assert leaders(noisy, noisy.arms).sole is None
    assert leaders(far, []) is None


def test_a_verdict_of_the_record_is_not_contradicted() -> None:
    [far] = amp(FAR)
    [versus] = [v for v in far.arm("torch_tf32").versus.values() if v.baseline == "torch_default"]
    ratio = replace(versus.ratio, low=0.99)
    unclear = replace(versus, ratio=ratio, verdict="unclear")
    far.arm("torch_tf32").versus["step_time", "torch_default"] = unclear
    assert leaders(far, far.arms).sole is None


def test_arms_timed_in_different_processes_still_compare() -> None:
    records = [case.records[0] for _ in range(2) for case in amp(FAR)]
    for process, (record, kept) in enumerate(zip(records, FAR, strict=True)):
        record.process = process
        record.cells = [cell for cell in record.cells if cell.implementation == kept]
        record.comparisons = []
    [case] = merge(records)
    assert leaders(case, case.arms).sole is case.arm("torch_tf32")
    assert relative(Estimate(2, 1e-308, 1e308), Estimate(1, 1e-308, 1e308)).high > 1e300


@pytest.mark.parametrize(
    ("factors", "name", "line"),
    [
        (FAR, "torch TF32", "Fastest in 1 of 1 case; against torch's default it is faster in 1"),
        (NEAR, TIE, "In the one case the fastest are not separated from each other: torch TF32 "),
    ],
)
def test_the_tile_of_a_cpu_names_no_winner_of_a_tie(factors, name, line) -> None:
    [winner] = winners(amp(factors))
    assert winner.name == name
    if name == TIE:
        assert winner.line == (
            "In the one case the fastest are not separated from each other: torch TF32 and "
            "torch float32."
        )
    assert winner.line.startswith(line)


def test_a_tile_counts_the_cases_that_tie() -> None:
    cases = [*amp(FAR), *amp(FAR), *amp(NEAR)]
    [winner] = winners(cases)
    assert winner.name == "torch TF32"
    assert winner.line.startswith("Fastest in 2 of 3 cases")
    assert winner.line.endswith("In 1 the fastest are not separated: torch TF32 and torch float32.")


def test_the_captions_of_times_name_no_winner_of_a_tie() -> None:
    assert "torch TF32 is fastest, 1.00" in times.draw("amp", amp(FAR)).caption
    caption = times.draw("amp", amp(NEAR)).caption
    assert "torch TF32 is fastest" not in caption
    assert "no arm is fastest: torch" in caption
    assert "are not separated" in caption


def test_the_caption_of_throughput_names_no_winner_of_a_tie() -> None:
    records = factory.transformer()
    best, second = (f"bf16+torch+fused+compile{more}" for more in ("+cudagraph", ""))
    limits = {}
    assert f"{best} is fastest with" in transformer.draw(merge(records), limits)[0].caption
    found = {cell.implementation: cell.quantities for cell in records[0].cells}
    found[second]["step_time"] = found[best]["step_time"]
    [figure] = transformer.draw(merge(records), limits)
    assert "no recipe is fastest:" in figure.caption
    assert "are not separated" in figure.alt


def test_the_highest_share_of_a_ceiling_says_what_reaches_as_high() -> None:
    def alt(records):
        cases = merge(factory.ceilings() + records)
        own = [case for case in cases if case.component == "optimizer"]
        return ceiling.draw("optimizer", own, ceilings.measured(cases)).alt

    records = factory.optimizer()
    for record in records:
        record.cell("adamw_fused").quantities = dict(record.cell("adamw_compiled").quantities)
    assert "not separated from adamw_" in alt(records)
    records[0].cell("adamw_compiled").quantities["step_time"] = factory.quantity(1.0 * MS)
    assert "not separated" not in alt(records)


def test_the_rival_that_apex_loses_to_is_named_only_where_it_leads() -> None:
    records = factory.optimizer()
    for record in records:
        for name in ("fused_adam", "fused_adam_capturable"):
            record.cell(name).quantities["step_time"] = factory.quantity(90 * MS)
        for comparison in record.comparisons:
            if comparison.implementation.startswith("fused_adam"):
                comparison.ratio, comparison.low, comparison.high = 0.2, 0.19, 0.21
                comparison.verdict = "slower"
    [tile] = answer.tiles(merge(records), "GPU")
    assert "is slower than torch adamw_compiled in all 2 cases" in tile.line
    for record in records:
        record.cell("adamw_fused").quantities = record.cell("adamw_compiled").quantities
    [tile] = answer.tiles(merge(records), "GPU")
    assert "is slower than the best that PyTorch ships (torch adamw_" in tile.line
    assert ", not separated) in all 2 cases" in tile.line


def test_losses_without_enough_seeds_name_no_best_recipe() -> None:
    caption = losses.draw(merge(factory.transformer())).caption
    assert "no recipe is shown to learn better or worse: that needs more seeds" in caption
