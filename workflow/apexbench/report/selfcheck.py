"""The section on the self-check, from the records that ``apexbench selfcheck`` left in a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.report import counts, known, numbers, vocabulary
from apexbench.report.cases import Case, identity, merge
from apexbench.report.evidence import printable
from apexbench.report.tables import Entry, Table
from apexbench.selfcheck import proofs

TONES = {"passed": "good", "failed": "bad"}


def load(folder: Path, model: str | None) -> proofs.Evidence:
    """The self-check in a run folder, of one GPU (or CPU) model; empty where it ran on none."""
    found = proofs.load(folder / "selfcheck", folder)
    for record in found.records:
        known.check(record, str(folder / "selfcheck"))
    found.records = [record for record in found.records if identity(record)[0] == model]
    return found


def cases(found: proofs.Evidence) -> list[Case]:
    """Its cases, for the sentence on false verdicts."""
    return merge(found.records)


def section(found: proofs.Evidence) -> list[dict[str, Any]]:
    """One section, or none where there are no records."""
    if not found.records:
        return []
    judged = _judged(found)
    rows = [
        [
            Entry(proof.name),
            Entry(proof.target),
            Entry(proof.state, tone=TONES.get(proof.state, "quiet")),
            Entry(printable(proof.found)),
        ]
        for proof in judged
    ]
    columns = ["proof", "must hold", "state", "found"]
    table = Table("Measurements whose answer was known beforehand", columns, rows, len(rows))
    return [
        {
            "id": "selfcheck",
            "title": vocabulary.title("selfcheck"),
            "leads": [_lead(found, judged)],
            "work": {"title": "", "rows": []},
            "figures": [],
            "counts": counts.NOTHING,
            "arms": [],
            "table": table.plain(),
        }
    ]


def _judged(found: proofs.Evidence) -> list[proofs.Proof]:
    """The proofs; UserError where a record holds something else than the self-check leaves."""
    try:
        return proofs.judge(found)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UserError(
            "The records of the self-check do not hold what it measures: delete the folder "
            "selfcheck of this run, or run `apexbench selfcheck --fresh`."
        ) from error


def _lead(found: proofs.Evidence, judged: Sequence[proofs.Proof]) -> str:
    held = sum(proof.state == "passed" for proof in judged)
    failed = [proof.name for proof in judged if proof.state == "failed"]
    text = (
        f"apexbench selfcheck measured {numbers.plural(len(found.records), 'case')} on this "
        f"machine whose answer is known beforehand: {held} of "
        f"{numbers.plural(len(judged), 'proof')} held"
    )
    return (
        f"{text}; these did not: {numbers.listing(failed)}." if failed else f"{text}, none failed."
    )
