"""A report of synthetic records, its page as text, and records of hostile strings."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import record_factory as factory
from apexbench.records import Record
from apexbench.report.render import report

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
