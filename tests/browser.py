"""Fixtures of the page's tests: built reports in a real browser, from disk, without a network."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

import record_factory as factory
from apexbench.report.compare import page
from apexbench.report.comparison import compare
from apexbench.report.render import report
from conftest import ROOT, require, require_tool
from rendered import hostile_records

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
REFERENCE = ROOT / "results" / "reference" / "nvidia-h200"


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, headless, driven by Playwright."""
    for name in ("playwright", "axe_playwright_python"):
        require(importlib.util.find_spec(name), f"{name} drives the page (the dev extra has it)")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    path = path or require_tool("chromium", "it opens the report")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Built reports: the reference GPU's, a CPU's, one of hostile strings, one of every status."""
    home = tmp_path_factory.mktemp("pages")
    report(REFERENCE, home / "gpu")
    runs = {
        "cpu": (factory.cpu_records(), None),
        "hostile": (hostile_records(), None),
        "empty": ([], {"optimizer": [], "rope": [{"case": "x", "reason": None}]}),
    }
    for name, (records, missing) in runs.items():
        factory.write_run(home / f"{name}-run", records, missing)
        report(home / f"{name}-run", home / name, beside=[home / "gpu/report.html"])
    (home / "compare").mkdir()
    folders = [REFERENCE, home / "cpu-run", home / "hostile-run"]
    (home / "compare/report.html").write_text(page(compare(folders)))
    return {name: home / name / "report.html" for name in ("gpu", *runs, "compare")}


class Opened:
    """A page in its own context, with what it asked the network for and what went wrong in it."""

    def __init__(self, browser, path: Path, viewport=DESKTOP, scheme="light", **options):
        self.context = browser.new_context(
            viewport=viewport, color_scheme=scheme, offline=True, **options
        )
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on(
            "console",
            lambda entry: self.faults.append(entry.text) if entry.type == "error" else None,
        )
        self.page.on("dialog", lambda dialog: (self.faults.append("dialog"), dialog.dismiss()))
        self.page.goto(path.as_uri())

    def column(self, table: str, index: int) -> list[str]:
        """The visible cells of a column, top to bottom."""
        return self.page.eval_on_selector_all(
            f"#{table} tbody tr:not([hidden]) td:nth-child({index})",
            "cells => cells.map(cell => cell.dataset.sort ?? cell.innerText.trim())",
        )


@pytest.fixture
def open_page(browser, pages):
    """Open a built report; every page must have stayed on the disk and run without a fault."""
    opened = []

    def go(name: str, **options) -> Opened:
        opened.append(Opened(browser, pages[name], **options))
        return opened[-1]

    yield go
    for one in opened:
        assert all(url.startswith("file:") for url in one.requests), one.requests
        assert one.faults == []
        one.context.close()
