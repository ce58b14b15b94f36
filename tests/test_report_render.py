"""The rendered report: whole, offline, the same bytes, safe against what records may hold."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import record_factory as factory
from apexbench import records as store
from apexbench.errors import UserError
from apexbench.records import STATUSES, Record
from apexbench.report import evidence, numbers
from apexbench.report.document import build
from apexbench.report.render import figures, report

HOSTILE = (
    '</style><script>alert(1)</script><img src=x onerror=alert(2)>"\'&{{ 7*7 }} #panic("x") $x^2$ '
    "*b* @ref <label> \\input{/etc/passwd} $\\frac$ שלום \u202egnp\u202c 😀 \x01\x00 \ud800 --> ]]>"
)
FILES = ("summary.csv", "summary.json", "report.html", "report.pdf")


class Page(html.parser.HTMLParser):
    """Tags, ids and outside references of a page; ``text`` is what a reader sees."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "src" or (name == "href" and tag in ("link", "image")):
                self.loads.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


def render(tmp_path: Path, records: list[Record], missing: dict | None = None) -> Path:
    """A report of these records."""
    factory.write_run(tmp_path / "run", records, missing)
    report(tmp_path / "run", tmp_path / "out")
    return tmp_path / "out"


def pdf_text(path: Path) -> str:
    """The paper's text, without the zero-width spaces and line breaks of its setting."""
    tool = shutil.which("pdftotext")
    if tool is None:
        pytest.skip("pdftotext (poppler-utils) is not installed")
    done = subprocess.run([tool, "-layout", str(path), "-"], capture_output=True, check=True)
    return re.sub(r"\s+", " ", done.stdout.decode().replace("\u200b", ""))


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


def hostile_records() -> list[Record]:
    """Records with the hostile string wherever a record takes text."""
    provenance = factory.provenance()
    for key, value in provenance.items():
        if isinstance(value, str) and key not in ("device", "machine", "started", "finished"):
            provenance[key] = HOSTILE
    provenance["apex"] = {
        "state": HOSTILE,
        "sentence": HOSTILE,
        "remedy": HOSTILE,
        "commit": HOSTILE,
    }
    records = []
    for record in (
        factory.optimizer()[0],
        factory.norms()[0],
        factory.amp()[0],
        factory.transformer()[0],
    ):
        record.provenance = provenance
        record.case = HOSTILE[:200]
        record.work.formula = HOSTILE
        names = {cell.implementation: f"{i} {HOSTILE}" for i, cell in enumerate(record.cells)}
        for cell in record.cells:
            cell.implementation = names[cell.implementation]
            cell.description = cell.reason = cell.remedy = HOSTILE
            cell.kernels = [HOSTILE]
        for comparison in record.comparisons:
            comparison.implementation = names[comparison.implementation]
            comparison.members = [names[name] for name in comparison.members]
            comparison.flags = [HOSTILE]
        for entry in record.baselines.values():
            entry["members"], entry["reason"] = [], HOSTILE
        record.config = {**record.config, "dtype": HOSTILE, HOSTILE: HOSTILE}
        record.state[0]["hardware_throttle"] = [HOSTILE]
        record.seconds[HOSTILE] = 1.0
        records.append(record)
    return records


def test_hostile_strings_are_text_everywhere(tmp_path: Path) -> None:
    lost = [{"case": HOSTILE, "status": "failed", "reason": HOSTILE, "log": HOSTILE}]
    out = render(tmp_path, hostile_records(), {"rope": lost})
    text = (out / "report.html").read_text()
    page = Page(text)
    clean = Page((render(tmp_path / "clean", factory.amp()) / "report.html").read_text())
    assert page.tags.count("script") == clean.tags.count("script") == 1
    assert page.tags.count("img") == 0
    assert page.handlers == []
    assert page.loads == []
    assert "</style><script>alert(1)</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x01]", text)
    for path in (out / "figures").iterdir():
        tree = ElementTree.fromstring(path.read_text())
        assert not [node for node in tree.iter() if node.tag.endswith("script")]
    paper = pdf_text(out / "report.pdf")
    assert '#panic("x")' in paper
    assert "{{ 7*7 }}" in paper


