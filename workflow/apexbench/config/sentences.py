"""What is wrong with the config, in one sentence: key path, value, nearest name or range."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from apexbench.errors import UserError

SHOWN = 60
"""Characters of a value that a sentence shows."""

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
    "null": "null",
}


def show(value: Any) -> str:
    """A value as one would write it in YAML, on one line, at most about ``SHOWN`` characters."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif value is None:
        text = "null"
    elif isinstance(value, str):
        text = ascii(value[: SHOWN + 1]) if not value.isprintable() else repr(value[: SHOWN + 1])
    elif isinstance(value, int):
        # Python writes no more than 4300 digits.
        text = str(value) if value.bit_length() <= 14_000 else hex(value)
    elif isinstance(value, dict):
        first = itertools.islice(value.items(), 20)
        text = "{" + ", ".join(f"{bare(key)}: {show(entry)}" for key, entry in first) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(show(item) for item in value[:20]) + "]"
    else:
        text = repr(value)
    return text if len(text) <= SHOWN + 2 else text[:SHOWN] + "…"


def bare(value: str) -> str:
    """A word as it is, anything else as :func:`show` gives it."""
    plain = value.replace("_", "").replace("-", "").isalnum() and value.isascii()
    return value if plain and len(value) <= SHOWN else show(value)


def nearest(name: Any, names: Iterable[str]) -> str:
    """``did you mean 'x'? (x, y, z)``, or ``use one of x, y, z`` when none is near."""
    names = list(names)
    listed = ", ".join(names)
    folded = {entry.lower(): entry for entry in names}
    text = name if isinstance(name, str) else show(name)
    close = difflib.get_close_matches(text[:SHOWN].lower(), list(folded), n=1)
    return f"did you mean '{folded[close[0]]}'? ({listed})" if close else f"use one of {listed}"


def article(noun: str) -> str:
    """``noun`` with its indefinite article."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def allowed(schema: Mapping[str, Any]) -> str:
    """What a value must be by its schema: ``a whole number from 1 to 1048576``."""
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    types = schema.get("type", "string")
    text = " or ".join(_TYPES[name] for name in ([types] if isinstance(types, str) else types))
    if "minimum" in schema:
        return f"{text} from {schema['minimum']} to {schema['maximum']}"
    return text


def not_a(path: str, value: Any, noun: str, names: Iterable[str]) -> UserError:
    """``value`` at ``path`` is not among ``names``, each of which is a ``noun``."""
    remedy = nearest(value, names)
    return UserError(f"{path} is {show(value)}, which is not {article(noun)}: {remedy}.")


def unknown_key(path: str, key: str, schema: Mapping[str, Any], home: str | None) -> UserError:
    """``key`` under ``path`` is not in ``schema``; ``home`` is a mapping with such a key."""
    where = f"{path}.{bare(key)}" if path else bare(key)
    owner = path or "config.yaml"
    names = list(schema["properties"])
    if home is not None and not difflib.get_close_matches(key[:SHOWN], names, n=1):
        remedy = f"it belongs under {home}"
    else:
        remedy = nearest(key, names) if names else f"{owner} has none, remove it"
    return UserError(f"{where} is not a key of {owner}: {remedy}.")


def describe(path: str, rule: str, value: Any, schema: Mapping[str, Any]) -> UserError:
    """The sentence for ``value`` at ``path`` breaking ``rule`` of ``schema``."""
    path = path or "config.yaml"
    return UserError(f"{path} {_RULES.get(rule, _range)(path, value, schema)}.")


def _enum(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    remedy = nearest(value, schema["enum"])
    return f"is {show(value)}, which is not {article(schema['title'])}: {remedy}"


def _pattern(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    examples = ", ".join(schema["examples"])
    close = difflib.get_close_matches(value[:SHOWN], schema["examples"], n=1)
    if close:
        remedy = f"did you mean '{close[0]}'? (for instance {examples})"
    else:
        remedy = f"write, for instance, {examples}"
    return f"is {show(value)}, which is not {article(schema['title'])}: {remedy}"


def _type(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    key = path.rpartition(".")[2]
    if schema["type"] == "array" and not isinstance(value, dict):
        item = value if isinstance(value, str) and show(value) == f"'{value}'" else show(value)
        return f"is {show(value)} but must be a list: write {key}: [{item}]"
    if "string" in schema["type"] and isinstance(value, (int, float)):
        return f"is {show(value)} but must be {allowed(schema)}: put it in quotes"
    return _range(path, value, schema)


def _range(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    return f"is {show(value)} but must be {allowed(schema)}"


def _min_items(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    return "is [] but must list at least one value: add one, or remove the key for the preset's"


def _max_items(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    return f"has {len(value)} entries but may have {schema['maxItems']}: shorten it"


def _unique_items(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    twice = next(item for index, item in enumerate(value) if item in value[:index])
    return f"lists {show(twice)} twice: keep one of the two"


def _required(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    name = next(name for name in schema["required"] if name not in value)
    return f"has no {name}: add {name}, {allowed(schema['properties'][name])}"


def _min_properties(path: str, value: Any, schema: Mapping[str, Any]) -> str:
    return f"is {{}} but must have at least one of {', '.join(schema['properties'])}"


_RULES: dict[str, Callable[[str, Any, Mapping[str, Any]], str]] = {
    "enum": _enum,
    "pattern": _pattern,
    "type": _type,
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
    "required": _required,
    "minProperties": _min_properties,
}
