"""Progress that a person can follow: component, case, n of m, time left; on stderr and logged."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from apexbench import broken_pipe


def span(seconds: float) -> str:
    """A length of time for people: ``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """One line a case; the time left from the cases measured so far."""

    def __init__(self, component: str, total: int, log: Path):
        self._component, self._total, self._log = component, total, log
        self._begin, self._already = time.monotonic(), 0

    def _say(self, text: str) -> None:
        line = f"{self._component}: {text}"
        broken_pipe.say(line)
        self._write(line)

    def _write(self, line: str) -> None:
        # A log that cannot be written must not end a measurement.
        with contextlib.suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as stream:
                stream.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def start(self, already: int) -> None:
        """Say how many cases there are and how many are measured already."""
        self._already = already
        kept = f", {already} measured before and kept" if already else ""
        self._say(f"{self._total} cases{kept}")

    def case(self, label: str, done: int) -> None:
        """Say which case begins."""
        measured = done - self._already
        left = ""
        if measured > 0:
            pace = (time.monotonic() - self._begin) / measured
            left = f", {span(pace * (self._total - done))} left"
        self._say(f"case {done + 1} of {self._total}: {label}{left}")

    def phase(self, text: str) -> None:
        """Note a phase in the log only."""
        self._write(f"{self._component}:   {text}")

    def more(self, total: int) -> None:
        """Count ``total`` cases from now on: arms had no room beside the others of one."""
        self._total = total
        self._say("arms without room in the memory follow in a group of their own")

    def record(self, done: int) -> None:
        """A record was written."""

    def finish(self, measured: int, total: int) -> None:
        """Say what was done."""
        took = span(time.monotonic() - self._begin)
        self._say(f"done, {measured} measured, {total - measured} kept, {took}")
