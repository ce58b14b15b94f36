"""What the pages under docs/ claim: tests that exist, versions that were measured."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
TESTS = {
    name
    for path in (ROOT / "tests").glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_tests_files_and_pages_that_exist(page):
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`(test_\w+)`", text)) <= TESTS
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(
        r"`((?:results/reference|profiles|docs|workflow|tests)/[^`*<…]+)`", text
    ):
        assert (ROOT / path).exists(), path


def test_every_row_of_the_threat_model_is_shown_by_a_test():
    text = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 12
    for row in rows[1:]:
        assert "`test_" in row.split("|")[-2], row


def test_what_is_called_tested_was_measured():
    text = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    folder = ROOT / "results/reference/nvidia-h200"
    machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    rows = {row.split("|")[1].strip(): row.split("|") for row in text.splitlines() if "|" in row}
    (gpu,) = machine["gpus"]
    assert gpu["name"] in rows["GPU"][2]
    assert f"sm_{gpu['compute_capability'].replace('.', '')}" in rows["GPU"][2]
    for architecture in re.findall(r"sm_\d+", rows["GPU"][3]):
        held = machine["torch"]["architectures"]
        # Code of the same generation runs: 8.9 runs 8.6's.
        assert architecture in held or architecture == "sm_89"
    assert machine["torch"]["version"] in rows["torch"][2]
    assert machine["torch"]["cuda"] in rows["CUDA"][2]
    assert machine["driver"] in rows["CUDA"][2]
    assert machine["apex"]["commit"] in rows["Apex"][2]
    assert f"{sum(machine['apex']['modules'].values())} compiled" in rows["Apex"][2]
    assert machine["python"]["version"] in rows["Python"][2]
    assert machine["host"]["os"] in rows["system"][2]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"TORCH_VERSION \?= (.*)", makefile)[1] + "+cpu" in rows["torch"][2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    assert "before 3.11" in rows["Python"][4]
