"""`apexbench recommend`: the winner, its code, what Apex would cost; from records alone."""

import json
import subprocess
import sys
import types

import pytest

from apexbench.errors import UserError
from apexbench.report import numbers, recommend
from apexbench.report.recipe_code import lines
from apexbench.report.recommend import Cost
from apexbench.report.repeats import Estimate
from apexbench.transformer.recipe import every_recipe, parse

import record_factory as factory  # isort: skip


def run(tmp_path, change=None, **files):
    records = factory.transformer()
    for cell in records[0].cells:
        factor = (change or {}).get(cell.implementation, 1)
        for quantity in cell.quantities.values():
            quantity.samples = [round(sample * factor) for sample in quantity.samples]
            quantity.value, quantity.low, quantity.high = (
                factor * value for value in (quantity.value, quantity.low, quantity.high)
            )
    folder = factory.write_run(tmp_path / "run", factory.agree(records))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_torch_is_recommended_where_apex_is_no_faster(tmp_path):
    text = recommend.recommend(run(tmp_path, image={"apex": {"seconds": 138.0}}))
    eager, compiled = text.split("with torch.compile or a CUDA graph:")
    assert "gpt2-124M on Test GPU 9000 (torch 2.11.0+cu130, 16,384 tokens a step)" in eager
    assert "without torch.compile: bf16+torch+fused," in eager
    assert "No gain to pay for 2.30 minutes to build" in eager
    assert "AdamW(model.parameters(), lr=lr, fused=True)" in eager
    assert "FusedAdam(" not in eager
    assert "bf16+torch+fused+compile+cudagraph" in compiled
    assert "No recipe with Apex is in this run." in compiled
    assert "ms less than torch's default (fp32+torch+default, 304" in compiled


def test_apex_is_recommended_where_it_pays_and_says_when(tmp_path):
    image = {"apex": {"seconds": 3600.0}, "size_bytes": 9 * 2**30}
    folder = run(tmp_path, {"bf16+apex+apex": 0.5}, image=image)
    text = recommend.recommend(folder, "gpt2-124M").split("with torch.compile or")[0]
    assert "without torch.compile: bf16+apex+apex," in text
    assert "is faster than torch's fastest, bf16+torch+fused: 1.9" in text
    assert "60.0 minutes to build and an image of 9.00 GiB: paid back after 2.0" in text
    assert "from apex.optimizers import FusedAdam" in text
    assert "from apex.normalization import FusedLayerNorm  # for each nn.LayerNorm" in text
    told = recommend.recommend(folder, build_minutes=120)
    assert "120 minutes to build" in told


def test_break_even_is_the_build_over_the_part_of_the_time_that_is_saved():
    said = recommend._break_even(Estimate(1.1, 1.05, 1.2), Cost(3600, None))
    assert "after 11.0 hours of training [6.00, 21.0]" in said
    assert "give --build-minutes" in recommend._break_even(Estimate(1.1, 1.05, 1.2), Cost(None, 1))


def test_a_recipe_that_learns_worse_is_not_recommended(tmp_path):
    records = factory.transformer()
    for cell in records[0].cells:
        worse = 0.5 if cell.implementation.startswith("bf16") else 0.0
        cell.details["held_out_losses"] = [[seed, 4 + worse + seed / 1e5] for seed in range(5)]
    text = recommend.recommend(factory.write_run(tmp_path / "run", records))
    assert "without torch.compile: fp16+torch+fused," in text
    assert "a CUDA graph: none of 2 recipes learns as well as FP32." in text


def losing(record, label, change=0.0, seeds=5):
    """Give a recipe and FP32 held-out losses of so many seeds."""
    for cell in record.cells:
        if cell.implementation in (label, "fp32+torch+default"):
            more = change if cell.implementation == label else 0.0
            cell.details["held_out_losses"] = [[s, 4 + more + s / 1e5] for s in range(seeds)]


@pytest.mark.parametrize(
    ("change", "seeds", "said"),
    [
        (0.0, 5, "loss: as good as FP32's within 0.02, +0.000 [+0.000, +0.000] nats/token"),
        (0.0, 4, "loss: not tested (needs 5 seeds of this recipe and of fp32+torch+default; this "),
        (0.0, 1, "this run trained 1): it may learn worse than FP32."),
    ],
)
def test_the_loss_of_a_recommendation_is_tested_or_said_not_to_be(tmp_path, change, seeds, said):
    records = factory.transformer()
    losing(records[0], "bf16+torch+fused", change, seeds)
    text = recommend.recommend(factory.write_run(tmp_path / "run", records))
    eager, compiled = text.split("with torch.compile or a CUDA graph:")
    assert "without torch.compile: bf16+torch+fused," in eager
    assert said in eager
    assert "loss: not tested" in compiled


def test_an_inconclusive_loss_promises_nothing(tmp_path):
    records = factory.transformer()
    losing(records[0], "bf16+torch+fused")
    cell = records[0].cell("bf16+torch+fused")
    cell.details["held_out_losses"] = [[s, 4 + (s % 2) / 10] for s in range(5)]
    text = recommend.recommend(factory.write_run(tmp_path / "run", records))
    assert "loss: inconclusive, +0.040 [" in text
    assert "over 5 seeds: it is not shown to learn as well as FP32." in text


def noisy(records, labels, spread=0.05):
    """Times of these recipes that nothing separates: the same median, much noise."""
    value = records[0].cell(labels[0]).quantities["step_time"].value
    for seed, label in enumerate(labels):
        found = factory.quantity(value * (0.95 + 0.002 * seed), 40, spread, seed)
        records[0].cell(label).quantities["step_time"] = found
    return factory.agree(records)


