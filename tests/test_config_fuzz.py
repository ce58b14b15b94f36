"""Any input is answered by a Config or one sentence, soon; the schema is whole."""

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

from apexbench.config import load
from apexbench.config import schema as schemas
from apexbench.errors import UserError
from config_answers import ROOT


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
    assert seconds < 0.25  # a slow processor needs 0.1


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
