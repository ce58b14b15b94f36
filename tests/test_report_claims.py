"""Claims, answers and attribution: each follows from the records and changes with them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable

import pytest

import record_factory as factory
from apexbench.records import Record
from apexbench.report import answer, claims
from apexbench.report.attribution import attribute, missing_cells, recipe
from apexbench.report.cases import merge
from apexbench.report.figures import scaling
from apexbench.report.pair import factor
from apexbench.report.scaling import PIECES, WHOLE, fit, points


def statuses(records: list[Record]) -> dict[str, str]:
    """Status of each claim."""
    return {claim.id: claim.status for claim in claims.evaluate(merge(records))}


def evidence(records: list[Record], id: str) -> str:
    """All sentences of one claim."""
    return " ".join(next(c for c in claims.evaluate(merge(records)) if c.id == id).evidence)


def tile(records: list[Record], component: str) -> answer.Tile:
    """The answer for one component."""
    return next(t for t in answer.tiles(merge(records), "Test GPU") if t.component == component)


def set_verdicts(
    records: list[Record], verdict: str, ratio: float, keep: Callable[[str], bool]
) -> list[Record]:
    """Give every comparison of the implementations kept this ratio and verdict."""
    for record in records:
        for comparison in record.comparisons:
            if keep(comparison.implementation):
                comparison.ratio, comparison.verdict = ratio, verdict
                comparison.low, comparison.high = ratio * 0.999, ratio * 1.001
    return records


def is_fused(name: str) -> bool:
    """Whether the factory's arm is Apex's."""
    return name.startswith("fused_")


@pytest.mark.parametrize(
    ("verdict", "ratio", "status", "build"),
    [
        ("faster", 1.5, "supported", "yes"),
        ("slower", 0.5, "refuted", "no"),
        ("same", 1.0, "refuted", "no"),
        ("unclear", 1.01, "mixed", "unclear"),
    ],
)
def test_c2_and_the_answer_follow_the_verdicts(
    verdict: str, ratio: float, status: str, build: str
) -> None:
    records = set_verdicts(factory.optimizer(), verdict, ratio, is_fused)
    assert statuses(records)["C2"] == status
    assert tile(records, "optimizer").answer == build


def test_a_tie_names_the_torch_arm_that_ties() -> None:
    records = set_verdicts(factory.optimizer(), "same", 1.0, is_fused)
    line = tile(records, "optimizer").line
    assert line.startswith("FusedAdam is as fast as torch adamw_compiled on this Test GPU (1.00×)")
    assert line.endswith("no reason to build Apex for it.")


def test_one_width_alone_is_named() -> None:
    found = tile(factory.norms(), "layer_norm")
    assert (found.answer, found.where) == ("only for", "float32, width 2048, forward + backward")
    assert "1 of 16 cases" in found.line


def compared(records: list[Record], verdicts: dict[int, tuple[str, str | None]]) -> answer.Tile:
    """The norm's tile; by case, Apex's verdict against torch's best eager and best (None: none)."""
    ratios = {"faster": 1.5, "same": 1.0, "slower": 0.5, "unclear": 1.01}
    for number, record in enumerate(records):
        eager, best = verdicts.get(number, ("slower", "slower"))
        own = {"torch_default": eager, "torch_eager_best": eager, "torch_best": best}
        record.comparisons = [c for c in record.comparisons if own[c.baseline] is not None]
        for found in record.comparisons:
            found.verdict = own[found.baseline]
            found.ratio = ratios[found.verdict]
            found.low, found.high = found.ratio * 0.999, found.ratio * 1.001
    return tile(records, "layer_norm")


def test_torch_compile_that_was_not_measured_is_not_beaten() -> None:
    none = compared(factory.norms(), dict.fromkeys(range(16), ("faster", None)))
    assert "and in none against" not in none.line
    assert none.line.endswith("; torch.compile or a CUDA graph was measured in none, so it was not "
                              "compared there.")  # fmt: skip
    some = compared(factory.norms(), {0: ("faster", None), 1: ("faster", "unclear")})
    assert some.line.endswith(
        "; against torch.compile or a CUDA graph, measured in 15 of the 16, it is shown to be "
        "faster in none."
    )
    every = compared(factory.norms(), {0: ("faster", "slower")})
    assert every.line.endswith(", and in none against torch.compile or a CUDA graph.")
    lost = compared(factory.norms(), {n: ("slower" if n else "same", None) for n in range(16)})
    assert lost.answer == "no"
    assert "the best that PyTorch ships" not in lost.line
    assert "never shown to be faster than torch's best eager arm" in lost.line


