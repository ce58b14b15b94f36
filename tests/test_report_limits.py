"""Hostile strings, damaged records and very many of them: the report stays whole and small."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import record_factory as factory
from apexbench import records as store
from apexbench.errors import UserError
from apexbench.report.render import report
from rendered import HOSTILE, Page, hostile_records, pdf_text, render


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
    text = (tmp_path / "out/report.html").read_text()
    assert len(text.encode()) < 3_000_000
    assert re.search(r"The first 60 of \d+ points of a line are drawn\.", text)
    assert len((tmp_path / "out/summary.csv").read_text().splitlines()) > 30_000


def test_a_dollar_sign_in_a_figure_is_a_dollar_sign(tmp_path: Path) -> None:
    record = factory.optimizer()[0]
    record.case = r"$\undefined{x}$"
    out = render(tmp_path, [record])
    assert r"fused_adam, $\undefined{x}$:" in (out / "figures/optimizer-times.svg").read_text()
