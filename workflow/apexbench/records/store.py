"""Records on disk: validated when they are written and when they are read."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.records.model import (
    BESIDE,
    SCHEMA_VERSION,
    Cell,
    Check,
    Comparison,
    Parity,
    Quantity,
    Record,
    Work,
    verdict,
)
from apexbench.records.text import file_name, load_json, read_text, write_text_atomically

SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "record.schema.json"


@functools.cache
def _validator() -> Any:
    import fastjsonschema

    return fastjsonschema.compile(json.loads(SCHEMA_PATH.read_text()))


def dump(record: Record) -> str:
    """The record as JSON text, validated. Raises ValueError if it breaks the schema."""
    import fastjsonschema

    value = asdict(record)
    try:
        _validator()(value)
    except fastjsonschema.JsonSchemaValueException as error:
        raise ValueError(f"this record is not valid: {error.message}") from error
    _check_consistency(value)
    return json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n"


_WHOLE = ("calls_per_sample", "peak_memory_bytes", "recompiles", "rounds", "bytes", "flops")


def _check_whole(value: dict[str, Any]) -> None:
    """Counts are integers: JSON Schema takes 1e300 for one, too."""
    quantities = [entry for cell in value["cells"] for entry in cell["quantities"].values()]
    for entry in (*value["cells"], *quantities, *value["comparisons"], value["work"]):
        for name in _WHOLE:
            if isinstance(entry.get(name), float):
                raise ValueError(f"'{name}' is {entry[name]!r}, which is no count")
    if isinstance(value["process"], float):
        raise ValueError(f"'process' is {value['process']!r}, which is no count")
    if not all(set(map(type, entry["samples"])) == {int} for entry in quantities):
        raise ValueError("a sample is not a whole number of nanoseconds")


def _check_group(group: Any, names: list[str], displaced: list[str]) -> None:
    """An arm is measured or had no room, and of a group each arm is one or the other."""
    if both := set(names) & set(displaced):
        raise ValueError(f"'{both.pop()}' had no room in it and is measured in it")
    if group is not None and {*names, *displaced} != set(group["arms"]):
        raise ValueError("it holds other implementations than its group")


def _check_consistency(value: dict[str, Any]) -> None:
    _check_whole(value)
    names = [cell["implementation"] for cell in value["cells"]]
    if len(set(names)) != len(names):
        raise ValueError("an implementation stands in it twice")
    _check_group(value["config"].get(BESIDE), names, value.get("displaced", []))
    for cell in value["cells"]:
        if cell["status"] == "ok" and not cell["quantities"] and not cell["details"]:
            raise ValueError(f"'{cell['implementation']}' is ok but holds no measurement")
        if cell["status"] != "ok" and not cell["reason"]:
            raise ValueError(f"'{cell['implementation']}' is {cell['status']} but gives no reason")
        if cell["parity"] is not None:
            passed = all(Check(**check).passed for check in cell["parity"]["checks"])
            if cell["parity"]["passed"] and not passed:
                raise ValueError(f"'{cell['implementation']}' passed parity against its own checks")
        for name, quantity in cell["quantities"].items():
            if not quantity["low"] <= quantity["value"] <= quantity["high"]:
                raise ValueError(f"'{cell['implementation']}' {name} lies outside its interval")
    for comparison in value["comparisons"]:
        if not comparison["low"] <= comparison["ratio"] <= comparison["high"]:
            raise ValueError(
                f"a ratio of '{comparison['implementation']}' lies outside its interval"
            )
        shown = verdict(comparison["low"], comparison["high"], comparison["margin"])
        # A flag may take a verdict back, never give another.
        taken_back = comparison["verdict"] == "unclear" and comparison["flags"]
        if comparison["verdict"] != shown and not taken_back:
            raise ValueError(
                f"'{comparison['implementation']}' is called {comparison['verdict']} against "
                f"{comparison['baseline']}, but its interval says {shown}"
            )
        if unknown := {comparison["implementation"], *comparison["members"]} - set(names):
            raise ValueError(f"a comparison names '{unknown.pop()}', which it does not hold")


def write(record: Record, folder: Path) -> Path:
    """Validate and write a record into ``folder`` atomically; returns its path."""
    path = folder / file_name(record.case, record.key)
    write_text_atomically(path, dump(record))
    return path


def parse(text: str, path: Path) -> Record:
    """A record from JSON text.

    Raises UserError, naming ``path`` and what to do, for anything that is not a whole record of
    this schema version: truncated, empty, foreign, another version, NaN, duplicate keys.
    """
    import fastjsonschema

    remedy = "delete that file and run the same command again; no other record is touched."
    try:
        value = load_json(text)
    except (ValueError, RecursionError) as error:
        cause = "it is empty" if not text.strip() else str(error).split(": line")[0]
        raise UserError(f"{path} is not a valid record ({cause}): {remedy}") from error
    if not isinstance(value, dict) or "schema_version" not in value:
        raise UserError(f"{path} is not an apexbench record: {remedy}")
    if value["schema_version"] != SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema version {value['schema_version']!r} and this apexbench reads "
            f"version {SCHEMA_VERSION}: {remedy}"
        )
    try:
        _validator()(value)
        _check_consistency(value)
    except fastjsonschema.JsonSchemaValueException as error:
        raise UserError(f"{path} is not a valid record ({error.message}): {remedy}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a valid record ({error}): {remedy}") from error
    return _from_dict(value)


def _from_dict(value: dict[str, Any]) -> Record:
    cells = []
    for cell in value["cells"]:
        parity = cell["parity"]
        if parity is not None:
            parity = Parity(**{**parity, "checks": [Check(**check) for check in parity["checks"]]})
        quantities = {name: Quantity(**entry) for name, entry in cell["quantities"].items()}
        cells.append(Cell(**{**cell, "parity": parity, "quantities": quantities}))
    return Record(
        **{
            **value,
            "work": Work(**value["work"]),
            "cells": cells,
            "comparisons": [Comparison(**entry) for entry in value["comparisons"]],
        }
    )


def read(path: Path) -> Record:
    """Read one record strictly; UserError as in :func:`parse`."""
    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a valid record (it is not UTF-8): delete that file and run the same "
            "command again; no other record is touched."
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): restore it or delete it."
        ) from error
    return parse(text, path)


def outdated(path: Path) -> bool:
    """Whether a record that the index at ``path`` names is gone, or was written to since.

    Or whether a case was killed from outside. The job of such an index runs again, looks at each
    record, keeps the whole ones and names a damaged one. Raises UserError where it is no file.
    """
    try:
        since = path.stat().st_mtime_ns
        index = load_json(read_text(path))
        names = [Path(entry["file"]).name for entry in index["records"]]
        return bool(index.get("killed")) or any(
            (path.parent / name).stat().st_mtime_ns > since for name in names
        )
    except FileNotFoundError:
        return path.exists()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # whoever reads it says what is wrong


def read_index(path: Path) -> list[Record]:
    """The records that ``records/<component>/index.json`` names, in its order.

    Raises UserError as :func:`read`, and where a record is named twice or lies under the name of
    another: it would count twice.
    """
    try:
        index = load_json(read_text(path))
        names = [Path(entry["file"]).name for entry in index["records"]]
        if len(set(names)) != len(names):
            raise ValueError("a record is named twice")
        if not all(name.isascii() and name.isprintable() for name in names):
            raise ValueError("a record has a name that this project does not give")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): run the pipeline first."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a valid index: delete it and run the same command again."
        ) from error
    return [_read_named(path.parent / name) for name in names]


def _read_named(path: Path) -> Record:
    record = read(path)
    if path.name != file_name(record.case, record.key):
        raise misplaced(path)
    return record


def misplaced(path: Path) -> UserError:
    """The sentence for a file whose content is another record, or of another machine."""
    return UserError(
        f"{path} holds another record than its name says: delete that file and run the same "
        "command again."
    )


def indexes(folder: Path) -> Iterator[Path]:
    """The ``index.json`` of every job of a run that is there, in a stable order."""
    yield from (path for path in expected(folder) if path.exists() or path.is_symlink())


def expected(folder: Path) -> list[Path]:
    """The ``index.json`` of every job of a run, there or not, in a stable order.

    ``config.json`` names them, so that what an earlier configuration left beside them is not
    taken for this run's; without that file, all that lie under ``records``. Raises UserError where
    it names anything else.
    """
    path = folder / "config.json"
    try:
        named = load_json(read_text(path))["indexes"]
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: give yourself the permission to.") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return sorted((folder / "records").rglob("index.json"))
    return _inside(folder, named)


def _inside(folder: Path, named: Any) -> list[Path]:
    """The paths that ``config.json`` names, all of them indexes under ``folder/records``."""
    try:
        paths = [folder / name for name in named]
        plain = all(
            path.name == "index.json" and ".." not in path.parts and "\0" not in str(path)
            for path in paths
        )
        if plain and all(path.is_relative_to(folder / "records") for path in paths):
            return paths
    except TypeError:
        pass
    raise UserError(
        f"{folder / 'config.json'} names other files than the indexes of its own records: delete "
        "it and run the same command again."
    )
