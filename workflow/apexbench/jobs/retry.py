"""Clear records that hold cells of given statuses, so that the next run measures them again."""

from __future__ import annotations

import difflib
from pathlib import Path

from apexbench import records
from apexbench.errors import UserError


def clear(results: Path, statuses: str) -> str:
    """Delete the records with a cell of one of ``statuses`` (comma-separated) and their indexes.

    Raises UserError for a status that does not exist. Returns one sentence that says what was done.
    """
    wanted = [status.strip() for status in statuses.split(",") if status.strip()]
    for status in wanted:
        if status not in records.STATUSES:
            near = difflib.get_close_matches(status, records.STATUSES, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise UserError(f"'{status}' is not a status: {hint}({', '.join(records.STATUSES)})")
    cleared = 0
    for index in records.indexes(results):
        hit = [
            record
            for record in records.read_index(index)
            if any(cell.status in wanted for cell in record.cells)
        ]
        for record in hit:
            (index.parent / records.file_name(record.case, record.key)).unlink()
        if hit:
            index.unlink()
            cleared += len(hit)
    return f"{cleared} records cleared; the next run measures them again"
