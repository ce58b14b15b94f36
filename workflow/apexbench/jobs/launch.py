"""Starts a measuring process: one, one a GPU, or those of several nodes of a Slurm job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apexbench.cluster import steps
from apexbench.jobs import plain_paths
from apexbench.jobs.child import Measuring, MeasuringOnNodes
from apexbench.jobs.request import Request, Task
from apexbench.machine import apex_source, host
from apexbench.measuring.beat import Beat
from apexbench.processes import die_with_parent


@contextlib.contextmanager
def measuring(
    request: Request, job: Mapping[str, Any], tasks: Sequence[Task], log: Path, cache: Path
) -> Iterator[Measuring]:
    """Start what measures ``tasks``, told the description ``job``; its output goes to ``log``.

    ``cache`` is a folder that every node sees.

    Raises:
        UserError: the cases ask for several nodes, which this process's Slurm job has not.
    """
    gpus, nodes = _layout(request)
    if nodes > 1:
        cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="apexbench-", dir=cache.absolute() if nodes > 1 else None
    ) as name:
        scratch = Path(name)
        beat = Beat(scratch / "beat")
        start = _on_nodes if nodes > 1 else _here
        with start(job, tasks, log, scratch, beat, gpus, nodes) as started:
            yield started


def _layout(request: Request) -> tuple[int, int]:
    """GPUs of each node, and nodes; one GPU where the cases ask for more than are here."""
    gpus = max((int(case.get("gpus") or 1) for case in request.cases), default=1)
    nodes = max((int(case.get("nodes") or 1) for case in request.cases), default=1)
    if nodes == 1 and gpus > 1 and request.device == "cuda":
        from apexbench.machine.gpu import visible_gpus

        gpus = gpus if len(visible_gpus()) >= gpus else 1
    return gpus, nodes


@contextlib.contextmanager
def _here(
    job: Mapping[str, Any],
    tasks: Sequence[Task],
    log: Path,
    scratch: Path,
    beat: Beat,
    gpus: int,
    nodes: int,
) -> Iterator[Measuring]:
    readable, writable = os.pipe()
    path = _described(job, scratch, writable)
    kills = host.oom_kills()
    module = ["apexbench.jobs.ranks", str(gpus)] if gpus > 1 else ["apexbench.jobs.worker"]
    with log.open("ab") as output:
        child = subprocess.Popen(
            [plain_paths.interpreter(scratch), "-m", *module, str(path)],
            env=environment(tasks, scratch),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[writable],
        )
    os.close(writable)
    try:
        yield Measuring(child, readable, beat, scratch, kills)
    finally:
        os.close(readable)


@contextlib.contextmanager
def _on_nodes(
    job: Mapping[str, Any],
    tasks: Sequence[Task],
    log: Path,
    scratch: Path,
    beat: Beat,
    gpus: int,
    nodes: int,
) -> Iterator[Measuring]:
    """The first task is on this node, so that a named pipe reaches it, in a container too."""
    given = steps.nodes(nodes)
    pipe = scratch / "events"
    os.mkfifo(pipe)
    readable = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    held = os.open(pipe, os.O_WRONLY)  # so that it does not end before rank 0 opens it
    path = _described(job, scratch, str(pipe))
    words = [
        "ranks",
        str(gpus),
        str(nodes),
        str(_free_port()),
        ",".join(given.addresses),
        str(path),
    ]
    parent = os.getpid()
    with log.open("ab") as output:
        child = subprocess.Popen(
            steps.argv(given, words),
            env=steps.variables(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent),
        )
    try:
        yield MeasuringOnNodes(child, readable, beat, scratch, kills=None)
    finally:
        os.close(readable)
        os.close(held)


def _described(job: Mapping[str, Any], scratch: Path, events: int | str) -> Path:
    path = scratch / "job.json"
    text = json.dumps({**job, "beat": str(scratch / "beat"), "events": events})
    path.write_text(text, encoding="utf-8")
    return path


def _free_port() -> int:
    """A port of this node that nobody has at the moment."""
    with socket.socket() as asked:
        asked.bind(("", 0))
        return int(asked.getsockname()[1])


def legacy(task: Task) -> str | None:
    """The level of apex.amp that a task's process is for: each has a process of its own."""
    named = task.case.get("legacy")
    return None if named in (None, "none") else str(named)


def environment(tasks: Sequence[Task], scratch: Path) -> dict[str, str]:
    """The child's environment; for apex.amp the Apex that still has it comes first on the path."""
    found = plain_paths.environment(scratch)
    if legacy(tasks[0]) is None:
        return found
    paths = [str(apex_source.LEGACY_FOLDER), found.get("PYTHONPATH", "")]
    return {**found, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
