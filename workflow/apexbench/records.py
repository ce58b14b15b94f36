"""The JSON record: one case with all its implementations, as measured in one process.

A record is written once, atomically, and validated against ``workflow/schemas/record.schema.json``
when it is written and when it is read. Times are integer nanoseconds in the raw samples and
nanoseconds per call in the summaries. Everything the report says is computed from records.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apexbench.errors import UserError

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).parents[1] / "schemas" / "record.schema.json"

STATUSES = (
    "ok",
    "unavailable",
    "unsupported",
    "out_of_memory",
    "parity_failed",
    "diverged",
    "failed",
)
QUANTITIES = ("device_time", "step_time")
BASELINES = ("torch_default", "torch_eager_best", "torch_best")
VERDICTS = ("faster", "slower", "same", "unclear")


@dataclass
class Check:
    """One tensor compared with the float64 reference; passed when ``error <= tolerance``.

    ``error`` is None when it is not finite (the tensor holds NaN or infinity); that never passes.
    """

    tensor: str
    error: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether this tensor is within its tolerance."""
        return self.error is not None and self.error <= self.tolerance


@dataclass
class Parity:
    """The gate before speed: every check, the formula of the tolerance, and what it cannot see."""

    passed: bool
    formula: str
    checks: list[Check] = field(default_factory=list)
    undetectable: list[str] = field(default_factory=list)


@dataclass
class Quantity:
    """Raw samples of one quantity of one implementation, and their summary.

    ``samples[i]`` is the length of window ``i`` in integer ns and holds ``calls_per_sample`` calls.
    ``value`` is the median of the samples per call in ns, ``low`` and ``high`` its interval.
    """

    timer: str
    calls_per_sample: int
    samples: list[int]
    value: float
    low: float
    high: float


@dataclass
class Cell:
    """One implementation in one case; a ``status`` other than ``ok`` has a reason and a remedy.

    ``peak_memory_bytes`` is the peak of one call above what was allocated before the arm was
    built; the private pool of a CUDA graph comes on top (``details``: ``graph_pool_bytes``).
    """

    implementation: str
    package: str
    status: str
    description: str = ""
    reason: str | None = None
    remedy: str | None = None
    parity: Parity | None = None
    quantities: dict[str, Quantity] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    kernels: list[str] = field(default_factory=list)
    compile_seconds: float | None = None
    recompiles: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Comparison:
    """One implementation against one baseline: ``ratio`` is its speed relative to the baseline.

    ``ratio`` above 1 is faster. ``members`` are the implementations that make up the baseline;
    against several members the interval is that of the strongest one (method, point 6).
    """

    quantity: str
    implementation: str
    baseline: str
    members: list[str]
    ratio: float
    low: float
    high: float
    margin: float
    verdict: str
    rounds: int
    flags: list[str] = field(default_factory=list)


@dataclass
class Work:
    """The least the operation must move (bytes) or compute (flops) per call, and against what.

    ``ceiling`` names the ceiling record's implementation that bounds it; ``reason`` says why a
    share of the ceiling is not given (``L2-resident`` for instance).
    """

    bytes: int | None
    flops: int | None
    formula: str
    ceiling: str | None = None
    reason: str | None = None


@dataclass
class Record:
    """One case of one component, all implementations paired in one process."""

    component: str
    case: str
    key: str
    process: int
    config: dict[str, Any]
    environment: dict[str, Any]
    provenance: dict[str, Any]
    quantity: str
    confidence: float
    work: Work
    cells: list[Cell]
    comparisons: list[Comparison]
    baselines: dict[str, dict[str, Any]]
    sampling: dict[str, Any]
    state: list[dict[str, Any]]
    seconds: dict[str, float]
    schema_version: int = SCHEMA_VERSION

    def cell(self, implementation: str) -> Cell:
        """The cell of ``implementation``; KeyError if the record has none."""
        for cell in self.cells:
            if cell.implementation == implementation:
                return cell
        raise KeyError(implementation)


@functools.cache
def _validator() -> Any:
    import fastjsonschema

    return fastjsonschema.compile(json.loads(SCHEMA_PATH.read_text()))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is not a measurement")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice}' stands in it twice")
    return result


def load_json(text: str) -> Any:
    """Strict JSON: NaN, Infinity, overflowing numbers and duplicate keys raise ValueError."""

    def finite(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            raise ValueError(f"it holds {literal}, which is not a finite number")
        return value

    return json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=finite,
        object_pairs_hook=_refuse_duplicates,
    )


def write_text_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that a reader sees the old file or the new one, never half of it.

    Raises UserError, naming the path and the cause, when the disk is full or not writable; the
    old file stays as it was.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise UserError(
            f"{path} cannot be written ({error.strerror}): free the disk or make its folder "
            "writable, then run the same command again; earlier records are intact."
        ) from error


def canonical(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces; what hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any, length: int = 16) -> str:
    """The first ``length`` hex digits of the SHA-256 of a JSON value's canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def source_digest(paths: list[Path]) -> str:
    """Hash of source files by name and content: what ``key`` says about the code."""
    return digest(
        [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in sorted(paths)]
    )


def file_name(case: str, key: str) -> str:
    """``<case>-<key>.json`` with only letters, digits, dots, underscores and hyphens in the case."""
    safe = "".join(
        letter if (letter.isascii() and letter.isalnum()) or letter in "._" else "-"
        for letter in case
    )
    return f"{safe.strip('-.')[:100] or 'case'}-{key}.json"


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


def _check_consistency(value: dict[str, Any]) -> None:
    names = [cell["implementation"] for cell in value["cells"]]
    if len(set(names)) != len(names):
        raise ValueError("an implementation stands in it twice")
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
        text = path.read_text(encoding="utf-8")
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


def read_index(path: Path) -> list[Record]:
    """The records that ``records/<component>/index.json`` names, in its order."""
    try:
        index = load_json(path.read_text(encoding="utf-8"))
        names = [entry["file"] for entry in index["records"]]
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): run the pipeline first."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a valid index: delete it and run the same command again."
        ) from error
    return [read(path.parent / Path(name).name) for name in names]


def indexes(folder: Path) -> Iterator[Path]:
    """The ``index.json`` of every job of a run, in a stable order.

    ``config.json`` names them, so that what an earlier configuration left beside them is not
    taken for this run's; without that file, all that lie under ``records``.
    """
    try:
        named = load_json((folder / "config.json").read_text(encoding="utf-8"))["indexes"]
    except (OSError, ValueError, KeyError, TypeError):
        yield from sorted((folder / "records").rglob("index.json"))
    else:
        yield from (path for name in named if (path := folder / name).is_file())
