"""What else decides: the answers of the component ``compatibility`` as a table and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apexbench.report import numbers, vocabulary
from apexbench.report.cases import Arm, Case
from apexbench.report.cells import Entry, Table

TONES = {"yes": "good", "no": "bad"}


def _answers(arm: Arm) -> dict[str, dict[str, Any]]:
    found = arm.details.get("probes")
    return found if isinstance(found, dict) else {}


def _name(arm: Arm) -> str:
    """``apex.optimizers.FusedAdam(capturable=True)`` without the packages before it."""
    text = arm.description.rstrip(".")
    head, _, tail = text.partition("(")
    return head.rsplit(".", 1)[-1] + (f"({tail}" if tail else "")


def table(cases: Sequence[Case], most: int) -> Table:
    """One row a part, one column a question; the note of a cell says the error or the number."""
    arms = [arm for case in cases for arm in case.arms]
    questions = list(dict.fromkeys(name for arm in arms for name in _answers(arm)))
    rows = []
    for arm in arms[:most]:
        row = [Entry(_name(arm), note=arm.description)]
        answers = _answers(arm)
        for name in questions:
            if arm.status != "ok":
                mark = vocabulary.STATUS_MARKS.get(arm.status, "✕")
                text = f"{mark} {vocabulary.status(arm.status)}"
                row.append(Entry(text, tone="lost", note=arm.reason or ""))
            elif name in answers:
                answer = answers[name]
                text, note = str(answer.get("answer", "n/a")), str(answer.get("note", ""))
                row.append(Entry(text, tone=TONES.get(text, "quiet"), note=note))
            else:
                row.append(Entry("n/a", tone="quiet", note="not a question of this part"))
        rows.append(row)
    return Table("What each part can be combined with", ["part", *questions], rows, len(arms))


def lines(cases: Sequence[Case]) -> list[str]:
    """A sentence for every part of Apex that was asked: what it cannot do."""
    found = []
    for arm in (arm for case in cases for arm in case.arms if arm.is_apex and arm.status == "ok"):
        answers = _answers(arm)
        no = [name for name, answer in answers.items() if answer.get("answer") == "no"]
        if no:
            found.append(f"{_name(arm)} fails at {numbers.listing(no)}.")
        elif answers:
            found.append(f"{_name(arm)} can be combined with all that was asked.")
    return found
