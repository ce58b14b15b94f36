"""One real run of preset quick on the CPU, as a user without a GPU gets it."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import re
import shutil
import time

import pytest

from apexbench import records
from apexbench.machine.toolchain import cxx_compiler
from pipeline import Project

SECONDS = 180
QUIET = "preset: quick\ndevice: cpu\nreport: {reference: false}\n"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The finished run: its project, its output, its seconds, the load before it."""
    project = Project(tmp_path_factory.mktemp("quick") / "apexbench")
    project.configure(QUIET)
    load, begin = os.getloadavg()[0], time.monotonic()
    done = project.run(timeout=900)
    assert done.returncode == 0, done.stdout
    return project, done.stdout, time.monotonic() - begin, load


def every_record(project):
    for path in records.indexes(project.folder / "results"):
        yield from records.read_index(path)


def cells(project, component):
    return [
        (record, cell)
        for record in every_record(project)
        if record.component == component
        for cell in record.cells
    ]


def test_it_ends_in_under_three_minutes(quick):
    _, _, seconds, load = quick
    if load > 1.0 and seconds > SECONDS:
        pytest.skip(f"the machine was busy (load average {load:.1f} before the run)")
    assert seconds < SECONDS


def test_every_component_has_records_and_every_bad_cell_its_reason(quick):
    project, *_ = quick
    found = {record.component for record in every_record(project)}
    assert found == {
        "ceiling", "optimizer", "layer_norm", "rms_norm", "amp", "grad_clip", "transformer"
    }  # fmt: skip
    for record in every_record(project):
        for cell in record.cells:
            assert cell.status == "ok" or cell.reason
            assert cell.status in ("ok", "unavailable", "unsupported"), (record.case, cell)


def test_torch_is_measured_and_apex_needs_a_gpu(quick):
    project, *_ = quick
    for name in ("torch_default", "torch_forloop", "torch_foreach", "torch_fused"):
        assert [c.status for _, c in cells(project, "optimizer") if c.implementation == name] == [
            "ok",
            "ok",
        ]
    for component in ("optimizer", "layer_norm", "rms_norm", "amp", "grad_clip"):
        apex = [c for _, c in cells(project, component) if c.package == "apex"]
        assert apex
        assert {(c.status, c.reason) for c in apex} == {("unavailable", "needs an NVIDIA GPU")}
    page = (project.folder / "results/report.html").read_text()
    assert "needs an NVIDIA GPU" in page


def test_compiled_arms_run_or_say_that_they_need_a_compiler(quick):
    project, *_ = quick
    compiled = [c for _, c in cells(project, "layer_norm") if c.implementation == "torch_compiled"]
    assert compiled
    if cxx_compiler() is not None:
        assert {c.status for c in compiled} == {"ok"}
        assert all(c.compile_seconds > 0 for c in compiled)
    else:
        assert {c.reason for c in compiled} == {"needs a C++ compiler"}


def test_the_transformer_learns(quick):
    project, *_ = quick
    trained = [c for _, c in cells(project, "transformer") if c.status == "ok"]
    assert len(trained) >= 3
    for cell in trained:
        first = cell.details["losses"][0][1]
        assert cell.details["loss_floor"] < cell.details["held_out_loss"] < 0.6 * first


def test_the_table_and_the_page_say_what_the_records_say(quick):
    project, *_ = quick
    rows = {
        (
            row["component"],
            row["case"],
            row["implementation"],
            row["quantity"],
            row["baseline"],
        ): row
        for row in csv.DictReader((project.folder / "results/summary.csv").open())
    }
    page = (project.folder / "results/report.html").read_text().replace("<wbr>", "")
    page = re.sub(r"<[^>]+>", " ", page)
    checked = 0
    for record in every_record(project):
        for comparison in record.comparisons:
            row = rows[
                record.component,
                record.case,
                comparison.implementation,
                comparison.quantity,
                comparison.baseline,
            ]
            assert float(row["ratio"]) == pytest.approx(comparison.ratio, rel=1e-8)
            assert float(row["ratio_low"]) == pytest.approx(comparison.low, rel=1e-8)
            assert float(row["ratio_high"]) == pytest.approx(comparison.high, rel=1e-8)
            value = record.cell(comparison.implementation).quantities[comparison.quantity].value
            assert float(row["value"]) == pytest.approx(value, rel=1e-8)
            checked += 1
        assert record.case in page
    assert checked > 50


def test_the_records_say_where_they_come_from(quick):
    project, *_ = quick
    for record in every_record(project):
        assert record.provenance["device"] == "cpu"
        assert int(record.provenance["threads"]) >= 1
        assert record.provenance["torch"] == importlib.metadata.version("torch")
    sizes = [path.stat().st_size for path in project.folder.rglob("records/**/*.json")]
    assert max(sizes) < 2**20


def test_the_page_needs_nothing_from_outside(quick):
    project, *_ = quick
    page = (project.folder / "results/report.html").read_text()
    assert len(page) < 3 * 2**20
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?https?:", page)
    assert "@import" not in page


def test_a_second_run_does_nothing(quick):
    project, *_ = quick
    assert "Nothing to be done" in project.run().stdout


def test_without_a_compiler_the_compiled_cell_says_so(tmp_path):
    """A PATH without compilers: the cell is unavailable, its neighbours are measured."""
    project = Project(tmp_path / "apexbench")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "git", "mkdir", "printf", "uname", "cat", "rm", "which"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    project.configure(
        QUIET
        + "components: {layer_norm: {widths: [64], rows: [64], directions: [forward]}}\n"
        + "measuring: {case_seconds: 0.2}\n"
    )
    project.environment["PATH"] = str(tools)
    project.environment.pop("CXX", None)
    done = project.run("--", "results/records/layer_norm/index.json")
    assert done.returncode == 0, done.stdout
    (path,) = project.records("layer_norm").values()
    record = records.read(path)
    compiled = record.cell("torch_compiled")
    assert (compiled.status, compiled.reason) == ("unavailable", "needs a C++ compiler")
    assert compiled.remedy
    assert record.cell("torch_eager").status == "ok"
