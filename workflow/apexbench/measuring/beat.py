"""A heartbeat in shared memory: what the measuring process is doing, readable after it died.

The measuring process writes, before every phase and every window, which implementation it is busy
with; the supervising process reads it when the measuring process crashes or stands still.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

SIZE = 512


class Beat:
    """A fixed-size file mapped by both processes; the last write wins and survives a crash."""

    def __init__(self, path: Path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        # Not ftruncate: on a full disk the process would end by SIGBUS at its first write.
        os.posix_fallocate(handle, 0, SIZE)
        self._map = mmap.mmap(handle, SIZE)
        os.close(handle)
        self._count = 0
        self._last: tuple[str, str | None, float | None] = ("start", None, None)

    def write(
        self, phase: str, implementation: str | None = None, limit: float | None = None
    ) -> None:
        """Say what begins now; ``limit`` is the seconds after which it counts as hung."""
        self._count += 1
        self._last = (phase, implementation, limit)
        text = json.dumps([self._count, phase, implementation, limit]).encode()
        self._map[:SIZE] = text[: SIZE - 1].ljust(SIZE, b" ")

    def alive(self) -> None:
        """Say that what was said last still goes on, and is not hung."""
        self.write(*self._last)

    def read(self) -> tuple[int, str, str | None, float | None]:
        """(count, phase, implementation, limit) of the last write; count 0 before the first."""
        text = bytes(self._map[:SIZE]).decode(errors="replace").strip(" \0")
        try:
            count, phase, implementation, limit = json.loads(text)
        except ValueError:
            return 0, "start", None, None
        return count, phase, implementation, limit