def test_a_win_hides_no_other_case() -> None:
    only = compared(factory.norms(), {0: ("faster", "faster")})
    assert only.line.endswith(": build Apex only for that.")
    more = compared(
        factory.norms(), {0: ("faster", "faster"), 1: ("faster", "slower"), 2: ("slower", None)}
    )
    assert "faster than everything PyTorch ships in 1 of 16 cases" in more.line
    assert "best eager arm in 1 more with fused_layer_norm (1.50× [" in more.line
    assert more.line.endswith("; torch.compile or a CUDA graph was not measured in 1 of the 16.")
    assert more.where.count("without torch.compile or a CUDA graph") == 1
    unclear = compared(factory.norms(), {0: ("faster", "faster"), 1: ("same", "unclear")})
    assert "only for" not in unclear.line
    assert unclear.line.endswith("; 1 is unclear.")


def test_other_optimizers_do_not_speak_for_fused_adam() -> None:
    records = factory.optimizer()
    for record in records:
        lamb = factory.cell("fused_lamb", 1e5, "apex", "step_time")
        record.cells.append(lamb)
        rival = record.cell("adamw_fused")
        record.comparisons.append(
            factory.compare("step_time", "fused_lamb", "torch_default", [rival], lamb)
        )
    assert statuses(records)["C2"] == "mixed"
    assert "fused_lamb" not in evidence(records, "C2")


def test_without_a_gpu_nothing_about_apex_is_claimed() -> None:
    records = factory.cpu_records()
    assert set(statuses(records).values()) == {claims.NOT_TESTED}
    assert "needs an NVIDIA GPU" in evidence(records, "C2")
    assert {t.answer for t in answer.tiles(merge(records), "CPU")} == {"not tested"}


def test_c1_is_supported_by_a_python_only_install() -> None:
    records = factory.cpu_records()
    apex = {"state": "python_only", "sentence": "Apex was built Python-only."}
    for record in records:
        record.provenance = factory.provenance(apex=apex)
    assert statuses(records)["C1"] == "supported"
    assert "Apex was built Python-only." in evidence(records, "C1")


def test_c4_reads_the_legacy_arm() -> None:
    record = factory.amp()[0]
    assert statuses([record])["C4"] == claims.NOT_TESTED
    assert "removed from Apex in 2025" in evidence([record], "C4")
    legacy = factory.cell("apex_amp_O1", 2.4e6, "apex-legacy", "step_time", details={"loss": 2.1})
    record.cells[-1] = legacy
    record.comparisons.append(
        factory.compare("step_time", "apex_amp_O1", "torch_default", [record.cell("fp32")], legacy)
    )
    assert statuses([record])["C4"] == "supported"


def test_shapley_values_multiply_to_the_whole_gain() -> None:
    case = merge(factory.transformer())[0]
    found = attribute(case, "fp32", "default")
    assert found is not None
    product = math.prod(part.value for part in found.parts.values())
    assert product == pytest.approx(found.total.value, rel=1e-9)


def test_shapley_recovers_planted_factors() -> None:
    """Independent factors: precision 4, norm 0.8, optimizer 1.25."""
    record = factory.transformer()[0]
    speed = {"fp32": 1.0, "fp16": 4.0, "torch": 1.0, "apex": 0.8}
    for cell in record.cells:
        precision, norm, optimizer, *_ = cell.implementation.split("+")
        if precision in ("fp32", "fp16"):
            ratio = speed[precision] * speed[norm] * (1.25 if optimizer == "apex" else 1.0)
            cell.quantities["step_time"] = factory.quantity(1e8 / ratio, spread=1e-6)
    found = attribute(merge([record])[0], "fp32", "default")
    assert found is not None
    values = {name: part.value for name, part in found.parts.items()}
    assert values == pytest.approx({"precision": 4.0, "norm": 0.8, "optimizer": 1.25}, rel=1e-4)


def test_an_incomplete_factorial_is_named_not_guessed() -> None:
    record = factory.transformer()[0]
    record.cells = [c for c in record.cells if c.implementation != "fp16+apex+default"]
    record.comparisons = []
    case = merge([record])[0]
    assert attribute(case, "fp32", "default") is None
    assert missing_cells(case, "fp32", "default") == ["fp16+apex+default"]
    assert "fp16+apex+default is not measured" in evidence([record], "C5")


