"""YAML read strictly: plain data of bounded size, every fault a sentence with its line.

Values follow the JSON schema of YAML 1.2: ``yes`` is text, ``1e-2`` a number, ``010`` is ten. There
are no tags, so nothing can be constructed; a whole number of more than 40 digits, and one that no
float holds (1e400, 1e-400), stays text as it was written, which no key for a number accepts.
"""

from __future__ import annotations

import math
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from apexbench.config.sentences import show
from apexbench.errors import UserError

MAX_BYTES = 64 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 16
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_MOST_DIGITS = 40
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_WORDS |= {word.capitalize(): _WORDS[word] for word in ("null", "true", "false")}


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar: None, bool, int, finite float, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if not _FLOAT.fullmatch(text) or not_held(text):
        return text
    return int(text) if _INTEGER.fullmatch(text) else float(text)


def not_held(text: str) -> bool:
    """Whether ``text`` is written as a number, but as one too large, or too near to 0, to keep."""
    if not _FLOAT.fullmatch(text):
        return False
    if _INTEGER.fullmatch(text):
        return len(text.lstrip("-+")) > _MOST_DIGITS
    written = re.split("[eE]", text)[0]
    lost = float(text) == 0 and any(digit in written for digit in "123456789")
    return lost or len(text) > 400 or not math.isfinite(float(text))


@dataclass
class _Collection:
    """A mapping or list under construction; ``size`` counts its values, aliases expanded."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    size: int = 1
    key: str | None = None
    merged: list[Any] = field(default_factory=list)

    def expects_key(self) -> bool:
        """Whether the next value is a key of this mapping."""
        return isinstance(self.value, dict) and self.key is None


def parse(text: str, name: str) -> Any:
    """The one document in ``text``; UserError naming ``name`` and the line for anything else."""
    try:
        return _Builder(name).build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        lines = text.splitlines()
        if line < len(lines) and re.match(r" *\t", lines[line]):
            sentence = f"{name} line {line + 1} is indented with a tab: use spaces."
        else:
            problem = error.problem or error.context or "it cannot be parsed"
            sentence = f"{name} line {line + 1} is not valid YAML ({problem}): correct that line."
        raise UserError(sentence) from error
    except yaml.YAMLError as error:
        raise UserError(f"{name} holds a character that YAML does not allow: remove it.") from error


class _Builder:
    """Builds values from the parser's events, so that no limit is met only after the fact."""

    def __init__(self, name: str):
        self.name = name
        self.stack: list[_Collection] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.documents: list[Any] = []
        self.line = 0

    def build(self, text: str) -> Any:
        for event in yaml.parse(text, Loader=_PARSER):
            self.line = event.start_mark.line + 1 if event.start_mark else self.line
            if (tag := getattr(event, "tag", None)) not in (None, "!"):
                raise self._fault(f"has the tag {show(tag)}: write plain values")
            if isinstance(event, yaml.ScalarEvent):
                plain = event.implicit[0]
                value = scalar(event.value) if plain else event.value
                self._add(value, 1, event.anchor, key=event.value)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self.anchors:
                    raise self._fault(
                        f"uses the alias {show(event.anchor)}, which is not defined above it"
                    )
                self._add(*self.anchors[event.anchor], None)
            elif isinstance(event, yaml.CollectionStartEvent):
                if len(self.stack) >= MAX_DEPTH:
                    raise self._fault(f"is nested more than {MAX_DEPTH} deep: flatten it")
                if self.stack and self.stack[-1].expects_key():
                    raise self._fault("has a list or a mapping as a key: a key is a word")
                mapping = isinstance(event, yaml.MappingStartEvent)
                self.stack.append(_Collection({} if mapping else [], event.anchor))
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self.stack.pop()
                self._merge(done)
                self._add(done.value, done.size, done.anchor)
            elif isinstance(event, yaml.DocumentStartEvent) and self.documents:
                raise self._fault("starts a second document: keep one")
        return self.documents[0] if self.documents else None

    def _add(self, value: Any, size: int, anchor: str | None, key: str | None = None) -> None:
        if anchor is not None:
            self.anchors[anchor] = (value, size)
        if not self.stack:
            self.documents.append(value)
            return
        parent = self.stack[-1]
        parent.size += size
        if parent.size > MAX_VALUES:
            raise self._fault(f"takes it past {MAX_VALUES} values, aliases expanded: shorten it")
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif parent.key is not None:
            if parent.key == "<<":
                parent.merged.extend(value if isinstance(value, list) else [value])
            else:
                parent.value[parent.key] = value
            parent.key = None
        elif key is None:
            raise self._fault("has an alias as a key: write the key itself")
        elif key in parent.value:
            raise self._fault(f"gives the key {show(key)} a second time: keep one of the two")
        else:
            parent.key = key

    def _merge(self, done: _Collection) -> None:
        for part in done.merged:
            if not isinstance(part, dict) or not isinstance(done.value, dict):
                raise self._fault("ends a mapping in which << is given no mapping: name one")
            done.value = {**part, **done.value}

    def _fault(self, problem: str) -> UserError:
        return UserError(f"{self.name} line {self.line} {problem}.")


def read(path: Path, name: str) -> Any:
    """The content of the file ``path``, called ``name`` in sentences. Raises UserError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{name} is not a file: put a YAML file there.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{name} is missing: restore it with `git checkout -- {name}`.") from error
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): make it readable.") from error
    if len(data) > MAX_BYTES:
        raise UserError(f"{name} is larger than {MAX_BYTES // 1024} KiB: shorten it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{name} line {line} is not UTF-8: save the file as UTF-8.") from error
    return parse(text, name)
