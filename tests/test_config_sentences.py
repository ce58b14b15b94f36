"""What is wrong with a config is said in one sentence that names it and the remedy."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from apexbench.config import load, strict_yaml
from apexbench.errors import UserError
from config_answers import PRESETS, given_yaml, project, sentence

__all__ = ["project"]


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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_long_preset_on_a_cpu_is_warned_of(project: Path, preset: str) -> None:
    warnings = load(project, {"preset": preset}).warnings
    assert load(project, {"preset": preset}, has_gpu=True).warnings == ()
    if preset in ("full", "reference"):
        (warning,) = warnings
        assert f"preset {preset} takes about " in warning
    else:
        assert warnings == ()
