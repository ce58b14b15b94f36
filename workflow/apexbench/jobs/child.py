"""The measuring process as the supervisor sees it: its state, its events, how it ended.

One process, one a GPU, or those of several nodes: :mod:`apexbench.jobs.launch` starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbench.jobs import ranks
from apexbench.machine import host
from apexbench.measuring.beat import Beat

ENDING_S = 30
"""What srun has to end its tasks on every node."""


@dataclass(frozen=True)
class Measuring:
    """A measuring process: its events come from ``readable``, its state from ``beat``.

    Its files lie in ``scratch``; ``kills`` is what ``host.oom_kills`` was before it began.
    """

    child: subprocess.Popen[bytes]
    readable: int
    beat: Beat
    scratch: Path
    kills: int | None

    def over(self) -> bool:
        """Whether it has ended."""
        return self.child.poll() is not None

    def end(self) -> None:
        """End it now, whatever it does."""
        self.child.kill()

    def status(self) -> int:
        """Its exit status once it has ended, negative for a signal."""
        return self.child.wait()

    def memory_ended(self) -> bool:
        """Whether the kernel has killed for lack of memory since it began, where that shows."""
        return host.oom_kills() != self.kills

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events until it ends; ``hung`` when the heartbeat stands still."""
        buffer, last, since = b"", -1, time.monotonic()
        while True:
            over = self.over()
            ready, _, _ = select.select([self.readable], [], [], 0.0 if over else 1.0)
            if ready:
                chunk = os.read(self.readable, 65536)
                if not chunk:
                    return
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                yield from (json.loads(line) for line in lines)
                since = time.monotonic()
                continue
            if over:
                return
            count, phase, implementation, limit = self.beat.read()
            if count != last:
                last, since = count, time.monotonic()
            elif limit is not None and time.monotonic() - since > limit:
                text = f"hung: {phase} took longer than the limit of {limit:g} s"
                yield {"event": "hung", "text": text, "implementation": implementation}
                return


class MeasuringOnNodes(Measuring):
    """srun, and with it the ranks of every node."""

    def end(self) -> None:
        self.child.terminate()  # srun ends its tasks; killed, it would leave them
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(ENDING_S)
        self.child.kill()

    def status(self) -> int:
        own = self.child.wait()
        first = ranks.first_failure(self.scratch)
        return own if own == 0 or first is None else first.status

    def memory_ended(self) -> bool:
        first = ranks.first_failure(self.scratch)
        return first is not None and first.memory_ended


def ending(status: int) -> str:
    """How a process ended, from its exit status as subprocess gives it."""
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"
