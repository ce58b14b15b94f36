"""The rendered report: whole, offline, the same bytes for the same records."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

import record_factory as factory
from apexbench.cli import app
from apexbench.records import STATUSES
from apexbench.report import evidence, numbers
from apexbench.report.document import build
from apexbench.report.render import figures, report
from rendered import FILES, Page, pdf_text, render


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPU's report with every figure: five model sizes, five processes."""
    path = tmp_path_factory.mktemp("whole")
    records = [*factory.gpu_records()[:-1], *factory.transformer(factory.LADDER, 5)]
    return render(path, records, {"softmax": []})


def test_everything_is_there_and_small(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {*FILES, "figures"}
    assert (whole / "report.html").stat().st_size < 3_000_000
    assert (whole / "report.pdf").read_bytes().startswith(b"%PDF")
    names = {path.stem for path in (whole / "figures").iterdir()}
    assert names >= {
        "optimizer-times",
        "layer_norm-ratio",
        "rms_norm-ceiling",
        "transformer-throughput",
        "transformer-attribution",
        "transformer-loss",
        "transformer-scaling",
    }


def test_a_paper_that_is_not_wanted_is_not_typeset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = render(tmp_path, factory.gpu_records()[:1])
    assert (out / "report.pdf").is_file()
    monkeypatch.setitem(sys.modules, "typst", None)
    command = ["report", "--records", str(tmp_path / "run"), "--out", str(out)]
    assert isinstance(CliRunner().invoke(app, command).exception, ImportError)
    assert CliRunner().invoke(app, [*command, "--no-pdf"]).exit_code == 0
    assert {path.name for path in out.iterdir()} == {*FILES, "figures"} - {"report.pdf"}


def test_the_page_is_offline_and_well_formed(whole: Path) -> None:
    page = Page((whole / "report.html").read_text())
    assert page.loads == []
    assert page.handlers == []
    assert page.tags.count("script") == 1
    assert len(page.ids) == len(set(page.ids))
    assert "unavailable" in page.text
    for path in (whole / "figures").iterdir():
        ElementTree.fromstring(path.read_text())


def test_figures_can_be_hovered(whole: Path) -> None:
    page = (whole / "report.html").read_text()
    assert page.count("data-tip=") > 100
    assert re.search(r'data-tip="fused_layer_norm,[^"]*×[^"]*\[[^"]*n = \d+"', page)
    svg = (whole / "figures/optimizer-times.svg").read_text()
    step = factory.optimizer()[0].cell("fused_adam").quantities["step_time"]
    time = numbers.time(step.value, step.low, step.high)
    assert f"<title>fused_adam, gpt2-124M float32: {time}, n = 40</title>" in svg


def test_the_same_records_give_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    """In another process too, where sets and dictionaries hash otherwise."""
    words = ["report", "--records", str(whole.parent / "run"), "--out", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "apexbench", *words],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
    )
    for name in [*FILES, *(f"figures/{path.name}" for path in (whole / "figures").iterdir())]:
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name


def test_unchanged_tables_and_figures_keep_their_time_stamp(tmp_path: Path) -> None:
    out = render(tmp_path, factory.amp())
    kept = [out / "summary.csv", *(out / "figures").iterdir()]
    before = [path.stat().st_mtime_ns for path in kept]
    report(tmp_path / "run", out)
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_numbers_in_both_shapes_are_the_records(whole: Path) -> None:
    record = factory.optimizer()[0]
    step = record.cell("fused_adam").quantities["step_time"]
    comparison = next(c for c in record.comparisons if c.implementation == "fused_adam")
    expected = [
        numbers.time(step.value, step.low, step.high),
        numbers.ratio(comparison.ratio, comparison.low, comparison.high),
    ]
    page, paper = Page((whole / "report.html").read_text()).text, pdf_text(whole / "report.pdf")
    for text in expected:
        assert text in page
        assert text in paper
    for id in ("C1", "C2", "C3", "C4", "C5", "C6"):
        assert id in paper


