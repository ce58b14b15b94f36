"""One layer of config over another, after each has been brought to the schema's types."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from apexbench.config import schema as schemas
from apexbench.config import strict_yaml
from apexbench.config.sentences import show
from apexbench.errors import UserError


def plain(value: Any) -> Any:
    """Snakemake's mapping as plain JSON values; what JSON has no value for becomes its text.

    Raises UserError past the limits of :mod:`strict_yaml`, which Snakemake's own reader lacks.
    """
    counter = itertools.count(1)

    def copy(value: Any, depth: int) -> Any:
        if depth > strict_yaml.MAX_DEPTH:
            raise UserError(
                f"--config is nested more than {strict_yaml.MAX_DEPTH} deep: flatten it."
            )
        if next(counter) > strict_yaml.MAX_VALUES:
            raise UserError(f"--config has more than {strict_yaml.MAX_VALUES} values: shorten it.")
        if isinstance(value, Mapping):
            return {str(key): copy(entry, depth + 1) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [copy(entry, depth + 1) for entry in value]
        if isinstance(value, int) and value.bit_length() > 256:
            return show(value)
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return value if value is None or isinstance(value, (str, int, float)) else str(value)

    return copy(value, 0)


def settle(value: Any, schema: schemas.Schema, strings: bool) -> Any:
    """``value`` brought to the types of ``schema`` where that changes nothing of its meaning.

    A whole float becomes an int where an int is wanted, and an empty key is left out, so that it
    means the preset's value. With ``strings`` (a layer from the command line) the text ``"4096"``
    becomes a number and ``"256,512"`` or ``"[256, 512]"`` a list; one word never becomes a list.
    What does not fit is returned as it is, for the validator to name.
    """
    schema = schemas.resolve(schema, value)
    wanted = schemas.types(schema)
    if strings and isinstance(value, str):
        value = _from_text(value, wanted)
    if isinstance(value, float) and value.is_integer() and "integer" in wanted:
        return int(value)
    if isinstance(value, list):
        return [settle(entry, schema.get("items", {}), strings) for entry in value]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return {
            key: settle(entry, known.get(key, {}), strings)
            for key, entry in value.items()
            if entry is not None or key not in known or "null" in schemas.types(known[key])
        }
    return value


def _from_text(text: str, wanted: tuple[str, ...]) -> Any:
    text = text.strip() if "string" not in wanted else text
    if "array" in wanted and ("," in text or text.startswith("[")):
        return strict_yaml.parse(text if text.startswith("[") else f"[{text}]", "--config")
    if "object" in wanted and text.startswith("{"):
        return strict_yaml.parse(text, "--config")
    # A profile's `gpu_model: null` reaches Snakemake's --config as the text None.
    value = None if text == "None" else strict_yaml.scalar(text)
    fits = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, (int, float)) and not isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
    }
    return value if any(fits.get(name, False) for name in wanted) else text


def overlay(base: Any, top: Any, schema: schemas.Schema) -> Any:
    """``top`` over ``base``: mappings key by key, anything else replaced.

    A layer that names an axis of a grid replaces the lower layer's ``also`` too: who asks for
    ``widths: [4096]`` gets that width and not the preset's further grids beside it.
    """
    if not isinstance(base, dict) or not isinstance(top, dict):
        return top
    schema = schemas.resolve(schema)
    known = schema.get("properties", {})
    result = dict(base)
    if "also" not in top and any(axis in top for axis in schemas.axes(schema)):
        result.pop("also", None)
    for key, value in top.items():
        result[key] = overlay(base[key], value, known.get(key, {})) if key in base else value
    return result
