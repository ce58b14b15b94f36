"""A table as data: cells of text, with a key to sort by and a tone for the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One table cell. ``sort`` is a number, or None to sort by the text.

    ``verdict`` follows a ratio on a line of its own, with the marks of its footnotes.
    """

    text: str
    sort: float | None = None
    tone: str = ""
    note: str = ""
    verdict: str = ""


@dataclass
class Table:
    """A titled table; ``total`` rows exist, of which ``rows`` are shown.

    ``paper`` are the columns that the narrower paper shows.
    ``footnotes`` explain the marks that follow a ratio.
    """

    title: str
    columns: list[str]
    rows: list[list[Entry]]
    total: int
    paper: list[int] = field(default_factory=list)
    footnotes: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The table as JSON values."""
        return asdict(self) | {"paper": self.paper or list(range(len(self.columns)))}