def test_changing_one_record_changes_only_what_depends_on_it(tmp_path: Path) -> None:
    records = factory.gpu_records()
    factory.write_run(tmp_path / "a", records)
    index = next(i for i, record in enumerate(records) if record.component == "rms_norm")
    for comparison in records[index].comparisons:
        if comparison.implementation == "fused_rms_norm":
            comparison.ratio, comparison.low, comparison.high = 3.33, 3.32, 3.34
            comparison.verdict = "faster"
    factory.write_run(tmp_path / "b", records)
    before, after = (build(evidence.load(tmp_path / name)) for name in "ab")
    changed = json.dumps(after.content, ensure_ascii=False)
    assert "3.33× [3.32, 3.34]" in changed
    assert "3.33×" not in json.dumps(before.content, ensure_ascii=False)
    assert after.content["tiles"][2] != before.content["tiles"][2]
    assert after.content["claims"][2] != before.content["claims"][2]
    for position in (0, 1, 3, 4):
        assert after.content["tiles"][position] == before.content["tiles"][position]
    for position in (0, 1, 3, 4, 5):
        assert after.content["claims"][position] == before.content["claims"][position]
    pictures = [
        (old.id, old.svg == new.svg) for old, new in zip(before.figures, after.figures, strict=True)
    ]
    assert [name for name, same in pictures if not same] == ["rms_norm-ratio"]


def test_without_a_gpu_the_report_says_what_is_missing_and_why(tmp_path: Path) -> None:
    out = render(tmp_path, factory.cpu_records())
    page = Page((out / "report.html").read_text())
    assert "not tested" in page.text
    assert "needs an NVIDIA GPU" in page.text
    assert "Run on a machine with an NVIDIA GPU." in page.text
    assert "needs an NVIDIA GPU" in pdf_text(out / "report.pdf")


def test_every_status_in_every_component(tmp_path: Path) -> None:
    records = []
    for component in ("optimizer", "layer_norm", "amp", "transformer", "softmax", "selfcheck"):
        cells = [
            factory.lost(f"arm {name}", "apex", name, f"reason of {name}", f"remedy of {name}")
            for name in STATUSES
            if name != "ok"
        ]
        config = {"width": 64, "dtype": "float32", "direction": "forward"}
        records.append(factory.record(component, "case", cells, config=config))
    out = render(tmp_path, records)
    page = Page((out / "report.html").read_text()).text
    for name in STATUSES:
        if name != "ok":
            assert f"reason of {name}" in page
            assert f"remedy of {name}" in page


@pytest.mark.parametrize("missing", [{"optimizer": []}, {"rope": [{"case": "x", "reason": None}]}])
def test_empty_components_are_sections(tmp_path: Path, missing: dict) -> None:
    out = render(tmp_path, [], missing)
    page = Page((out / "report.html").read_text()).text
    assert "holds no record yet" in page
    assert "nothing was measured" in page or "left no record" in page


def test_a_lost_job_is_shown_with_its_log(tmp_path: Path) -> None:
    factory.write_run(tmp_path, factory.amp())
    lost = tmp_path / "records/transformer/gpt2-124M-p0/index.json"
    report(tmp_path, tmp_path / "out", [tmp_path / "records/amp/index.json", lost])
    page = Page((tmp_path / "out/report.html").read_text()).text
    assert "its job was lost before it wrote its index" in page
    assert "logs/transformer-gpt2-124M-p0.log" in page


def test_two_machines_are_grouped_and_named(tmp_path: Path) -> None:
    other = factory.amp(provenance=factory.provenance(device_name="Other GPU", node="node2"))
    other[0].key = "e" * 16
    out = render(tmp_path, [*factory.optimizer(), *other])
    page = Page((out / "report.html").read_text()).text
    assert "holds records of 2 devices" in page
    assert "Other GPU (node node2, 1 record)" in page
    assert "Other GPU" not in page.split("Optimizer step", 2)[2]


def test_figures_alone_make_their_folder(tmp_path: Path) -> None:
    factory.write_run(tmp_path / "run", [], {"optimizer": []})
    figures(tmp_path / "run", tmp_path / "figures")
    assert list((tmp_path / "figures").iterdir()) == []


def test_torch_is_never_imported(tmp_path: Path) -> None:
    factory.write_run(tmp_path / "run", factory.gpu_records())
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ImportError('torch is blocked')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from pathlib import Path\n"
        "from apexbench.report.render import report\n"
        "report(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "assert 'torch' not in sys.modules\n"
    )
    package = Path(evidence.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "out")],
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "out/report.pdf").is_file()
