"""``results/image.json``: which image the measurements run in, and what is in it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.records import read_text, write_text_atomically

REMEDY = "run `apexbench image build` (or the same `make report` after removing {path})"


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record; the same image gives the same text."""
    write_text_atomically(path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def read(path: Path) -> dict[str, Any]:
    """The record of the image.

    Raises:
        UserError: it is not there or not one, or it describes a .sif that has changed since.
    """
    try:
        record = json.loads(read_text(path))
        engine, identity, reference = record["engine"], record["id"], record["reference"]
    except OSError as error:
        raise UserError(f"{path} is not there: run `apexbench image build`.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no image record ({error}): remove it and build again."
        ) from error
    assert isinstance(identity, str)
    if engine == "apptainer":
        file = Path(reference)
        if not file.is_file():
            raise UserError(f"{reference} is not there any more: {REMEDY.format(path=path)}.")
        if stamp(file) != record.get("stamp"):
            raise UserError(
                f"{reference} has changed since {path} was written: {REMEDY.format(path=path)}."
            )
    return dict(record)


def given_file(path: str) -> Path:
    """The .sif that config.yaml names; UserError where there is no such file.

    Snakemake would wait for what a pipe in its place holds.
    """
    if not os.path.isfile(path):
        raise UserError(
            f"image.sif: {path} is not there, or no file: correct the path, or set it to null."
        )
    return Path(path).absolute()


def stamp(file: Path) -> list[int]:
    """Size in bytes and time of change in ns: whether a large file is still the same."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def file_id(file: Path) -> str:
    """The SHA-256 of a .sif, written as engines write an image's id."""
    with file.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()
