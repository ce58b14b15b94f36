"""The versioned records of real GPUs: whole, true to their raw samples, shown as they are."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from apexbench import owner, records
from apexbench.measuring import verdicts
from apexbench.measuring.sampler import Samples, Settings
from apexbench.report import readme
from conftest import ROOT

REFERENCES = sorted((ROOT / "results" / "reference").glob("*/config.json"))


@pytest.fixture(params=[path.parent for path in REFERENCES], ids=lambda path: path.name)
def reference(request) -> Path:
    return request.param


def every_record(folder):
    for index in records.indexes(folder):
        yield from records.read_index(index)


def samples_of(record, quantity):
    cells = [cell for cell in record.cells if quantity in cell.quantities]
    how = record.sampling[quantity]
    return Samples(
        quantity,
        {cell.implementation: cell.quantities[quantity].calls_per_sample for cell in cells},
        {cell.implementation: cell.quantities[quantity].samples for cell in cells},
        how["block_of_round"],
        how["pilot_rounds"],
        how["stop"],
        how["tick_ns"],
        how["null_window_ns"],
    )


def test_there_is_a_run_of_an_h200():
    assert [path.parent.name for path in REFERENCES] == ["nvidia-h200"]


def test_it_is_of_one_machine_with_the_whole_commit_of_apex(reference):
    found = list(every_record(reference))
    assert len(found) > 40
    assert {record.provenance["machine"] for record in found} == {reference.name}
    for record in found:
        apex = record.provenance["apex"]
        assert apex["state"] == "compiled"
        assert len(apex["commit"]) == 40
        assert apex["modules"]["amp_C"]
        assert apex["modules"]["fused_layer_norm_cuda"]


def test_every_verdict_follows_from_the_raw_samples(reference):
    checked = 0
    for record in every_record(reference):
        for shown in record.comparisons:
            again = verdicts.compared(
                samples_of(record, shown.quantity),
                shown.quantity,
                shown.implementation,
                shown.baseline,
                shown.members,
                Settings(confidence=record.confidence),
            )
            assert math.isclose(again.ratio, shown.ratio, rel_tol=1e-9)
            assert math.isclose(again.low, shown.low, rel_tol=1e-9)
            assert math.isclose(again.high, shown.high, rel_tol=1e-9)
            assert again.verdict == shown.verdict
            checked += 1
    assert checked > 400


def test_an_arm_that_names_its_kernel_launched_it(reference):
    for record in every_record(reference):
        for cell in record.cells:
            if cell.implementation == "torch_compiled" and cell.status == "ok":
                assert any("triton_" in name for name in cell.kernels), record.case
            if cell.package == "apex" and cell.status == "ok" and record.component.endswith("norm"):
                assert any("cuApply" in name or "cuCompute" in name for name in cell.kernels)


def test_the_table_is_that_of_the_records(reference):
    rows = list(csv.DictReader((reference / "summary.csv").open()))
    keys = ("component", "case", "implementation", "quantity", "baseline")
    table = {tuple(row[key] for key in keys): row for row in rows}
    for record in every_record(reference):
        for shown in record.comparisons:
            row = table[
                record.component,
                record.case,
                shown.implementation,
                shown.quantity,
                shown.baseline,
            ]
            assert float(row["ratio"]) == pytest.approx(shown.ratio, rel=1e-8)
            assert row["verdict"] == shown.verdict


def test_the_readme_says_what_the_records_say(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    shown = text.split(readme.BEGIN + "\n")[1].split(readme.END)[0]
    assert shown == readme.block(Path("results/reference/nvidia-h200"))


def test_the_readme_s_figures_are_drawn_from_the_records(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    drawn = readme.figures(Path("results/reference/nvidia-h200"))
    assert len(drawn) == 2
    for path, svg in drawn.items():
        assert f"]({path})" in text
        assert path.read_text() == svg


def test_the_end_of_a_run_says_where_every_report_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("results/report.html", "results/report/gpu/report.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    pages = ["results/report/gpu/report.html", "results/report/never-made/report.html"]
    owner.succeed(Path("results/report.html"), pages)
    assert capsys.readouterr().err.splitlines() == [
        f"apexbench: report of the reference run gpu: {tmp_path / pages[0]}",
        f"apexbench: report: {tmp_path / 'results/report.html'}",
    ]
