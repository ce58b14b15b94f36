"""What a report command prints: on any terminal, from any folder, one sentence for bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import record_factory as factory
from conftest import ROOT

WORKFLOW = ROOT / "workflow"


def apexbench(*words: str, encoding: str = "utf-8") -> subprocess.CompletedProcess:
    """The command line in a process of its own, whose streams have this encoding."""
    environment = {**os.environ, "PYTHONPATH": str(WORKFLOW), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "apexbench", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", check=False
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder with times, ratios and a trained model."""
    entries = [*factory.optimizer()[:1], *factory.transformer()]
    return factory.write_run(tmp_path_factory.mktemp("terminal") / "run", entries)


@pytest.mark.parametrize(
    "words", [("compare", "{run}", "{run}"), ("recommend", "--results", "{run}")]
)
def test_a_terminal_of_ascii_gets_text(run, words) -> None:
    words = [word.format(run=run) for word in words]
    done = apexbench(*words, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    whole = apexbench(*words)
    assert len(done.stdout.splitlines()) == len(whole.stdout.splitlines())
    if words[0] == "recommend":
        assert "×" in whole.stdout
        assert done.stdout == whole.stdout.replace("×", "x").replace("…", "...")


def test_a_readme_that_is_not_there_is_one_sentence(run, tmp_path) -> None:
    missing = tmp_path / "no" / "such" / "README.md"
    done = apexbench("readme", "--records", str(run), "--out", str(missing))
    assert done.returncode == 2
    assert done.stderr == (
        f"apexbench: {missing} cannot be read (No such file or directory): name a file that holds "
        "the two markers.\n"
    )
