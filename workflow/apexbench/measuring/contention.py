"""Whether other processes took the CPU from this one: the time its threads stood ready in vain.

A load average counts what is measured too, and remembers a minute; the kernel's clock ticks are as
long as a block. The scheduler itself knows, to the nanosecond and for this process alone, how long
each thread was ready to run while another had the CPU (``schedstat`` in the kernel's documentation
of the scheduler).
"""

from __future__ import annotations

import contextlib
import os
import time

from apexbench.machine.host import cores

BUSY_CPU = "other processes kept the CPU busy"
"""The flag of a comparison that is unclear for it."""
THREADS = "/proc/self/task"
WAITED = 0.05
"""Share of a block that a thread may wait: an idle machine shows 0.00, one busy neighbour 0.3."""
OWN = 0.95
"""Where this process fills so much of its cores, its threads wait for each other."""


class Contention:
    """Reads the scheduler's counts of this process's threads, from one moment to another."""

    def __init__(self, threads: str = THREADS):
        self.threads, self.available = threads, cores()
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._since, self._before = time.perf_counter_ns(), self._counts()

    def state(self) -> dict[str, float]:
        """Since :meth:`begin`: ``cpu_waited``, the share of the time that the thread which waited
        most stood ready without a CPU, and ``cpu_used``, the CPUs that all threads used together.

        Empty where the kernel does not tell.
        """
        elapsed, after = max(1, time.perf_counter_ns() - self._since), self._counts()
        if not after:
            return {}
        grown = [
            (used - before[0], waited - before[1])
            for thread, (used, waited) in after.items()
            for before in [self._before.get(thread, (0, 0))]
        ]
        return {
            # A wait is counted where it ends: one from before ``begin`` may be longer than this.
            "cpu_waited": round(min(1.0, max(waited for _, waited in grown) / elapsed), 3),
            "cpu_used": round(sum(used for used, _ in grown) / elapsed, 2),
        }

    def found(self) -> tuple[dict[str, float], bool]:
        """The state, and whether others kept this process from the CPU since :meth:`begin`.

        Where it fills its cores by itself, with more threads than cores, its threads wait for each
        other, and nobody else is to blame.
        """
        state = self.state()
        own = state.get("cpu_used", 0.0) >= OWN * self.available
        return state, state.get("cpu_waited", 0.0) > WAITED and not own

    def _counts(self) -> dict[str, tuple[int, int]]:
        """(ns on a CPU, ns ready and waiting for one) of every thread."""
        found = {}
        for thread in _listed(self.threads):
            with contextlib.suppress(OSError, ValueError):  # it may have ended, or not be told of
                with open(f"{self.threads}/{thread}/schedstat", encoding="ascii") as stream:
                    used, waited = stream.read().split()[:2]
                found[thread] = int(used), int(waited)
        return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
