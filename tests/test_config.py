"""The config loader: presets, grids and what a config gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from apexbench.components.names import implementation_names
from apexbench.config import grids, load, presets
from apexbench.config import schema as schemas
from config_answers import PRESETS, ROOT, given_yaml, project, sentence

__all__ = ["project"]


def test_the_repository_s_own_config_is_valid_and_lets_the_preset_rule() -> None:
    config = load(ROOT)
    assert config.preset == "quick"
    assert config.device == "cpu"
    assert len(config.image["apex_commit"]) == 40
    assert config.measuring["margin"] == 0.01


def test_every_commented_key_of_config_yaml_exists_and_every_key_is_there() -> None:
    lines = (ROOT / "config.yaml").read_text(encoding="utf-8").splitlines()
    section = [line.removeprefix("# ") for line in lines if line.startswith("# ") and ":" in line]
    start = section.index("components:")
    text = "\n".join(section[start:])
    text = text.replace("Training a Transformer: models by recipes.\n", "")
    written = yaml.safe_load(text)
    schemas.validate(written)
    known = schemas.root()["properties"]
    for name in ("transformer", "measuring", "report"):
        assert set(written[name]) | {"also"} == set(known[name]["properties"]) | {"also"}
    norm = set(schemas.component("layer_norm")["properties"]) - {"enabled", "implementations"}
    assert set(written["components"]["layer_norm"]) == norm
    assert set(load(ROOT).image) == set(known["image"]["properties"])


def test_auto_is_full_with_a_gpu_and_quick_without(project: Path) -> None:
    assert load(project, has_gpu=True).preset == "full"
    assert load(project, has_gpu=False).preset == "quick"
    assert load(project, {"device": "cpu"}, has_gpu=True).preset == "quick"
    assert load(project, {"device": "cuda"}, has_gpu=False).preset == "full"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_and_complete(project: Path, name: str) -> None:
    schemas.validate(presets.read(name))
    config = load(project, {"preset": name})
    off = {
        key
        for key, entry in presets.read(name)["components"].items()
        if not entry.get("enabled", True)
    }
    assert set(config.components) | off == set(schemas.components())
    assert name in ("quick", "article") or off <= {"compatibility", "tutorial"}
    everything = load(
        project, {"preset": name, "components": {key: {"enabled": True} for key in off}}
    )
    for component in schemas.components():
        assert everything.cases(component)
        assert set(schemas.axes(schemas.component(component))) <= set(
            everything.components[component]
        )
    for component in config.components:
        assert config.cases(component)
        assert set(schemas.axes(schemas.component(component))) <= set(config.components[component])
    assert config.cases("transformer")
    for section in ("transformer", "measuring", "report"):
        expected = set(schemas.root()["properties"][section]["properties"]) - {"also"}
        assert expected <= set(getattr(config, section))
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()


def test_presets_on_disk_are_the_ones_one_can_choose() -> None:
    assert {path.stem for path in presets.FOLDER.glob("*.yaml")} == set(presets.names())


def test_full_has_at_most_sixty_component_cases_and_covers_each_decision(project: Path) -> None:
    config = load(project, has_gpu=True)
    assert sum(len(config.cases(component)) for component in config.components) <= 60
    for component in ("layer_norm", "rms_norm"):
        cases = config.cases(component)
        assert {case["width"] for case in cases} >= {768, 1024, 2048, 4096, 8192, 16384}
        assert {case["dtype"] for case in cases} == {"float32", "float16", "bfloat16"}
        assert {case["direction"] for case in cases} == {"forward", "backward", "forward_backward"}
        assert any(case["autocast"] for case in cases)
        assert any(not case["affine"] for case in cases)
        assert any(case["width"] & (case["width"] - 1) for case in cases if case["width"] != 768)
        assert any(case["mixed"] for case in cases)
    optimizer = config.cases("optimizer")
    rules = {"adamw", "sgd", "adagrad", "lamb", "novograd"}
    assert {case["algorithm"] for case in optimizer} == rules
    assert {case["model"] for case in optimizer} >= {"linear60x512", "gpt2-124M", "gpt2-1.5B"}
    assert {case["model"] for case in optimizer} >= {"many-small", "few-huge"}
    assert {case["clipping"] for case in config.cases("grad_clip")} == {True, False}
    assert {case["operation"] for case in config.cases("dense")} == {
        "linear",
        "gelu_ffn",
        "relu_ffn",
    }
    losses = config.cases("cross_entropy")
    assert {case["vocabulary"] for case in losses} == {32000, 50257, 128256}
    assert {case["smoothing"] for case in losses} == {0, 0.1}
    scopes = {(case["scope"], case["mask"]) for case in config.cases("softmax")}
    assert {("softmax", "causal"), ("softmax", "padding"), ("attention", "causal")} == scopes
    assert config.cases("rope")
    assert {case["dtype"] for case in optimizer} == {"float32", "bfloat16"}
    assert {case["grad_scaler"] for case in optimizer} == {False, True}


def test_article_has_the_tutorial_s_parameters(project: Path) -> None:
    config = load(project, {"preset": "article"})
    norm = {
        "rows": 32 * 512,
        "width": 1024,
        "dtype": "float32",
        "direction": "forward_backward",
        "autocast": False,
        "affine": True,
        "mixed": False,
    }
    assert config.cases("layer_norm") == [norm]
    assert config.cases("rms_norm") == [norm]
    assert config.cases("optimizer") == [
        {
            "model": "linear60x512",
            "algorithm": "adamw",
            "dtype": "float32",
            "grad_scaler": False,
        }
    ]
    assert config.cases("amp") == [
        {"model": "mlp", "batch": 128, "legacy": level} for level in ("none", "O0", "O1", "O2")
    ]
    assert config.transformer["models"] == ["article"]
    assert "tutorial" in config.transformer["recipes"]


def test_cases_are_the_product_then_also_without_repeats_and_without_nonsense(
    project: Path,
) -> None:
    config = given_yaml(
        project,
        """
        components:
          layer_norm:
            rows: [8]
            widths: [16, 32]
            dtypes: [float32, bfloat16]
            directions: [forward]
            autocast: [false, true]
            affine: [true]
            also:
              - {widths: [16], dtypes: [float32]}
              - {rows: [9], widths: [16], autocast: [false], dtypes: [float32]}
        """,
    )
    cases = config.cases("layer_norm")
    assert [(c["rows"], c["width"], c["dtype"], c["autocast"]) for c in cases] == [
        (8, 16, "float32", False),
        (8, 16, "bfloat16", False),
        (8, 16, "bfloat16", True),
        (8, 32, "float32", False),
        (8, 32, "bfloat16", False),
        (8, 32, "bfloat16", True),
        (9, 16, "float32", False),
    ]
    axes = ["rows", "width", "dtype", "direction", "autocast", "affine", "mixed"]
    assert list(cases[0]) == axes


def test_mixed_norms_have_a_weight_sixteen_bits_and_no_autocast(project: Path) -> None:
    axes = "dtypes: [float32, bfloat16], autocast: [false, true], affine: [true, false]"
    text = f"components: {{layer_norm: {{mixed: [false, true], {axes}, directions: [forward]}}}}"
    cases = given_yaml(project, text).cases("layer_norm")
    mixed = {(c["dtype"], c["autocast"], c["affine"]) for c in cases if c["mixed"]}
    assert mixed == {("bfloat16", False, True)}
    assert len([c for c in cases if not c["mixed"]]) == 6 * len({c["width"] for c in cases})


def test_naming_an_axis_replaces_the_preset_s_further_grids(project: Path) -> None:
    text = "preset: full\ncomponents: {layer_norm: {widths: [4096]}}"
    config = given_yaml(project, text)
    assert {case["width"] for case in config.cases("layer_norm")} == {4096}
    assert len(config.cases("layer_norm")) == 1
    assert len(config.cases("rms_norm")) == 12
    kept = given_yaml(project, "preset: full\ncomponents: {layer_norm: {implementations: [a]}}")
    assert len(kept.cases("layer_norm")) == 12
    narrowed = load(project, {"components": {"layer_norm": {"widths": "[256, 512]"}}}, True)
    assert {case["width"] for case in narrowed.cases("layer_norm")} == {256, 512}


def test_a_component_or_the_transformer_can_be_left_out(project: Path) -> None:
    text = "components: {amp: {enabled: false}}\ntransformer: {enabled: false}"
    config = given_yaml(project, text)
    assert "amp" not in config.components
    assert config.cases("amp") == []
    assert config.cases("transformer") == []
    with pytest.raises(KeyError):
        config.cases("apm")


def test_transformer_cases_merge_recipes_per_model(project: Path) -> None:
    config = given_yaml(
        project,
        """
        transformer:
          models: [tiny]
          recipes: [tutorial]
          also:
            - {recipes: [best, tutorial]}
            - models: [{name: mine, layers: 1, d_model: 8, heads: 2, vocabulary: 9, sequence: 4,
                        batch: 1, norm: rms}]
        """,
    )
    tiny, mine = config.cases("transformer")
    assert tiny == {"model": "tiny", "recipes": ["tutorial", "best"]}
    assert mine["model"]["norm"] == "rms"
    assert mine["model"]["causal"] is True
    assert mine["recipes"] == ["tutorial"]


NARROWED = """
components:
  layer_norm:
    {widths: [8], rows: [4], dtypes: [float32], directions: [forward], autocast: [false],
     also: [{widths: [16], implementations: [apex]}, {widths: [32], implementations: [apex]},
            {widths: [8, 32], implementations: [torch_eager]}]}
