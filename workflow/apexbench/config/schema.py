"""workflow/schemas/config.schema.yaml: loaded once, looked into, and used to validate."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from apexbench.config import sentences

PATH = Path(__file__).parents[2] / "schemas" / "config.schema.yaml"
PLUGINS = "apexbench.components"
"""The entry-point group of components from outside."""
Schema = Mapping[str, Any]


@functools.cache
def root() -> dict[str, Any]:
    """The whole schema (JSON Schema, draft 07)."""
    SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    value: dict[str, Any] = yaml.load(PATH.read_text(encoding="utf-8"), Loader=SafeLoader)
    known = value["properties"]["components"]["properties"]
    for name in plugins():
        known.setdefault(name, {"$ref": "#/$defs/plugin"})
    return value


@functools.cache
def plugins() -> tuple[str, ...]:
    """Components that other installed packages provide, by entry point."""
    return tuple(sorted(entry.name for entry in importlib.metadata.entry_points(group=PLUGINS)))


def resolve(schema: Schema, value: Any = None) -> Schema:
    """``schema`` with its ``$ref`` followed and the branch of its ``if`` that ``value`` takes."""
    while True:
        if "$ref" in schema:
            schema = root()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        elif "if" in schema:
            schema = schema["then" if isinstance(value, dict) else "else"]
        else:
            return schema


def types(schema: Schema) -> tuple[str, ...]:
    """The JSON types that ``schema`` names, if any."""
    named = schema.get("type", ())
    return (named,) if isinstance(named, str) else tuple(named)


def axes(schema: Schema) -> tuple[str, ...]:
    """The axes of a grid in their order: the lists that an entry of ``also`` may hold, no names."""
    also = resolve(schema).get("properties", {}).get("also")
    entries = also["items"]["properties"] if also else {}
    return tuple(
        key
        for key, entry in entries.items()
        if key != "implementations" and "array" in types(resolve(entry))
    )


def component(name: str) -> Schema:
    """The schema of one component's settings."""
    return resolve(root()["properties"]["components"]["properties"][name])


def components() -> tuple[str, ...]:
    """The names of all components."""
    return tuple(root()["properties"]["components"]["properties"])


def defaults(schema: Schema) -> dict[str, Any]:
    """The defaults of a mapping's keys, mappings inside it included."""
    result = {}
    for key, entry in schema["properties"].items():
        entry = resolve(entry)
        if "default" in entry:
            result[key] = entry["default"]
        elif entry.get("type") == "object":
            result[key] = defaults(entry)
    return result


@functools.lru_cache(maxsize=64)
def _validator(keys: frozenset[str], names: frozenset[str], detailed: bool) -> Callable[[Any], Any]:
    """The schema compiled, but for the properties and components that are not among these.

    What a config does not hold cannot break the schema, and compiling is most of a loader's time.
    """
    import fastjsonschema

    schema = {**root(), "properties": _only(root()["properties"], keys)}
    if (found := schema["properties"].get("components")) is not None:
        part = {**found, "properties": _only(found["properties"], names)}
        schema["properties"] = {**schema["properties"], "components": part}
    compiled: Callable[[Any], Any] = fastjsonschema.compile(
        schema, use_default=False, detailed_exceptions=detailed
    )
    return compiled


def _only(properties: Schema, names: frozenset[str]) -> dict[str, Any]:
    return {name: entry for name, entry in properties.items() if name in names}


def _held(value: Any, key: str | None = None) -> frozenset[str]:
    """The known names in a mapping of the config, or in the mapping under its ``key``."""
    held = value.get(key) if key is not None and isinstance(value, dict) else value
    known = components() if key is not None else root()["properties"]
    return frozenset(known) & frozenset(held if isinstance(held, dict) else ())


def validate(value: Any) -> None:
    """Raise UserError with one sentence for the first thing in ``value`` that breaks the schema."""
    import fastjsonschema

    try:  # compiles three times as fast as the detailed one
        _validator(_held(value), _held(value, "components"), detailed=False)(value)
    except fastjsonschema.JsonSchemaValueException:
        _explain(value)


def _explain(value: Any) -> NoReturn:
    import fastjsonschema

    try:
        _validator(frozenset(root()["properties"]), frozenset(components()), detailed=True)(value)
    except fastjsonschema.JsonSchemaValueException as error:
        path = str(error.name).removeprefix("data").removeprefix(".")
        if error.rule == "additionalProperties":
            known = error.definition["properties"]
            key = next(name for name in error.value if name not in known)
            raise sentences.unknown_key(path, key, error.definition, _home(key)) from error
        raise sentences.describe(path, str(error.rule), error.value, error.definition) from error
    raise AssertionError("two validators of one schema disagree")


def _home(key: str) -> str | None:
    """The first mapping of the config that has ``key``, by its path."""
    return next((path for path, name in _keys("", root()) if name == key and path), None)


def _keys(path: str, schema: Schema) -> Iterator[tuple[str, str]]:
    for key, entry in schema.get("properties", {}).items():
        yield path, key
        yield from _keys(f"{path}.{key}" if path else key, resolve(entry))
