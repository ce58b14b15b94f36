"""What is printed where the terminal's encoding lacks a character: a stand-in, never an error."""

from __future__ import annotations

import codecs
import io
import sys

_ASCII = {"×": "x", "µ": "u", "−": "-", "–": "-", "…": "...", "≥": ">=", "≤": "<=", "·": "*"}


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter, "?") for letter in text), error.end


def print_anything() -> None:
    """Have stdout and stderr take any text, whatever their encoding is."""
    codecs.register_error("apexbench", _stand_in)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="apexbench")
