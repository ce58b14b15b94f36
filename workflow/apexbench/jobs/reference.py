"""A finished run becomes the versioned reference of its machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from apexbench import records
from apexbench.errors import UserError

FILES = ("machine.json", "config.json", "summary.csv", "summary.json")


def keep(results: Path, references: Path) -> str:
    """Copy the records that the run's indexes name, and its tables, to ``references/<machine>``.

    Every record is validated first. Raises UserError where the run is not finished, or its records
    come from several machines. Returns one sentence that says what was copied.
    """
    indexes = list(records.indexes(results))
    if not indexes:
        raise UserError(f"{results} holds no records: run `make report` first.")
    indexes += sorted((results / "selfcheck" / "records").rglob("index.json"))
    if absent := [name for name in FILES if not (results / name).exists()]:
        raise UserError(f"{results / absent[0]} is missing: run `make report` to its end first.")
    for name in ("machine.json", "config.json", "summary.json"):
        records.read_mapping(results / name)
    loaded = {path: records.read_index(path) for path in indexes}
    machines = {record.provenance["machine"] for entries in loaded.values() for record in entries}
    if len(machines) != 1:
        raise UserError(
            f"{results} holds records of several machines ({', '.join(sorted(machines))}): "
            "a reference is of one; measure again on one machine."
        )
    target = references / machines.pop()
    temporary = target.with_name(f".{target.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    count = 0
    for path, entries in loaded.items():
        folder = temporary / path.parent.relative_to(results)
        folder.mkdir(parents=True)
        shutil.copyfile(path, folder / path.name)
        for record in entries:
            name = records.file_name(record.case, record.key)
            shutil.copyfile(path.parent / name, folder / name)
            count += 1
    beside = [name for name in ("selfcheck/plan.json",) if (results / name).is_file()]
    for name in [*FILES, *beside]:
        shutil.copyfile(results / name, temporary / name)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    return f"{count} records copied to {target}"
