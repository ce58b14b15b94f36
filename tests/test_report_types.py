"""Whatever type a record's leaf has, the report is built or refuses by name: never a traceback."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import record_factory as factory
from apexbench.errors import UserError
from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import Work
from apexbench.report import cases, comparison, evidence, html, recommend, summary
from apexbench.report.document import build

ODD = [None, [], {}, [1], ["x", 2], {"a": [1]}, 2**62, -1, 0, 1e300, 1e-300, "NaN", "", True]
TRAINED = ("fp32+torch+default", "fp16+apex+apex", "bf16+torch+fused", "bf16+torch+fused+compile")


def _tutorial():
    cells = [
        factory.cell("torch_default", 2e6, kind="step_time", details={"tutorial_ns": 2e6}),
        factory.cell("apex", 1e6, "apex", "step_time", details={"tutorial_ns": 1e6}),
    ]
    return factory.record(
        "tutorial", "A", cells, "step_time", "torch_default", ("torch_default",),
        config={"part": "A", "dtype": "float32"},
    )  # fmt: skip


def _compatibility():
    arm = factory.cell("apex", 1.0, "apex", "step_time", quantities={})
    arm.details = {"probes": {"torch.compile": {"answer": "no", "note": "breaks the graph"}}}
    return factory.record("compatibility", "parts", [arm], "step_time")


def _transformer():
    record = factory.transformer()[0]
    record.cells = [cell for cell in record.cells if cell.implementation in TRAINED]
    kept = {cell.implementation for cell in record.cells}
    for cell in record.cells:
        cell.details["losses"] = cell.details["losses"][:3]
        cell.details["held_out_losses"] = [[seed, 4.0 + seed / 1e5] for seed in range(5)]
    record.comparisons = [c for c in record.comparisons if {c.implementation, *c.members} <= kept]
    record.sampling["step_time"] = {"block_of_round": [n // 10 for n in range(40)]}
    return record


def records() -> dict[str, Any]:
    """One small record of every kind, as JSON values."""
    norm = factory.norms()[2]
    norm.work = Work(2**30, None, "N × 8 B, N = rows × width", "copy")
    found = [factory.ceilings()[0], factory.optimizer()[0], norm, factory.amp()[0]]
    found += [_transformer(), _tutorial(), _compatibility()]
    return {record.component: record for record in found}


def paths(value: Any, above: tuple = ()) -> Iterator[tuple]:
    """The place of every leaf and every container, of a list its first and its last entry."""
    if above:
        yield above
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from paths(entry, (*above, key))
    elif isinstance(value, list) and value:
        for index in sorted({0, len(value) - 1}):
            yield from paths(value[index], (*above, index))


def put(value: Any, path: tuple, leaf: Any) -> Any:
    """A copy of ``value`` with ``leaf`` at ``path``."""
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = leaf
    return value


def reported(folder: Path, trained: bool) -> None:
    """Everything that reads a run folder; UserError is an answer, too."""
    found = evidence.load(folder)
    summary.json_text(summary.table(found))
    document = build(found)
    json.dumps(document.content, allow_nan=False)
    html.render(document)
    comparison.compare([folder, folder])
    if trained:
        recommend.recommend(folder)


def tried(folder: Path, name: str, path: tuple, leaf: Any, trained: bool) -> None:
    """Report, or be refused in one sentence that names a file (or, advising, the model)."""
    said = str(folder)
    try:
        reported(folder, trained)
    except UserError as error:
        said = str(error)
    except Exception as error:  # what a user must never see
        raise AssertionError(f"{name} {path} = {leaf!r}: {error!r}") from error
    assert trained or str(folder) in said
    assert "\n" not in said


def leaf_of(name: str, path: tuple) -> list[Any]:
    """Two of the odd values for a place (of a large record one), the same ones in every run."""
    start = zlib.crc32(f"{name}{path}".encode())
    steps = (0,) if name == "transformer" else (0, 5)
    return [ODD[(start + step) % len(ODD)] for step in steps]


KINDS = tuple(records())


@pytest.mark.parametrize("kind", KINDS)
def test_no_odd_type_in_a_record_is_a_traceback(tmp_path, kind) -> None:
    folder = factory.write_run(tmp_path / "run", [records()[kind]])
    [index] = folder.rglob("index.json")
    [file] = [path for path in index.parent.glob("*.json") if path != index]
    whole = json.loads(file.read_text())
    reported(folder, kind == "transformer")
    for path in paths(whole):
        for leaf in leaf_of(kind, path):
            file.write_text(json.dumps(put(whole, path, leaf)))
            tried(folder, kind, path, leaf, kind == "transformer")


FILES = {
    "records/amp/index.json": {
        "component": "amp",
        "missing": [{"case": "x", "status": "failed", "reason": "y", "log": "z"}],
        "run": "r", "started": 1.0, "finished": 9.0, "seconds": {"cases": 3.0, "parity": 1.0},
    },
    "machine.json": {"machine": "m", "apex": {"build_seconds": 3.0}},
    "config.json": {"preset": "full", "indexes": ["records/amp/index.json"], "amp": [{"a": 1}]},
    "lost.json": {"records/amp/index.json": {"status": "failed", "reason": "x", "log": "y"}},
    "image.json": {"apex": {"seconds": 138.0}, "size_bytes": 2**30},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_no_odd_type_in_a_file_beside_the_records_is_a_traceback(tmp_path, name) -> None:
    folder = factory.write_run(tmp_path / "run", [records()["amp"], _transformer()])
    index = json.loads((folder / "records/amp/index.json").read_text())
    whole = FILES[name] | (index if name.startswith("records") else {})
    if name == "lost.json":
        (folder / "records/amp/index.json").unlink()
        (folder / "config.json").write_text(json.dumps(FILES["config.json"]))
    file = folder / name
    for path in paths(whole):
        for leaf in leaf_of(name, path):
            file.write_text(json.dumps(put(whole, path, leaf)))
            tried(folder, name, path, leaf, trained=True)


def test_a_record_of_the_selfcheck_is_refused_by_name_too(tmp_path) -> None:
    folder = factory.write_run(tmp_path / "run", factory.amp())
    cells = [factory.cell(name, 1e6) for name in ("one", "other")]
    config = {"proof": "do_bench", "what": "copy"}
    check = factory.record("selfcheck", "do_bench copy", cells, config=config)
    factory.write_run(folder / "selfcheck", [check])
    with pytest.raises(UserError, match="The records of the self-check do not hold what it"):
        build(evidence.load(folder))


def bad(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"verdict":"slower"', '"verdict":"faster"', "is called faster against torch_default, but"),
        ('"verdict":"slower"', '"verdict":"same"', "its interval says slower"),
        ('"rounds":40', '"rounds":40.0', "'rounds' is 40.0, which is no count"),
        ('"samples":[', '"samples":[7.0,', "a sample is not a whole number of nanoseconds"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(tmp_path, old, new, said) -> None:
    folder = factory.write_run(tmp_path / "run", factory.optimizer()[:1])
    [file] = [p for p in (folder / "records").rglob("*.json") if p.name != "index.json"]
    file.write_text(bad(file.read_text(), old, new))
    with pytest.raises(UserError, match=said) as raised:
        evidence.load(folder)
    assert str(file) in str(raised.value)
    assert "delete that file and run the same command again" in str(raised.value)


@pytest.mark.parametrize("processes", [1, 5])
def test_a_busy_cpu_takes_a_verdict_back(tmp_path, processes) -> None:
    records = [
        record for process in range(processes) for record in factory.optimizer(process=process)[:1]
    ]
    for record in records[:1]:
        for entry in record.comparisons:
            entry.verdict, entry.flags = "unclear", [BUSY_CPU]
    case = cases.merge(evidence.load(factory.write_run(tmp_path / "run", records)).records)[0]
    found = [v for arm in case.arms for v in arm.versus.values()]
    assert found
    assert {v.verdict for v in found} == {"unclear"}
    assert {v.flags for v in found} == {(BUSY_CPU,)}
