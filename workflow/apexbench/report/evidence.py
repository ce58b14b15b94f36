"""Everything a report may use: a run folder's records, what is missing from it, its settings."""

from __future__ import annotations

import dataclasses
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.errors import UserError
from apexbench.records import Record
from apexbench.report import known

# Controls, lone surrogates and bidirectional overrides: no XML can hold the first two, and the
# last would let one record's text reorder its neighbours.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


@dataclass
class Missing:
    """A case without a record: its job was lost, with the index's status, reason and log."""

    component: str
    case: str
    status: str
    reason: str
    log: str | None = None


@dataclass(frozen=True)
class Job:
    """One measuring job as its index tells it: Unix seconds, and seconds per stage."""

    name: str
    run: str
    started: float
    finished: float
    seconds: dict[str, float]


@dataclass
class Evidence:
    """A run folder, read strictly. ``components`` are those with an index, empty ones included."""

    folder: Path
    records: list[Record] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    components: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)

    def provenance(self, key: str) -> list[Any]:
        """The distinct values of one provenance key over all records, in order of appearance."""
        values: list[Any] = []
        for record in self.records:
            value = record.provenance.get(key)
            if value is not None and value not in values:
                values.append(value)
        return values


def printable(value: Any) -> Any:
    """``value`` with every character that XML cannot hold, or that reorders text, replaced."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {printable(key): printable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [printable(entry) for entry in value] if not _numeric(value) else value
    return value


def _numeric(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], int | float) and isinstance(value[-1], int | float)


def _clean(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        for entry in dataclasses.fields(value):
            setattr(value, entry.name, _clean(getattr(value, entry.name)))
        return value
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return [_clean(entry) for entry in value]
    if isinstance(value, dict) and any(dataclasses.is_dataclass(v) for v in value.values()):
        return {printable(key): _clean(entry) for key, entry in value.items()}
    return printable(value)


def _slim(record: Record) -> Record:
    """Samples as packed integers, so that ten thousand records fit in memory."""
    for cell in record.cells:
        for quantity in cell.quantities.values():
            quantity.samples = array("q", quantity.samples)  # type: ignore[assignment]
    return record


def mapping(path: Path) -> dict[str, Any]:
    """A JSON file beside the records, strictly read; empty where there is none."""
    if not path.exists() and not path.is_symlink():
        return {}
    value = records.read_mapping(path)
    return {str(name): printable(entry) for name, entry in value.items()}


def run_folder(path: Path) -> Path:
    """The run folder that ``path`` names: itself, or its parent if it is the ``records`` folder."""
    path = Path(path)
    if not (path / "records").is_dir() and path.name == "records":
        return path.parent
    return path


def _missing(index: dict[str, Any], component: str, path: Path) -> list[Missing]:
    entries = index.get("missing", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} is not a valid index: delete it and run the same command again.")
    result = []
    for entry in entries:
        status = entry.get("status")
        result.append(
            Missing(
                component=component,
                case=str(entry.get("case") or "n/a"),
                status=status if status in records.STATUSES and status != "ok" else "failed",
                reason=str(entry.get("reason") or "its job left no record and gave no reason"),
                log=str(entry["log"]) if entry.get("log") else None,
            )
        )
    return result


def load(path: Path, expect: Sequence[Path] = ()) -> Evidence:
    """Read a run folder (``results/``, ``results/reference/<machine>/``, or its ``records/``).

    ``expect`` are the run's index files, by default those of ``records.expected``; one that
    is not there is a missing case of its component. Raises UserError when there is no index at all,
    and for the first file that is not what it should be.
    """
    folder = run_folder(path)
    evidence = Evidence(
        folder=folder,
        machine=mapping(folder / "machine.json"),
        config=mapping(folder / "config.json"),
    )
    expect = [Path(index) for index in expect] or records.expected(folder)
    indexes = [path for path in expect if path.exists() or path.is_symlink()]
    absent = [index for index in expect if index not in indexes]
    if not indexes and not absent:
        raise UserError(
            f"{folder / 'records'} holds no index.json: run `snakemake --cores 1` first, or name a "
            "folder such as results or results/reference/<machine>."
        )
    for index_path in indexes:
        index = mapping(index_path)
        component = str(index.get("component") or index_path.parent.name)
        evidence.missing += _missing(index, component, index_path)
        found = [_slim(_clean(record)) for record in records.read_index(index_path)]
        for record in found:
            known.check(record, str(index_path.parent))
        evidence.records += found
        evidence.components.append(component)
        evidence.jobs += _job(index, index_path)
    told = mapping(folder / "lost.json")
    for index_path in absent:
        lost = _absent(index_path, told)
        evidence.missing.append(lost)
        evidence.components.append(lost.component)
    evidence.components = list(dict.fromkeys(evidence.components))
    return evidence


def _job(index: dict[str, Any], path: Path) -> list[Job]:
    """The job that wrote an index; none where the index does not say when it ran."""
    started, finished = index.get("started"), index.get("finished")
    if not isinstance(started, int | float) or not isinstance(finished, int | float):
        return []
    stages = index.get("seconds")
    known = stages.items() if isinstance(stages, dict) else ()
    seconds = {key: float(value) for key, value in known if isinstance(value, int | float)}
    parts = path.parent.parts
    below = parts[parts.index("records") + 1 :] if "records" in parts else parts[-1:]
    run = str(index.get("run") or "")
    return [Job(printable("/".join(below)), run, float(started), float(finished), seconds)]


def _absent(path: Path, known: dict[str, Any]) -> Missing:
    """An expected index that is not there: ``…/records/<component>/[<model>-p<k>/]index.json``.

    ``known`` is ``lost.json``: what the batch system said of the job, by the index's path.
    """
    parts = path.parent.parts
    below = parts[parts.index("records") + 1 :] if "records" in parts else parts[-1:]
    name = "-".join(below) or "unknown"
    told = known.get("/".join(["records", *below, path.name]))
    told = told if isinstance(told, dict) else {}
    log = (
        str(Path(*parts[: parts.index("records")], "logs", f"{name}.log"))
        if "records" in parts
        else None
    )
    return Missing(
        component=below[0] if below else "unknown",
        case=below[1] if len(below) > 1 else "all cases",
        status=told["status"] if told.get("status") in records.STATUSES else "failed",
        reason=str(told.get("reason") or "its job was lost before it wrote its index"),
        log=str(told.get("log") or "") or log,
    )
