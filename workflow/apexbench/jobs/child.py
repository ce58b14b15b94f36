"""The measuring process as the supervisor starts it and listens to it.

What it runs and in which environment, what its events say, and when it counts as hung.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apexbench.jobs import plain_paths
from apexbench.jobs.request import Request, Task
from apexbench.machine import apex_source
from apexbench.measuring.beat import Beat


def module(request: Request) -> list[str]:
    """What measures: one process, or one a GPU where the cases ask for several that are there."""
    ranks = max((int(case.get("gpus") or 1) for case in request.cases), default=1)
    if ranks > 1 and request.device == "cuda":
        from apexbench.machine.gpu import visible_gpus

        ranks = ranks if len(visible_gpus()) >= ranks else 1
    return ["apexbench.jobs.ranks", str(ranks)] if ranks > 1 else ["apexbench.jobs.worker"]


def legacy(task: Task) -> str | None:
    """The level of apex.amp that a task's process is for: each has a process of its own."""
    named = task.case.get("legacy")
    return None if named in (None, "none") else str(named)


def environment(tasks: list[Task], scratch: Path) -> dict[str, str]:
    """The child's environment; for apex.amp the Apex that still has it comes first on the path."""
    found = plain_paths.environment(scratch)
    if legacy(tasks[0]) is None:
        return found
    paths = [str(apex_source.LEGACY_FOLDER), found.get("PYTHONPATH", "")]
    return {**found, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def events(handle: int, child: subprocess.Popen[bytes], beat: Beat) -> Iterator[dict[str, Any]]:
    """Events of the child until it closes its end; ``hung`` when the heartbeat stands still."""
    buffer, last, since = b"", -1, time.monotonic()
    while True:
        ready, _, _ = select.select([handle], [], [], 1.0)
        if ready:
            chunk = os.read(handle, 65536)
            if not chunk:
                return
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            yield from (json.loads(line) for line in lines)
            since = time.monotonic()
            continue
        count, phase, implementation, limit = beat.read()
        if count != last:
            last, since = count, time.monotonic()
        elif limit is not None and time.monotonic() - since > limit:
            text = f"hung: {phase} took longer than the limit of {limit:g} s"
            yield {"event": "hung", "text": text, "implementation": implementation}
            return


def ending(status: int) -> str:
    """How a process ended, from its exit status as subprocess gives it."""
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"
