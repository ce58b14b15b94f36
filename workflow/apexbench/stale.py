"""Indexes that no longer say what their records hold, taken back before Snakemake looks."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from apexbench import locks, records
from apexbench.errors import UserError

ONLY_LOOKS = re.compile(
    r"-[A-Za-z]*n[A-Za-z]*|--(dry-?run|report|lint|dag|rulegraph|filegraph|d3dag|summary|"
    r"detailed-summary|list.*|print-compilation|unlock|archive|containerize|touch|cleanup-metadata|"
    r"generate-unit-tests|delete.*)(=.*)?"
)
"""Options of Snakemake with which no job runs."""
RULES = {"table": "summary.csv", "figures": "figures", "report": "report.html"}
OUTPUTS = {"summary.csv", "summary.json", "figures", "report.html", "report.pdf"}
"""What is made of every index, in results."""


def take_back(indexes: Iterable[str], results: Path, argv: Sequence[str]) -> None:
    """Remove outdated indexes, so that Snakemake makes them again: it compares no times by itself.

    And with them what ``argv`` asks for by name and is made of indexes: Snakemake calls a report up
    to date beside which an index is missing. Not where this Snakemake runs nothing, nor where
    another run has ``results``: that one is still writing, and this one will be refused. Raises
    UserError where an index is no file.
    """
    paths = [Path(index) for index in indexes]
    outdated = [path for path in paths if records.outdated(path)]
    if outdated or not all(path.exists() for path in paths):
        outdated += _asked(results, argv)
    if not outdated or any(ONLY_LOOKS.fullmatch(word) for word in argv):
        return
    try:
        with locks.run_lock(results.absolute()):
            for path in outdated:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    except UserError:
        return


def _asked(results: Path, argv: Sequence[str]) -> list[Path]:
    """What is there of the targets in ``argv`` that are made of every index."""
    words = [word for word in argv if not word.startswith("-")]
    found = {RULES.get(word, os.path.relpath(word, results)) for word in words}
    return [results / name for name in sorted(found & OUTPUTS) if (results / name).exists()]
