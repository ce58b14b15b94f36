"""Indexes that no longer say what their records hold, taken back before Snakemake looks."""

from __future__ import annotations

import re
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


def take_back(indexes: Iterable[str], results: Path, argv: Sequence[str]) -> None:
    """Remove outdated indexes, so that Snakemake makes them again: it compares no times by itself.

    Not where this Snakemake (``argv``) runs nothing, nor where another run has ``results``: that
    one is still writing, and this one will be refused.
    """
    outdated = [Path(index) for index in indexes if records.outdated(Path(index))]
    if not outdated or any(ONLY_LOOKS.fullmatch(word) for word in argv):
        return
    try:
        with locks.run_lock(results.absolute()):
            for index in outdated:
                index.unlink(missing_ok=True)
    except UserError:
        return