def test_c5_needs_apex_to_add_something() -> None:
    assert statuses(factory.transformer())["C5"] == "mixed"
    assert "considerable where its interval lies above 1.10×" in evidence(
        factory.transformer(), "C5"
    )
    record = factory.transformer()[0]
    for cell in record.cells:
        if cell.details["norm"] == "apex":
            old = cell.quantities["step_time"].value
            cell.quantities["step_time"] = factory.quantity(old / 1.3)
    assert statuses([record])["C5"] == "supported"
    for comparison in record.comparisons:
        comparison.margin = 0.5  # the case's own margin says what is faster
    assert statuses([record])["C5"] == "mixed"


def test_c6_needs_four_sizes_and_reads_the_slope() -> None:
    assert statuses(factory.transformer(factory.LADDER[:3]))["C6"] == claims.NOT_TESTED
    cases = merge(factory.transformer(factory.LADDER))
    slope = fit(points(cases, WHOLE[0]), 0.99)
    assert slope is not None
    assert slope.per_doubling.low < slope.per_doubling.value < slope.per_doubling.high


@pytest.mark.parametrize(
    ("growth", "status"), [(1.1, "supported"), (1.0, "refuted"), (0.9, "refuted")]
)
def test_c6_finds_a_planted_slope(growth: float, status: str) -> None:
    records = factory.transformer(factory.LADDER)
    for record in records:
        parameters = record.cells[0].details["parameters"]
        gain = 2 * growth ** math.log2(parameters / 5e6)
        base = record.cell("fp32+torch+default").quantities["step_time"].value
        record.cell("fp16+apex+apex").quantities["step_time"] = factory.quantity(
            base / gain, seed=0
        )
        record.cell("fp32+torch+default").quantities["step_time"] = factory.quantity(base, seed=0)
    slope = fit(points(merge(factory.agree(records)), WHOLE[0]), 0.99)
    assert slope is not None
    assert slope.per_doubling.value == pytest.approx(growth, rel=1e-4)
    assert statuses(records)["C6"] == status


def test_each_piece_of_the_recipe_has_a_slope_of_its_own() -> None:
    records = factory.transformer(factory.LADDER)
    for record in records:
        doublings = math.log2(record.cells[0].details["parameters"] / 5e6)
        base = record.cell("fp16+torch+default").quantities["step_time"].value
        optimizer, norm = 1.2 * 0.9**doublings, 0.95 * 0.98**doublings
        for label, gain in (
            ("fp32+torch+default", 0.2),
            ("fp16+torch+default", 1.0),
            ("fp16+torch+apex", optimizer),
            ("fp16+apex+apex", optimizer * norm),
            ("bf16+torch+fused+compile", 0.4 * 1.03**doublings),
        ):
            record.cell(label).quantities["step_time"] = factory.quantity(base / gain, seed=0)
    said = evidence(factory.agree(records), "C6")
    slopes = {
        name: float(value)
        for name, value in re.findall(r"([A-Z][^:.]*): its speed-up .*? of ([0-9.]+)×", said)
    }
    planted = {
        "FusedAdam over AdamW, in fp16": 0.9,
        "FusedLayerNorm over LayerNorm, in fp16": 0.98,
        "The tutorial's recipe over FP32": 0.9 * 0.98,
        "Autocast to fp16 alone over FP32": 1.0,
        "Torch's bf16, fused and compiled over FP32": 1.03,
    }
    assert {name: slopes[name] for name in planted} == pytest.approx(planted, abs=2e-3)
    figure = scaling.draw(merge(records))
    assert figure is not None
    marks = html.unescape(figure.svg)
    for followed in (*WHOLE, *PIECES):
        assert f"<title>{followed.name}, ladder-5M, " in marks


def test_a_factor_is_paired_and_finds_the_right_recipe() -> None:
    case = merge(factory.transformer())[0]
    slow = recipe(case, "bf16", "torch", "fused")
    fast = recipe(case, "bf16", "torch", "fused", compiled=True)
    assert slow is not None
    assert fast is not None
    assert (slow.implementation, fast.implementation) == (
        "bf16+torch+fused",
        "bf16+torch+fused+compile",
    )
    ratio = factor(case, slow, fast)
    assert ratio.low < ratio.value < ratio.high
    assert ratio.value == pytest.approx(0.175 / 0.11, rel=0.05)