"""


def test_a_further_grid_names_its_own_implementations(project: Path) -> None:
    names = {"layer_norm": ["torch_eager", "apex"]}
    cases = given_yaml(project, NARROWED, implementations=names).cases("layer_norm")
    found = {case["width"]: case.get("implementations") for case in cases}
    # A case of the main grid keeps all; one of two further grids has the names of both.
    assert found == {8: None, 16: ["apex"], 32: ["apex", "torch_eager"]}
    message = sentence(project, NARROWED.replace("[apex]", "[apx]"), implementations=names)
    assert message == (
        "components.layer_norm.also[0].implementations[0] is 'apx', which is not an "
        "implementation of layer_norm: did you mean 'apex'? (torch_eager, apex)."
    )


def test_a_further_grid_with_nothing_that_is_wanted_is_left_out(project: Path) -> None:
    top = {"components": {"layer_norm": {"implementations": ["torch_eager"]}}}
    config = given_yaml(project, NARROWED, overrides=top)
    assert [case["width"] for case in config.cases("layer_norm")] == [8, 32]
    # What a measuring job expands is what the config says.
    settings = dict(config.components["layer_norm"], implementations=None)
    axes = schemas.axes(schemas.component("layer_norm"))
    assert grids.expand("x", settings, axes) == config.cases("layer_norm")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_implementations_that_exist(project: Path, name: str) -> None:
    load(project, {"preset": name}, implementations=implementation_names())


def test_full_compiles_the_step_of_one_model_only_and_fits_the_largest(project: Path) -> None:
    cases = load(project, has_gpu=True).cases("optimizer")
    compiled = [c for c in cases if "torch_compiled" in c.get("implementations", "torch_compiled")]
    assert [(c["model"], c["dtype"], c["grad_scaler"]) for c in compiled] == [
        ("few-huge", "float32", False),
    ]
    assert all(len(c["implementations"]) <= 6 for c in cases if c["model"] == "gpt2-1.5B")


def test_an_empty_key_means_the_preset_s_value(project: Path) -> None:
    assert given_yaml(project, "").hash() == given_yaml(project, "{}").hash()
    empty = "components:\ntransformer:\n  loss_steps:\nseed:\n"
    assert given_yaml(project, empty).hash() == given_yaml(project, "{}").hash()


def test_hash_follows_values_and_not_how_they_are_written(project: Path) -> None:
    first = given_yaml(project, "seed: 7\ncomponents: {layer_norm: {widths: [1024], rows: [8]}}")
    again = given_yaml(project, "components: {layer_norm: {rows: [8], widths: [1.024e3]}}\nseed: 7")
    other = given_yaml(project, "components: {layer_norm: {rows: [8], widths: [1025]}}\nseed: 7")
    assert first.hash() == again.hash()
    assert first.hash() != other.hash()


def test_to_dict_and_cases_are_copies(project: Path) -> None:
    config = load(project)
    before = config.hash()
    config.to_dict()["components"]["layer_norm"]["widths"].append(1)
    config.cases("transformer")[0]["recipes"].append("x")
    config.cases("layer_norm")[0]["width"] = 1
    assert config.hash() == before