def test_a_bad_record_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    factory.write_run(tmp_path / "run", factory.amp())
    path = next(p for p in (tmp_path / "run/records/amp").iterdir() if p.name != "index.json")
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match="delete that file"):
        report(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001234, "0.00123"),
        (1.0, "1.00"),
        (9.996, "10.0"),
        (999.6, "1000"),
        (12345.0, "12300"),
        (0.0, "0"),
        (float("nan"), "n/a"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.time(1_663_000, 1_650_000, 1_680_000), "1.66 [1.65, 1.68] ms"),
        (numbers.time(999_900), "1.00 ms"),
        (numbers.rate(341_300, "tokens/s"), "341 k tokens/s"),
        (numbers.rate(4.26e12, "B/s"), "4.26 TB/s"),
        (numbers.ratio(1.0234, 1.01, 1.03), "1.02× [1.01, 1.03]"),
        (numbers.memory(2**31), "2.00 GiB"),
        (numbers.count(124_000_000), "124 M"),
        (numbers.listing(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_carry_unit_and_interval(text: str, expected: str) -> None:
    assert text == expected


def test_many_cases_stay_small_and_say_what_is_left_out(tmp_path: Path) -> None:
    base = factory.norms()[0]
    records = []
    for number in range(700):
        case = f"case {number}"
        config = {**base.config, "width": 64 + number}
        records.append(dataclasses.replace(base, case=case, key=f"{number:016x}", config=config))
    out = render(tmp_path, records)
    text = (out / "report.html").read_text()
    assert len(text.encode()) < 3_000_000
    assert "the first 1000 of 2100 rows; all are in summary.csv" in text
    assert "The first 200 of 700 cases are drawn." in text
    assert len((out / "summary.csv").read_text().splitlines()) > 2100


def many_records(folder: Path, count: int) -> None:
    """A run folder of ``count`` records, made from a few by giving each another case and key."""
    base = [*factory.norms(), *factory.optimizer(), *factory.amp(), *factory.transformer()]
    files: dict[str, list[dict[str, str]]] = {}
    texts: dict[int, str] = {}
    for number in range(count):
        record = base[number % len(base)]
        home = folder / "records" / record.component
        if number < len(base):
            home.mkdir(parents=True, exist_ok=True)
            record.key = "0" * 16
            path = store.write(record, home)
            texts[id(record)] = path.read_text()
            path.unlink()
        key, case = f"{number:016x}", f"{record.case} {number}"
        text = texts[id(record)].replace(f'"key":"{"0" * 16}"', f'"key":"{key}"')
        text = text.replace(f'"case":"{record.case}"', f'"case":"{case}"')
        name = store.file_name(case, key)
        (home / name).write_text(text)
        files.setdefault(record.component, []).append({"file": name})
    for component, entries in files.items():
        index = {"component": component, "records": entries, "missing": []}
        (folder / "records" / component / "index.json").write_text(json.dumps(index))


def test_ten_thousand_records_take_less_than_a_minute_and_two_gigabytes(tmp_path: Path) -> None:
    many_records(tmp_path / "run", 10_000)
    words = ["report", "--records", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-m", "apexbench", *words])
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    # Processor time: what the wall clock says also depends on who else uses the machine.
    assert used.ru_utime + used.ru_stime < 60
    assert used.ru_maxrss < 2 * 2**20
    assert (tmp_path / "out/report.html").stat().st_size < 3_000_000
    assert len((tmp_path / "out/summary.csv").read_text().splitlines()) > 30_000


def test_a_dollar_sign_in_a_figure_is_a_dollar_sign(tmp_path: Path) -> None:
    record = factory.optimizer()[0]
    record.case = r"$\undefined{x}$"
    out = render(tmp_path, [record])
    assert r"fused_adam, $\undefined{x}$:" in (out / "figures/optimizer-times.svg").read_text()
