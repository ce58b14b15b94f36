"""Snakemake's --config and --configfile over config.yaml: types, layers, limits."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from apexbench.config import load
from config_answers import given_yaml, project, sentence

__all__ = ["project"]


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
