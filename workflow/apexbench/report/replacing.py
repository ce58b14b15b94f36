"""What `apexbench reference` would overwrite: a versioned reference is not lost in silence."""

from __future__ import annotations

from pathlib import Path

from apexbench import records
from apexbench.errors import UserError
from apexbench.records import Record
from apexbench.report import numbers

SAME = ("run", "apexbench", "source", "torch", "driver")
"""What two copies of one run have in common."""


def _read(folder: Path) -> list[Record]:
    return [record for index in records.indexes(folder) for record in records.read_index(index)]


def _is(found: list[Record]) -> dict[str, list[str]]:
    """The values of what tells runs apart, over all records."""
    values = {key: sorted({str(record.provenance.get(key)) for record in found}) for key in SAME}
    apex = {
        str(entry.get("commit")) for record in found
        if isinstance(entry := record.provenance.get("apex"), dict)
    }  # fmt: skip
    return {**values, "apex": sorted(apex)}


def check(results: Path, references: Path, force: bool) -> str:
    """One sentence on what copying ``results`` replaces; empty where it replaces nothing.

    Raises UserError where the reference of that machine is another run's and ``force`` is not set,
    or where it cannot be read.
    """
    own = _read(results)
    machines = {str(record.provenance["machine"]) for record in own}
    if len(machines) != 1:
        return ""  # the copy itself says what is wrong
    target = references / machines.pop()
    if not target.exists():
        return ""
    try:
        old = _read(target)
    except UserError as error:
        if force:
            return f"{target}, which could not be read, is replaced"
        raise UserError(f"{error} Or replace it whole with FORCE=1 (--force).") from error
    now, before = _is(own), _is(old)
    differ = [
        f"{key} {numbers.listing(before[key])} by {numbers.listing(now[key])}"
        for key in now
        if before[key] != now[key]
    ]
    count = numbers.plural(len(old), "record")
    if old and differ and not force:
        raise UserError(
            f"{target} holds {count} of another run (it would replace {'; '.join(differ)}): commit "
            "or copy them, then say FORCE=1 (--force) to replace them."
        )
    return f"{count} of {target} replaced" + (f" ({'; '.join(differ)})" if differ else "")
