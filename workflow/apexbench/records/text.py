"""JSON text: strict reading, canonical form and its hash, file names, atomic writing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from apexbench.disk import a_file, cannot_write
from apexbench.errors import UserError

WRITING = ".writing-"
"""How the name of a file begins that is not whole yet."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is not a measurement")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key '{twice}' stands in it twice")
    return result


def read_text(path: Path) -> str:
    """The text of a file; UserError where a folder, a device or a pipe lies there: one could wait.

    Raises also what a reader has to say better: OSError, UnicodeDecodeError.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: delete it.")
    return path.read_text(encoding="utf-8")


def read_mapping(path: Path) -> dict[str, Any]:
    """A JSON file that is no record, strictly read; UserError where it holds no mapping."""
    try:
        value = load_json(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not valid JSON: delete it and run the same command again."
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): make it readable.") from error
    if not isinstance(value, dict):
        raise UserError(
            f"{path} is not an apexbench file: delete it and run the same command again."
        )
    return value


def load_json(text: str) -> Any:
    """Strict JSON: NaN, Infinity, overflowing numbers and duplicate keys raise ValueError.

    So do integers of more than 64 bits, which nothing here counts.
    """

    def finite(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            raise ValueError(f"it holds {literal}, which is not a finite number")
        return value

    def whole(literal: str) -> int:
        if len(literal) > 20 or not -(2**63) <= (value := int(literal)) < 2**63:
            raise ValueError(f"it holds a number of {len(literal)} digits")
        return value

    return json.loads(
        text,
        parse_int=whole,
        parse_constant=_refuse_constant,
        parse_float=finite,
        object_pairs_hook=_refuse_duplicates,
    )


def canonical(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces; what hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any, length: int = 16) -> str:
    """The first ``length`` hex digits of the SHA-256 of a JSON value's canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def source_digest(paths: list[Path]) -> str:
    """Hash of source files by name and content: what ``key`` says about the code."""
    return digest(
        [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in sorted(paths)]
    )


def file_name(case: str, key: str) -> str:
    """``<case>-<key>.json``; of the case, letters, digits, dots, underscores and hyphens stay."""
    safe = "".join(
        letter if (letter.isascii() and letter.isalnum()) or letter in "._" else "-"
        for letter in case
    )
    return f"{safe.strip('-.')[:100] or 'case'}-{key}.json"


def write_text_atomically(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, as :func:`write_bytes_atomically` does."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` so that a reader sees the old file or the new one, never half of it.

    Raises UserError, naming the path, the cause and the remedy, when the disk is full, not writable
    or gone; the old file stays as it was. A kill leaves a file ``.writing-…`` beside it.
    """
    temporary = None
    a_file(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=WRITING)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise cannot_write(path, error) from error


def sweep(folder: Path, older: float = 600.0) -> None:
    """Remove what writers that were killed left in ``folder`` more than ``older`` seconds ago."""
    before = time.time() - older
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".cache", "reference")]
        for name in files:
            if name.startswith(WRITING):
                with contextlib.suppress(OSError):
                    if os.stat(path := os.path.join(place, name)).st_mtime < before:
                        os.unlink(path)
