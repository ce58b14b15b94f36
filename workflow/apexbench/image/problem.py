"""One thing that keeps a build from working, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """``fault`` says what is wrong, ``remedy`` what to do; as text, one sentence."""

    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.remedy}."
