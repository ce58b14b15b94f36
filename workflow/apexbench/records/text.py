"""JSON text: strict reading, canonical form and its hash, file names, atomic writing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from apexbench.errors import UserError


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is not a measurement")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice}' stands in it twice")
    return result


def load_json(text: str) -> Any:
    """Strict JSON: NaN, Infinity, overflowing numbers and duplicate keys raise ValueError."""

    def finite(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            raise ValueError(f"it holds {literal}, which is not a finite number")
        return value

    return json.loads(
        text,
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
    """Write ``text`` so that a reader sees the old file or the new one, never half of it.

    Raises UserError, naming the path and the cause, when the disk is full or not writable; the
    old file stays as it was.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise UserError(
            f"{path} cannot be written ({error.strerror}): free the disk or make its folder "
            "writable, then run the same command again; earlier records are intact."
        ) from error
