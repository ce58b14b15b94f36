"""Writes the digests that were seen into config.yaml, and nothing else in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from apexbench.config import strict_yaml
from apexbench.errors import UserError
from apexbench.image.recipe import Base
from apexbench.records import write_text_atomically

KEYS = {"base": "digest", "runtime_base": "runtime_digest"}
"""The image's key -> the key that holds its digest."""


def write(path: Path, bases: Mapping[str, Base]) -> list[str]:
    """Set ``image.digest`` and ``image.runtime_digest`` in the file; returns what was changed.

    Comments and every other line stay. A base is passed over if it is not the one that the file
    names: then it came from the command line, or another file.

    Raises:
        UserError: the file has no such line, or cannot be read or written.
    """
    named = strict_yaml.read(path, path.name)
    image = named.get("image") if isinstance(named, dict) else None
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    changed = []
    for base, key in KEYS.items():
        seen = bases.get(base)
        if seen is None or seen.digest is None:
            continue
        if not isinstance(image, dict) or image.get(base) != seen.name:
            continue
        place = _line(lines, key)
        if place is None:
            raise UserError(
                f"{path} has no line image.{key} to write {seen.digest} to: add `{key}: null`."
            )
        number, head, tail = place
        line = f"{head}{seen.digest}{tail}"
        if lines[number] != line:
            lines[number] = line
            changed.append(f"image.{key}: {seen.digest}")
    if changed:
        write_text_atomically(path.resolve(), "".join(lines))
    return changed


def _line(lines: list[str], key: str) -> tuple[int, str, str] | None:
    """Number of the line ``image.<key>``, and its text before and after the value."""
    pattern = re.compile(rf"(\s+{key}:[ \t]*)([^\s#]*)([ \t]*(?:#.*)?\n?)$")
    inside = False
    for number, line in enumerate(lines):
        if re.match(r"\S", line) and not line.startswith("#"):
            inside = line.startswith("image:")
        elif inside and (found := pattern.match(line)):
            head = found[1] if found[1].endswith((" ", "\t")) else found[1] + " "
            return number, head, found[3]
    return None
