"""How training becomes jobs: models, GPUs, groups of recipes, texts; what the presets train."""

import json

import pytest

from apexbench import plan as plans
from apexbench.config import load
from apexbench.errors import UserError
from apexbench.plan import Plan
from apexbench.report.loss_gate import FEWEST_SEEDS
from apexbench.transformer.models import LADDER, PRESETS
from apexbench.transformer.recipe import SETS, Recipe, divided, recipes_for


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "environment", lambda device: {})
    monkeypatch.setenv("APEXBENCH_THREADS", "1")

    def plan(**transformer):
        (tmp_path / "config.yaml").write_text("{}\n")
        config = load(tmp_path, {"preset": "quick", "transformer": transformer})
        return Plan(config, tmp_path, "")

    monkeypatch.setattr(Plan, "slice", lambda self, component: {})
    return plan


def cases(plan, model):
    return json.loads(plan.training_request(model, 0))["cases"]


def test_a_grid_on_several_gpus_is_a_job_of_its_own(planned):
    plan = planned(
        models=["tiny"], recipes=["tutorial"], also=[{"recipes": ["scaling"], "gpus": 8}]
    )
    assert list(plan.models) == ["tiny", "tiny-x8"]
    assert "results/records/transformer/tiny-x8-p0/index.json" in plan.indexes
    [alone], [several] = cases(plan, "tiny"), cases(plan, "tiny-x8")
    assert "gpus" not in alone
    assert several["gpus"] == plan.gpus("tiny-x8") == 8
    assert several["recipes"] == ["scaling"]


def test_a_further_grid_has_its_own_steps_and_budget(planned):
    plan = planned(
        models=["tiny"],
        recipes=["tutorial"],
        loss_steps=7,
        case_seconds=3,
        also=[{"models": ["article", "tiny"], "loss_steps": 0, "case_seconds": 5}],
    )
    [one], [two] = cases(plan, "tiny"), cases(plan, "article")
    assert (one["loss_steps"], two["loss_steps"]) == (7, 0)
    budgets = [
        json.loads(plan.training_request(model, 0))["measuring"]["case_seconds"]
        for model in ("tiny", "article")
    ]
    assert budgets == [3, 5]


@pytest.mark.parametrize("at_once", [2, 3, 4, 6])
def test_recipes_are_divided_into_groups_that_each_hold_fp32(at_once):
    case = {"model": "gpt-1.3B", "recipes": ["best", "tutorial"], "loss_steps": 0}
    groups = divided(case, at_once)
    wanted = {entry.label for entry in recipes_for(case["recipes"])}
    assert all(len(group["recipes"]) <= at_once for group in groups)
    assert all(group["recipes"][0] == Recipe().label for group in groups)
    assert {label for group in groups for label in group["recipes"]} == wanted
    assert [group.get("group", 0) for group in groups] == list(range(len(groups)))
    others = [label for group in groups for label in group["recipes"][1:]]
    assert len(others) == len(set(others))
    assert divided(case, None) == [case]
    without = divided({**case, "recipes": ["best_large"]}, 2)
    assert [group["recipes"][0] for group in without] == [SETS["best_large"][0]] * 2


def test_a_text_and_its_tokenizer_reach_the_job(planned, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("x" * 9000)
    plan = planned(models=["tiny"], recipes=["tutorial"], corpus=str(path))
    plan.check_corpus()
    [case] = cases(plan, "tiny")
    assert (case["corpus"], case["tokenizer"]) == (str(path), "bytes")
    with pytest.raises(UserError, match="tokenizer"):
        planned(models=["tiny"], corpus=str(path), tokenizer="gpt-2").check_corpus()


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("bf16+torch+fused+autotune", r"'\+autotune' tunes what '\+compile' compiles: add it"),
        ("fp16+torch+fused+master", r"'\+master' is for bf16"),
        ("fp32+torch+fused+cudnn", r"'\+cudnn' is for fp16 or bf16"),
        ("bf16+torch+fused+cudnn+flash", "is for fp16 or bf16, and alone"),
    ],
)
def test_flags_that_do_not_go_together_are_one_sentence(planned, label, expected):
    with pytest.raises(UserError, match=r"transformer\.also\[0\]\.recipes: .*" + expected):
        planned(also=[{"recipes": [label]}])


def preset(tmp_path, name):
    (tmp_path / "config.yaml").write_text("{}\n")
    return load(tmp_path, {"preset": name, "device": "cuda"})


def test_reference_trains_what_the_claims_need(tmp_path):
    config = preset(tmp_path, "reference")
    settings = config.transformer
    recipes = {
        case["model"]: {entry.label for entry in recipes_for(case["recipes"])}
        for case in config.cases("transformer")
    }
    for model in ("small", "gpt2-124M"):
        assert set(SETS["factorial"]) | set(SETS["best"]) <= recipes[model]
    for model in ("gpt2-350M", "llama-1B", "gpt-1.3B", *LADDER):
        assert set(SETS["tutorial"]) <= recipes[model]
        assert "bf16+torch+fused+compile" in recipes[model]
    assert settings["models"] == ["small"]
    assert settings["loss_steps"] >= 300
    assert settings["seeds"] >= FEWEST_SEEDS
    assert settings["processes"] >= 5


def test_large_models_never_hold_more_arms_than_a_gpu_has_room_for(tmp_path):
    """16 B a parameter and recipe in float32 with AdamW's state, 20 with master weights."""
    config = preset(tmp_path, "reference")
    for case in config.cases("transformer"):
        labels = [entry.label for entry in recipes_for(case["recipes"])]
        together = min(len(labels), case.get("arms_at_once") or len(labels))
        assert 20 * together * PRESETS[case["model"]].parameters() < 90e9, case["model"]


def test_full_trains_the_attribution_and_torchs_best(tmp_path):
    [case] = preset(tmp_path, "full").cases("transformer")
    labels = {entry.label for entry in recipes_for(case["recipes"])}
    assert case["model"] == "gpt2-124M"
    assert set(SETS["attribution"]) | set(SETS["best"]) <= labels
