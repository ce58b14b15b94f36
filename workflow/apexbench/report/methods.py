"""The Methods section and the references: prose from files, numbers from records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from apexbench.report import loss_gate, numbers
from apexbench.report.cases import Case
from apexbench.report.repeats import FEWEST_PROCESSES
from apexbench.report.verdicts import all_of

TEMPLATES = Path(__file__).parents[2] / "report"


def sections(cases: Sequence[Case]) -> list[dict[str, str]]:
    """``title`` and ``text`` of each paragraph of ``methods.md``, its placeholders filled."""
    margins = sorted({versus.margin for _, _, versus in all_of(cases)}) or [0.01]
    values = {
        "{confidence}": numbers.confidence(cases[0].confidence if cases else 0.99),
        "{margin}": numbers.listing([f"{100 * value:g} %" for value in margins], "or"),
        "{processes}": str(FEWEST_PROCESSES),
        "{seeds}": str(loss_gate.FEWEST_SEEDS),
        "{loss_confidence}": numbers.confidence(loss_gate.CONFIDENCE),
        "{loss_margin}": f"{loss_gate.MARGIN:g}",
    }
    prose = (TEMPLATES / "methods.md").read_text(encoding="utf-8")
    for name, value in values.items():
        prose = prose.replace(name, value)
    parts = re.split(r"^## (.+)$", prose, flags=re.MULTILINE)[1:]
    return [
        {"title": title.strip(), "text": " ".join(text.split())}
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def references() -> list[dict[str, str]]:
    """``text`` and ``url`` of every work cited."""
    entries: list[dict[str, str]] = json.loads(
        (TEMPLATES / "references.json").read_text(encoding="utf-8")
    )
    return entries
