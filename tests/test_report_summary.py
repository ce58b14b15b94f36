"""The table others read: its columns, its intervals, what it refuses and what it never drops."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest

import record_factory as factory
from apexbench.errors import UserError
from apexbench.records import STATUSES
from apexbench.report import summary
from apexbench.report.repeats import Estimate, combine, verdict

DESIGN = (
    "run,machine,component,case,implementation,status,reason,quantity,unit,value,low,high,baseline,"
    "ratio,ratio_low,ratio_high,verdict,share_of_ceiling,peak_memory_bytes,parity_error,samples"
)


def rows(frame: pd.DataFrame, **wanted: str) -> pd.DataFrame:
    """The rows with these column values."""
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return frame


def test_columns_are_those_of_the_design(tmp_path: Path) -> None:
    factory.write_run(tmp_path, factory.optimizer())
    summary.aggregate(tmp_path, tmp_path / "out")
    assert (tmp_path / "out/summary.csv").read_text().splitlines()[0] == DESIGN
    document = json.loads((tmp_path / "out/summary.json").read_text())
    assert ",".join(document["columns"]) == DESIGN
    assert list(document["rows"][0]) == DESIGN.split(",")


def test_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    factory.write_run(tmp_path, factory.gpu_records())
    for name in ("a", "b"):
        summary.aggregate(tmp_path, tmp_path / name)
    for file in ("summary.csv", "summary.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_row_repeats_its_record(tmp_path: Path) -> None:
    record = factory.optimizer()[0]
    factory.write_run(tmp_path, [record])
    frame = summary.summary(tmp_path)
    own = rows(frame, implementation="fused_adam", baseline="torch_eager_best").iloc[0]
    comparison = next(
        c
        for c in record.comparisons
        if c.implementation == "fused_adam" and c.baseline == "torch_eager_best"
    )
    quantity = record.cell("fused_adam").quantities["step_time"]
    assert (own["value"], own["low"], own["high"]) == (quantity.value, quantity.low, quantity.high)
    assert (own["ratio"], own["verdict"]) == (comparison.ratio, comparison.verdict)
    assert (own["unit"], own["samples"], own["parity_error"]) == ("ns", 40, 1e-7)


def test_every_status_is_a_row_with_its_reason(tmp_path: Path) -> None:
    cells = [factory.cell("eager", 1e6)] + [
        factory.lost(f"arm {name}", "apex", name, f"because {name}", None)
        for name in STATUSES
        if name != "ok"
    ]
    lost = [{"case": "gone", "status": "failed", "reason": "killed", "log": "logs/x.log"}]
    record = factory.record("softmax", "case", cells, default="eager")
    factory.write_run(tmp_path, [record], {"rope": lost})
    frame = summary.summary(tmp_path)
    assert set(frame["status"]) == set(STATUSES)
    assert rows(frame, status="diverged").iloc[0]["reason"] == "because diverged"
    gone = rows(frame, case="gone").iloc[0]
    assert gone["reason"] == "killed (log: logs/x.log)"
    assert pd.isna(gone["value"])


def test_share_of_ceiling_needs_a_ceiling_and_no_reason_against_it(tmp_path: Path) -> None:
    record = factory.optimizer()[0]
    factory.write_run(tmp_path / "a", [record, *factory.ceilings()])
    own = rows(summary.summary(tmp_path / "a"), implementation="adamw_fused").iloc[0]
    copied = factory.ceilings()[0].cell("copy")
    bandwidth = copied.details["bytes"] / copied.quantities["device_time"].value
    moved = record.work.bytes / record.cell("adamw_fused").quantities["step_time"].value
    assert own["share_of_ceiling"] == pytest.approx(moved / bandwidth)

    record.work.reason = "L2-resident"
    factory.write_run(tmp_path / "b", [record, *factory.ceilings()])
    assert (
        rows(summary.summary(tmp_path / "b"), component="optimizer")["share_of_ceiling"]
        .isna()
        .all()
    )


def test_throughput_is_tokens_over_step_time(tmp_path: Path) -> None:
    record = factory.transformer()[0]
    factory.write_run(tmp_path, [record])
    own = rows(
        summary.summary(tmp_path), quantity="throughput", implementation="fp16+apex+apex"
    ).iloc[0]
    step = record.cell("fp16+apex+apex").quantities["step_time"]
    assert own["unit"] == "tokens/s"
    assert own["value"] == pytest.approx(16384 / step.value * 1e9)
    assert own["low"] == pytest.approx(16384 / step.high * 1e9)


def test_five_processes_give_student_t_between_them(tmp_path: Path) -> None:
    factory.write_run(tmp_path, factory.transformer(processes=5))
    own = rows(
        summary.summary(tmp_path), quantity="step_time", implementation="fp32+torch+default"
    ).iloc[0]
    values = [
        math.log(r.cell("fp32+torch+default").quantities["step_time"].value)
        for r in factory.transformer(processes=5)
    ]
    mean = sum(values) / 5
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 4)
    half = 4.604094871 * deviation / math.sqrt(5)
    assert own["value"] == pytest.approx(math.exp(mean))
    assert own["low"] == pytest.approx(math.exp(mean - half))
    assert own["samples"] == 200


def test_few_processes_give_the_hull_and_one_its_own_interval() -> None:
    one = Estimate(1.0, 0.9, 1.1)
    assert combine([one], 0.99) == one
    both = combine([one, Estimate(1.2, 1.15, 1.3)], 0.99)
    assert (both.low, both.high, both.between_runs) == (0.9, 1.3, False)
    assert both.value == pytest.approx(math.sqrt(1.2))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.02, 1.05, "faster"),
        (0.9, 0.98, "slower"),
        (0.995, 1.005, "same"),
        (0.99, 1.02, "unclear"),
    ],
)
def test_verdict_comes_from_the_interval(low: float, high: float, expected: str) -> None:
    assert verdict(Estimate(math.sqrt(low * high), low, high), 0.01) == expected


@pytest.mark.parametrize("changed", [{"device_name": "Another GPU"}, {"node": "node2"}])
def test_records_of_two_machines_are_never_merged(tmp_path: Path, changed: dict[str, str]) -> None:
    first = factory.optimizer()[0]
    second = dataclasses.replace(
        factory.optimizer()[0], process=1, key="f" * 16, provenance=factory.provenance(**changed)
    )
    factory.write_run(tmp_path, [first, second])
    own = rows(summary.summary(tmp_path), implementation="adamw_fused", baseline="torch_default")
    assert list(own["samples"]) == [40, 40]
    second.provenance = first.provenance
    factory.write_run(tmp_path / "same", [first, second])
    own = rows(
        summary.summary(tmp_path / "same"), implementation="adamw_fused", baseline="torch_default"
    )
    assert list(own["samples"]) == [80]


@pytest.mark.parametrize("broken", ["half", "empty", "nan", "foreign"])
def test_a_bad_record_is_named_and_refused(tmp_path: Path, broken: str) -> None:
    factory.write_run(tmp_path, factory.optimizer())
    path = next(
        p for p in (tmp_path / "records/optimizer").glob("*.json") if p.name != "index.json"
    )
    text = path.read_text()
    path.write_text(
        {
            "half": text[: len(text) // 2],
            "empty": "",
            "nan": text.replace('"process":0', '"process":NaN'),
            "foreign": '{"a": 1}',
        }[broken]
    )
    with pytest.raises(UserError, match=path.name.replace(".", r"\.")):
        summary.aggregate(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_records_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no index\.json: run"):
        summary.summary(tmp_path)


def test_the_records_folder_itself_may_be_named(tmp_path: Path) -> None:
    factory.write_run(tmp_path, factory.amp())
    assert summary.summary(tmp_path / "records").equals(summary.summary(tmp_path))


def test_a_cuda_graph_s_pool_counts_as_its_memory(tmp_path):
    entries = factory.gpu_records()
    cell = next(c for entry in entries for c in entry.cells if c.status == "ok")
    cell.peak_memory_bytes, cell.details["graph_pool_bytes"] = 1000, 7000
    table = summary.summary(factory.write_run(tmp_path, entries))
    assert 8000 in set(table["peak_memory_bytes"].dropna())
