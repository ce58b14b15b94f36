"""The config loader: what it gives, and that any input ends in a Config or one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbench.components.names import implementation_names
from apexbench.config import Config, grids, load, presets, strict_yaml
from apexbench.config import schema as schemas
from apexbench.errors import UserError

ROOT = Path(__file__).parents[1]
PRESETS = ("quick", "full", "reference", "article")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("{}\n", encoding="utf-8")
    return tmp_path


def given_yaml(project: Path, text: str | bytes, **kwargs: Any) -> Config:
    data = text.encode() if isinstance(text, str) else text
    (project / "config.yaml").write_bytes(data)
    return load(project, **kwargs)


def sentence(project: Path, text: str | bytes = "{}", **kwargs: Any) -> str:
    with pytest.raises(UserError) as caught:
        given_yaml(project, text, **kwargs)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


# What it gives


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


# Snakemake's overrides


def test_strings_of_nested_config_values_become_what_the_schema_wants(project: Path) -> None:
    config = load(
        project,
        {
            "seed": "3",
            "components": {
                "layer_norm": {"rows": ["4096"], "widths": "256,512", "affine": "true,false"},
                "rms_norm": {"widths": "[256, 512]", "enabled": "true"},
                "optimizer": {"also": "[{models: [tiny], dtypes: [bfloat16]}]"},
            },
            "measuring": {"margin": "0.02", "case_seconds": "5"},
            "transformer": {"corpus": "null", "models": "tiny,small"},
            "image": {"architectures": ["9.0"]},
        },
    )
    assert config.seed == 3
    assert config.components["layer_norm"]["rows"] == [4096]
    assert config.components["layer_norm"]["widths"] == [256, 512]
    assert config.components["layer_norm"]["affine"] == [True, False]
    assert config.components["rms_norm"]["widths"] == [256, 512]
    assert config.cases("optimizer")[-1]["dtype"] == "bfloat16"
    assert config.measuring["margin"] == 0.02
    assert config.transformer["corpus"] is None
    assert config.transformer["models"] == ["tiny", "small"]
    assert config.image["architectures"] == ["9.0"]


def test_overrides_win_over_config_yaml_and_leave_its_other_keys(project: Path) -> None:
    text = "seed: 1\nmeasuring: {margin: 0.05, pilot_rounds: 40}"
    config = given_yaml(project, text, overrides={"measuring": {"margin": 0.03}})
    assert (config.seed, config.measuring["margin"], config.measuring["pilot_rounds"]) == (
        1,
        0.03,
        40,
    )


def test_a_key_left_out_of_a_section_stays_the_preset_s(project: Path) -> None:
    config = given_yaml(project, "preset: reference\nmeasuring: {margin: 0.02}")
    assert config.measuring["margin"] == 0.02
    assert config.measuring["processes"] == 5


def test_strings_in_yaml_are_not_coerced(project: Path) -> None:
    assert "seed is '3' but must be a whole number" in sentence(project, "seed: '3'")
    message = sentence(project, "components: {layer_norm: {widths: '256,512'}}")
    assert message.startswith("components.layer_norm.widths is '256,512' but must be a list")


@pytest.mark.parametrize(
    "overrides",
    [
        {"seed": "1; touch pwned"},
        {"preset": "$(touch pwned)"},
        {"image": {"base": "-v /:/host"}},
        {"image": {"apex_commit": "main"}},
        {"image": {"apex_repository": "ext::sh -c touch% pwned"}},
        {"transformer": {"corpus": "--help"}},
        {"seed": float("nan")},
        {"seed": 10**5000},
        {"measuring": {"margin": float("inf")}},
        {"components": {"layer_norm": {"widths": "[[[[1"}}},
        {"components": {None: 1}},
        {1: {2: 3}},
        {"seed": b"\xff"},
        {"seed\udcff": 1},
    ],
)
def test_hostile_overrides_end_in_a_sentence(
    project: Path, overrides: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    sentence(project, overrides=overrides).encode()
    assert os.listdir(project) == ["config.yaml"]


def test_overrides_that_share_or_hold_themselves_are_refused_quickly(project: Path) -> None:
    bomb: list[Any] = ["x"]
    for _ in range(12):
        bomb = [bomb] * 10
    started = time.perf_counter()
    assert "more than 10000 values" in sentence(project, overrides={"components": bomb})
    assert time.perf_counter() - started < 1
    loop: dict[str, Any] = {}
    loop["components"] = loop
    assert "nested" in sentence(project, overrides=loop)


# Sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "preset: fulll",
            "preset is 'fulll', which is not a preset: did you mean 'full'? "
            "(auto, quick, full, reference, article).",
        ),
        (
            "components: {layer_norm: {dtypes: float16}}",
            "components.layer_norm.dtypes is 'float16' but must be a list: write dtypes: "
            "[float16].",
        ),
        (
            "components: {layer_norm: {widths: [1024, -1]}}",
            "components.layer_norm.widths[1] is -1 but must be a whole number from 1 to 1048576.",
        ),
        (
            "components: {layer_norm: {widths: []}}",
            "components.layer_norm.widths is [] but must list at least one value: add one, or "
            "remove the key for the preset's.",
        ),
        (
            "components: {layer_norm: {widths: 4096}}",
            "components.layer_norm.widths is 4096 but must be a list: write widths: [4096].",
        ),
        (
            "components: {rms_norm: {widhts: [4096]}}",
            "components.rms_norm.widhts is not a key of components.rms_norm: did you mean "
            "'widths'? (enabled, implementations, rows, widths, dtypes, directions, autocast, "
            "affine, mixed, also).",
        ),
        (
            "widths: [4096]",
            "widths is not a key of config.yaml: it belongs under components.layer_norm.",
        ),
        (
            "components: {ceiling: {width: 1}}",
            "components.ceiling.width is not a key of components.ceiling: use one of enabled.",
        ),
        (
            "components: {layer_norm: {dtypes: [fp16, bfloat]}}",
            "components.layer_norm.dtypes[0] is 'fp16', which is not a dtype: use one of float32, "
            "float16, bfloat16.",
        ),
        (
            "components: {layer_norm: {affine: [yes]}}",
            "components.layer_norm.affine[0] is 'yes' but must be true or false.",
        ),
        (
            "components: {layer_norm: {widths: [8, 8.0]}}",
            "components.layer_norm.widths lists 8 twice: keep one of the two.",
        ),
        (
            "components: {layer_norm: {also: [{}]}}",
            "components.layer_norm.also[0] is {} but must have at least one of rows, widths, "
            "dtypes, directions, autocast, affine, mixed, implementations.",
        ),
        (
            "components: {amp: {also: [{implementations: [apex]}]}}",
            "components.amp.also[0] has implementations alone, so its cases are the main grid's: "
            "add one of models, batches, legacy, or write components.amp.implementations.",
        ),
        (
            "components: {layer_norm: {autocast: [true], dtypes: [float32]}}",
            "components.layer_norm has no case: autocast: [true] needs float16 or bfloat16 in "
            "dtypes.",
        ),
        (
            "components: {layer_norm: {mixed: [true], dtypes: [float32]}}",
            "components.layer_norm has no case: mixed: [true] needs float16 or bfloat16 in dtypes, "
            "autocast: [false] and affine: [true].",
        ),
        (
            "components: 5",
            "components is 5 but must be a mapping of keys to values.",
        ),
        (
            "measuring: {margin: 1}",
            "measuring.margin is 1 but must be a number from 0.001 to 0.5.",
        ),
        ("seed: true", "seed is true but must be a whole number from 0 to 4294967295."),
        (
            "transformer: {recipes: [tutoral]}",
            "transformer.recipes[0] is 'tutoral', which is not a recipe: did you mean 'tutorial'? "
            "(for instance attribution, best, tutorial, fp32+torch+default, fp16+apex+apex, "
            "bf16+torch+fused+compile).",
        ),
        (
            "transformer: {models: [{name: mine, layers: 2}]}",
            "transformer.models[0] has no d_model: add d_model, a whole number from 1 to 65536.",
        ),
        (
            "transformer: {models: [gpt2-125M]}",
            "transformer.models[0] is 'gpt2-125M', which is not a model: did you mean "
            "'gpt2-124M'? (tiny, article, small, gpt2-124M, gpt2-350M, llama-1B, gpt-1.3B, "
            "gpt-1.3B-b16, ladder-5M, ladder-14M, ladder-30M, ladder-92M, ladder-310M, "
            "ladder-690M, ladder-1.3B).",
        ),
        (
            "transformer: {models: [{name: m, layers: 2, d_model: 10, heads: 4, vocabulary: 9, "
            "sequence: 4, batch: 1}]}",
            "transformer.models[0].d_model is 10 but must be a multiple of heads, which is 4.",
        ),
        (
            "transformer: {models: [{name: small, layers: 2, d_model: 8, heads: 4, "
            "vocabulary: 9, sequence: 4, batch: 1}]}",
            "transformer.models[0].name is 'small', which is another model's name: choose a new "
            "one.",
        ),
        (
            "image: {architectures: [9.0]}",
            "image.architectures[0] is 9.0 but must be text: put it in quotes.",
        ),
        ("- 1", "config.yaml holds [1] but must hold keys and values: write, for instance, "
         "preset: auto."),
        ("full", "config.yaml holds 'full' but must hold keys and values: write, for instance, "
         "preset: auto."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(project: Path, text: str, expected: str) -> None:
    assert sentence(project, text) == expected


def test_an_unknown_implementation_names_the_nearest(project: Path) -> None:
    known = {"layer_norm": ["torch_eager", "apex_fused"]}
    text = "components: {layer_norm: {implementations: [torch_eager, apex_fussed]}}"
    assert sentence(project, text, implementations=known) == (
        "components.layer_norm.implementations[1] is 'apex_fussed', which is not an "
        "implementation of layer_norm: did you mean 'apex_fused'? (torch_eager, apex_fused)."
    )
    assert given_yaml(project, text).components["layer_norm"]["implementations"][1] == "apex_fussed"


def test_too_many_cases_are_refused_before_they_are_made(project: Path) -> None:
    numbers = list(range(1, 65))
    axes = {"rows": numbers, "widths": numbers, "affine": [True, False], "directions": ["forward"]}
    text = json.dumps({"components": {"layer_norm": {**axes, "dtypes": ["float32"]}}})
    assert "asks for 8192 cases but may have 5000" in sentence(project, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\nseed: 2", "config.yaml line 2 gives the key 'seed' a second time"),
        ("a: {b: 1, b: 1}", "config.yaml line 1 gives the key 'b' a second time"),
        ("measuring:\n\tmargin: 0.1", "config.yaml line 2 is indented with a tab: use spaces."),
        ("measuring:\n  \tmargin: 0.1", "config.yaml line 2 is indented with a tab: use spaces."),
        ("seed: [1", "is not valid YAML"),
        ("seed: 1\n---\nseed: 2", "config.yaml line 2 starts a second document"),
        ("seed: !!python/object/apply:os.system ['touch x']", "has the tag"),
        ("seed: !!int '1'", "has the tag"),
        ("seed: *x", "uses the alias 'x', which is not defined"),
        ("a: &a [*a]", "uses the alias 'a', which is not defined"),
        ("? [1]\n: 2", "has a list or a mapping as a key"),
        ("<<: 3", "<< is given no mapping"),
        ("[" * 50, "nested more than 16 deep"),
        ("[" * 5000, "nest"),
        ("a: " + "{a: " * 5000, "nested more than 16 deep"),
        ("seed: \x00", "a character that YAML does not allow"),
        (b"seed: 1\nx: \xff", "config.yaml line 2 is not UTF-8"),
        (b"#" * 70000, "larger than 64 KiB"),
        ("seed: " + "9" * 5000, "seed is '999"),
        ("measuring: {margin: .nan}", "measuring.margin is '.nan' but must be a number"),
        ("measuring: {margin: 1e999}", "measuring.margin is '1e999' but must be a number"),
        ("'\u202eevil\\n': 1", "is not a key of config.yaml"),
    ],
)
def test_broken_yaml_is_named_by_its_line(project: Path, text: str | bytes, expected: str) -> None:
    message = sentence(project, text)
    assert expected in message
    assert message.isprintable()
    assert len(message) < 400


def test_an_alias_bomb_is_refused_quickly(project: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.perf_counter()
    assert "aliases expanded" in sentence(project, "\n".join(levels))
    assert time.perf_counter() - started < 1


def test_anchors_and_merge_keys_work(project: Path) -> None:
    config = given_yaml(
        project,
        """
        components:
          layer_norm: &norm {widths: [64], rows: [8]}
          rms_norm: {<<: *norm, rows: [9]}
        """,
    )
    assert config.components["rms_norm"]["widths"] == [64]
    assert config.components["rms_norm"]["rows"] == [9]


def test_numbers_are_those_of_yaml_1_2() -> None:
    text = "[1e-2, 010, yes, 1:30, 1_000, 0x10, 2026-01-01, '1', .5, ~, -3]"
    expected = [0.01, 10, "yes", "1:30", "1_000", "0x10", "2026-01-01", "1", 0.5, None, -3]
    assert strict_yaml.parse(text, "x") == expected


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.yaml is missing"):
        load(tmp_path)
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(UserError, match=r"config\.yaml is not a file"):
        load(tmp_path)
    (tmp_path / "config.yaml").rmdir()
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml is not a file"):
        load(tmp_path)


# Warnings


@pytest.mark.parametrize("preset", PRESETS)
def test_a_long_preset_on_a_cpu_is_warned_of(project: Path, preset: str) -> None:
    warnings = load(project, {"preset": preset}).warnings
    assert load(project, {"preset": preset}, has_gpu=True).warnings == ()
    if preset in ("full", "reference"):
        (warning,) = warnings
        assert f"preset {preset} takes about " in warning
    else:
        assert warnings == ()


# The schema


def _entries(schema: Any) -> Iterator[tuple[str, Any]]:
    for name, entry in schema.get("properties", {}).items():
        entry = schemas.resolve(entry)
        yield name, entry
        yield from _entries(entry)
        yield from _entries(entry.get("items", {}))


def test_every_key_is_described_and_every_mapping_closed() -> None:
    root = schemas.root()
    entries = [*_entries(root), *_entries(root["$defs"]["transformer_model"])]
    assert len(entries) > 60
    for name, entry in entries:
        assert entry.get("description", "").endswith("."), name
        for mapping in (entry, entry.get("items", {})):
            if mapping.get("type") == "object" and name != "cases":  # a plug-in's own keys
                assert mapping["additionalProperties"] is False, name
            if "enum" in mapping or "pattern" in mapping:
                assert mapping["title"], name
            if "pattern" in mapping:
                assert all(isinstance(example, str) for example in mapping["examples"]), name
            if mapping.get("type") in ("integer", "number"):
                assert mapping["minimum"] <= mapping["maximum"], name


def test_defaults_are_valid() -> None:
    schemas.validate(schemas.defaults(schemas.root()))


# Speed and whatever else may come


def test_import_and_load_are_fast_and_pull_in_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        "from pathlib import Path; from apexbench.config import load; load(Path(sys.argv[1]))\n"
        "print(time.process_time() - start)\n"
        "heavy = {'torch', 'pandas', 'numpy', 'snakemake', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    seconds = min(
        float(
            subprocess.run(
                [sys.executable, "-c", code, str(ROOT)],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(5)
    )
    assert seconds < 0.1


_keys = st.one_of(
    st.sampled_from(sorted({name for name, _ in _entries(schemas.root())})),
    st.text(max_size=8),
)
_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**18, max_value=10**300),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["float32", "forward", "tiny", "auto", "full", "tutorial", "1e3", "[1, 2]"]),
    st.dates(),
)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_keys, inner, max_size=4)),
    max_leaves=30,
)
# fmt: off
_pieces = [
    "a: ", "&x ", "*x", "\n", "  ", "\t", "- ", "? ", ": ", "[", "]", "{", "}", ",", "<<: ",
    "!!int ", "!", "|", ">", "'", '"', "#", "---", "...", "%YAML 9.9\n", "components:\n",
    " layer_norm:\n", "  widths: ", "1", "9" * 50, "é", "\u2028", "\ufeff", "🙂", "\\x",
]
# fmt: on
_fragments = st.lists(st.sampled_from(_pieces), max_size=60).map("".join)


def _answers(folder: Path, data: bytes, overrides: Any = None) -> None:
    (folder / "config.yaml").write_bytes(data)
    started = time.perf_counter()
    try:
        config = load(folder, overrides)
    except UserError as error:
        message = str(error)
        assert message.endswith(".")
        assert "\n" not in message
        message.encode()
    else:
        assert config.hash()
        assert json.loads(json.dumps(config.to_dict(), allow_nan=False)) == config.to_dict()
        assert all(config.cases(component) for component in config.components)
    assert time.perf_counter() - started < 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    load(ROOT)
    with pytest.raises(UserError):
        load(ROOT, {"seed": "x"})
    return tmp_path_factory.mktemp("config")


@settings(max_examples=150, deadline=None)
@given(value=st.dictionaries(_keys, _values, max_size=5))
def test_any_mapping_is_answered(folder: Path, value: dict[str, Any]) -> None:
    text = yaml.safe_dump(value, allow_unicode=True, default_flow_style=None)
    _answers(folder, text.encode("utf-8", "replace"))
    _answers(folder, b"{}", value)


@settings(max_examples=200, deadline=None)
@given(text=_fragments)
def test_any_text_is_answered(folder: Path, text: str) -> None:
    _answers(folder, text.encode())


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_answered(folder: Path, data: bytes) -> None:
    _answers(folder, data)


@pytest.mark.parametrize("unit", ["[", "{", "- ", "? ", "a: &a *a ", "&a [*a,", '"', "a\n", "!a "])
def test_the_largest_file_of_anything_is_answered(folder: Path, unit: str) -> None:
    _answers(folder, (unit * (64 * 1024 // len(unit))).encode())
