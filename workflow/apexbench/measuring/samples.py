"""What the sampler is told, what it gives back, and what it tells while it works."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

MARGIN = 0.01
"""The equivalence margin m: speeds within this fraction of each other are the same."""


@dataclass
class Settings:
    """How long and how sure: seconds a case, pilot rounds, confidence, retries of a block."""

    case_seconds: float = 3.0
    pilot_rounds: int = 30
    confidence: float = 0.99
    margin: float = MARGIN
    retries: int = 3


@dataclass
class Samples:
    """Windows of one quantity: ``times[arm][round]`` in ns, and the block of each round.

    ``cold`` says which calls of a window meet a cold cache. ``short`` are arms whose windows may
    not hold enough calls to be long against the tick and the empty window. ``flags`` concern all.
    """

    quantity: str
    calls: dict[str, int]
    times: dict[str, list[int]]
    blocks: list[int]
    pilot_rounds: int
    stop: str
    tick_ns: int
    null_window_ns: int
    clocks: dict[str, list[int]] = field(default_factory=dict)
    state: list[dict[str, Any]] = field(default_factory=list)
    repeated_blocks: int = 0
    window_seconds: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)
    cold: str = "every call"
    short: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    def per_call(self, arm: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Nanoseconds per call of every round."""
        return np.asarray(self.times[arm], dtype=np.float64) / self.calls[arm]

    def tick_per_call(self, *arms: str) -> float:
        """The timer's tick per call, the coarsest of these arms."""
        return max(self.tick_ns / self.calls[arm] for arm in arms)


class Watch:
    """What the sampler tells and asks the outside: heartbeats, machine state, clocks."""

    def beat(self, phase: str, implementation: str | None) -> None:
        """Called before every window."""

    def begin(self) -> None:
        """Called where a block begins, after its buffers were made."""

    def state(self) -> dict[str, Any]:
        """State of the machine at the end of a block."""
        return {}

    def clock(self) -> int | None:
        """SM clock in MHz now, or None."""
        return None