def test_of_recipes_that_tie_the_simplest_is_named_and_the_tie_is_said(tmp_path):
    labels = ["fp16+torch+fused", "bf16+torch+fused"]
    labels += ["bf16+torch+apex", "fp16+torch+apex"]
    text = recommend.recommend(
        factory.write_run(tmp_path / "run", noisy(factory.transformer(), labels))
    )
    eager = text.split("with torch.compile or")[0]
    assert "without torch.compile: bf16+torch+fused," in eager
    assert "It ties with fp16+torch+" in eager
    assert ", not separated; it is the simplest of them." in eager
    assert "GradScaler" not in eager


def weakened(record, name, baseline):
    """Take a record's verdict back: the interval reaches into the margin."""
    [found] = [c for c in record.comparisons if (c.implementation, c.baseline) == (name, baseline)]
    found.low, found.verdict = 1.001, "unclear"


def faster_apex(factor):
    """The factorial with bf16+apex+apex so many times as fast, nothing else changed."""
    records = factory.transformer()
    cell = records[0].cell("bf16+apex+apex")
    value = records[0].cell("bf16+torch+fused").quantities["step_time"].value
    cell.quantities["step_time"] = factory.quantity(value / factor, 40, seed=77)
    return factory.agree(records)


def test_apex_is_not_recommended_against_the_records_own_verdict(tmp_path):
    records = faster_apex(1.05)
    text = recommend.recommend(factory.write_run(tmp_path / "one", records))
    assert "\n  without torch.compile: bf16+apex+apex," in text
    [shown] = [
        numbers.ratio(c.ratio, c.low, c.high)
        for c in records[0].comparisons
        if (c.implementation, c.baseline) == ("bf16+apex+apex", "torch_eager_best")
    ]
    assert f"torch's fastest, bf16+torch+fused: {shown}, " in text
    weakened(records[0], "bf16+apex+apex", "torch_eager_best")
    text = recommend.recommend(factory.write_run(tmp_path / "two", records))
    assert "\n  without torch.compile: bf16+torch+fused," in text
    assert "bf16+apex+apex is unclear against torch's fastest, bf16+torch+fused: 1.05" in text
    assert "No gain to pay for" in text


def test_apex_is_measured_by_torchs_fastest_and_the_cases_margin(tmp_path):
    """The simplest of torch's recipes that tie is slower than their fastest."""
    records = faster_apex(1.03)
    fastest = records[0].cell("bf16+apex+apex").quantities["step_time"].value * 1.004
    records[0].cell("fp16+torch+fused").quantities["step_time"] = factory.quantity(
        fastest, 40, 0.05, 3
    )
    text = recommend.recommend(factory.write_run(tmp_path / "tie", factory.agree(records)))
    assert "\n  without torch.compile: bf16+torch+fused," in text
    assert "unclear against torch's fastest, fp16+torch+fused: " in text
    records = faster_apex(1.03)
    for found in records[0].comparisons:
        found.margin = 0.05
    text = recommend.recommend(factory.write_run(tmp_path / "wide", factory.agree(records)))
    assert "FusedAdam(" not in text


def test_a_compiled_recipe_that_ties_with_the_eager_one_is_not_recommended(tmp_path):
    labels = ["bf16+torch+fused", "bf16+torch+fused+compile", "bf16+torch+fused+compile+cudagraph"]
    folder = factory.write_run(tmp_path / "run", noisy(factory.transformer(), labels))
    text = recommend.recommend(folder)
    assert "\n  bf16+torch+fused+compile is unclear against bf16+torch+fused, " in text
    assert text.endswith(": stay without torch.compile.")
    assert ": stay" not in recommend.recommend(run(tmp_path))


@pytest.mark.parametrize("model", ["gpt2-125M", "x"])
def test_what_is_not_there_is_one_sentence(tmp_path, model):
    with pytest.raises(UserError, match=f"has no model named '{model}'"):
        recommend.recommend(run(tmp_path), model)
    other = factory.write_run(tmp_path / "other", factory.amp())
    with pytest.raises(UserError, match="holds no training records"):
        recommend.recommend(other)


def test_a_machine_without_apex_says_why(tmp_path):
    records = factory.transformer()
    for index, cell in enumerate(records[0].cells):
        if cell.package == "apex":
            records[0].cells[index] = factory.lost(
                cell.implementation, "apex", "unavailable", "needs an NVIDIA GPU", None
            )
    text = recommend.recommend(factory.write_run(tmp_path / "run", records))
    assert "Apex's fp32+torch+apex is unavailable: needs an NVIDIA GPU." in text


def test_it_imports_no_torch():
    code = "import sys, apexbench.report.recommend as m; sys.exit('torch' in sys.modules)"
    path = str(recommend.__file__).rsplit("/apexbench/", 1)[0]
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


def test_the_code_of_every_recipe_is_python():
    for recipe in every_recipe():
        compile("\n".join(lines(recipe, "cuda", "rms")), recipe.label, "exec")


@pytest.mark.parametrize(
    "label",
    ["fp32+torch+default", "fp32+torch+forloop", "bf16+torch+fused", "fp16+torch+fused",
     "bf16+torch+fused+master", "bf16+torch+default+master"],
)  # fmt: skip
def test_the_code_trains(label):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

        def forward(self, x, y):
            first = self.head.weight.dtype
            return torch.nn.functional.cross_entropy(self.head(self.norm(x.to(first))).float(), y)

    scope = {"model": Model(), "lr": 1e-2}
    exec("\n".join(lines(parse(label), "cpu")), scope)
    x, y = torch.randn(16, 8), torch.randint(4, (16,))
    losses = [float(scope["step"](x, y)) for _ in range(40)]
    assert isinstance(scope["step"], types.FunctionType)
    assert losses[-1] < losses[0] - 0.2
