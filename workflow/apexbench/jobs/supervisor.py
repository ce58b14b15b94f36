"""Runs a measuring job to its end: skips what is measured, restarts what dies, writes the index.

This process imports no torch. The measuring runs in a child; when an implementation takes the child
with it (segmentation fault, sticky CUDA error, out of memory on the host, a hang), the heartbeat
says which one, its cell gets a status, and a fresh child measures the others of that case.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.cluster import fingerprint
from apexbench.errors import UserError
from apexbench.jobs import child, groups, launch
from apexbench.jobs.progress import Progress
from apexbench.jobs.provenance import gpu
from apexbench.jobs.request import Request, Task
from apexbench.jobs.worker import EXIT_DEVICE_LOST

MOST_RESTARTS_WITHOUT_PROGRESS = 3


@dataclass(frozen=True)
class End:
    """How a measuring process ended: what it was at, by its events and its last heartbeat."""

    status: int
    key: str | None
    phase: str
    implementation: str | None
    memory_ended: bool


@dataclass
class Job:
    """A request, the folder its records go to, and what has been learnt so far."""

    request: Request
    folder: Path
    log: Path
    tasks: list[Task]
    done: dict[str, str] = field(default_factory=dict)
    lost: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=lambda: {"starting": 0.0, "cases": 0.0})
    measured: int = 0
    until: float | None = None

    @property
    def over(self) -> bool:
        """Whether the time given has ended."""
        return self.until is not None and time.time() >= self.until


def run(
    request: Request,
    out: Path,
    log: Path,
    progress: Progress | None = None,
    until: float | None = None,
) -> None:
    """Measure what ``request`` asks and write ``out`` (the job's index.json).

    Valid records are kept; a corrupt one is a UserError that names it. Returns when every task has
    its record, whatever the status of its cells. No case is begun after ``until`` (Unix seconds);
    the index names those that are missing for it.
    """
    begin, started = time.monotonic(), time.time()
    request = fingerprint.settled(request)
    if request.device == "cuda":
        gpu(request)
    job = Job(request, out.parent, log, request.tasks(), until=until)
    _find_done(job, list(job.tasks))
    progress = progress or Progress(request.component, len(job.tasks), log)
    progress.start(len(job.done))
    log.parent.mkdir(parents=True, exist_ok=True)
    for process in request.processes:
        own = [task for task in job.tasks if task.process == process]
        for legacy in dict.fromkeys(launch.legacy(task) for task in own):
            _measure(job, process, legacy, progress)
    _check_kept(job)
    job.seconds["total"] = time.monotonic() - begin
    index = {
        "component": request.component,
        "run": os.environ.get("APEXBENCH_RUN_ID"),
        "started": started,
        "finished": time.time(),
        "seconds": {name: round(value, 3) for name, value in job.seconds.items()},
        "measured": job.measured,
        "records": [
            {"file": job.done[task.key], "key": task.key, "process": task.process}
            for task in job.tasks
            if task.key in job.done
        ],
        "killed": [
            key
            for key, cells in job.lost.items()
            if any(records.KILLED in reason for _, reason in cells.values())
        ],
        "missing": [
            {
                "case": records.canonical(task.case),
                "status": "unavailable",
                "reason": "the time given ended before it",
            }
            for task in job.tasks
            if task.key not in job.done
        ],
    }
    records.write_text_atomically(out, json.dumps(index, indent=1) + "\n")
    progress.finish(job.measured, len(job.tasks))


def cache_folder(records_folder: Path) -> Path:
    """``results/.cache`` of the run that a job's records belong to."""
    for parent in records_folder.absolute().parents:
        if parent.name == "records":
            return parent.parent / ".cache"
    return records_folder.absolute().parent.parent / ".cache"


def _find_done(job: Job, tasks: list[Task]) -> None:
    """Note which of ``tasks`` have a record, and the tasks that follow from those."""
    present = {path.stem.rsplit("-", 1)[-1]: path for path in job.folder.glob("*-*.json")}
    for task in tasks:
        if (path := present.get(task.key)) is not None:
            record = records.read(path)
            if not _is_of(record, task, job.request):
                raise records.misplaced(path)
            if not record.killed:  # else measured again
                job.done[task.key] = path.name
                if (beside := groups.following(record)) is not None:
                    _follow(job, beside, task.process)


def _follow(job: Job, case: dict[str, Any], process: int) -> None:
    """Take in the task of arms that had no room beside the others of their case."""
    task = job.request.task_of()(case, process)
    if task not in job.tasks:
        job.tasks.append(task)
        _find_done(job, [task])


def _is_of(record: records.Record, task: Task, request: Request) -> bool:
    """Whether a record says of itself what its name promises: the case, and the same machine."""
    gpus = request.gpu_names() if request.device == "cuda" else []
    return (
        (record.key, record.component) == (task.key, request.component)
        and (record.config, record.process) == (task.case, task.process)
        and record.environment == request.environment
        and record.provenance["device"] == request.device
        and (not gpus or record.provenance.get("device_name") in gpus)
    )


def _check_kept(job: Job) -> None:
    """Whether every record is still where it was written: a mount may have vanished meanwhile."""
    for name in job.done.values():
        if not (job.folder / name).is_file():
            raise UserError(
                f"{job.folder / name} was written and is gone: check that its disk is mounted and "
                "well, then run the same command again."
            )


def _measure(job: Job, process: int, legacy: str | None, progress: Progress) -> None:
    def left_over() -> list[Task]:
        return [
            task
            for task in job.tasks
            if (task.process, launch.legacy(task)) == (process, legacy) and task.key not in job.done
        ]

    idle = 0
    while (left := left_over()) and not job.over:
        before = len(job.done), sum(len(entry) for entry in job.lost.values())
        end = _child(job, left, progress)
        if end.status == 0:
            continue
        if end.status != EXIT_DEVICE_LOST:
            _blame(job, end)
        after = len(job.done), sum(len(entry) for entry in job.lost.values())
        idle = idle + 1 if before == after else 0
        killed = end.status == -signal.SIGKILL and not end.memory_ended
        most = MOST_RESTARTS_WITHOUT_PROGRESS if end.key is not None else 2 if killed else 1
        if idle >= most:
            raise UserError(
                f"the measuring process of {job.request.component} ends before it measures "
                f"anything ({child.ending(end.status)}): read {job.log}"
            )


def _blame(job: Job, end: End) -> None:
    """Charge the end of a child to the implementation that the heartbeat names."""
    key, phase, implementation = end.key, end.phase, end.implementation
    if key is None:
        return
    kind, reason = "failed", f"the process ended during {phase} ({child.ending(end.status)})"
    if phase.startswith("hung"):
        reason = phase
    elif end.status == -signal.SIGKILL and end.memory_ended:
        kind = "out_of_memory"
    elif end.status == -signal.SIGKILL:
        if key not in job.killed:  # somebody's mistake, perhaps: once more
            job.killed.add(key)
            return
        reason = f"{records.KILLED} during {phase}, twice"
    job.lost.setdefault(key, {})[implementation or "inputs"] = (kind, reason)


def _child(job: Job, tasks: list[Task], progress: Progress) -> End:
    """Run one measuring process to its end."""
    cache = cache_folder(job.folder)
    description = {
        "request": asdict(job.request),
        "folder": str(job.folder.absolute()),
        "cache": str(cache),
        "until": job.until,
        "tasks": [{**asdict(task), "lost": job.lost.get(task.key, {})} for task in tasks],
    }
    with launch.measuring(job.request, description, tasks, job.log, cache) as process:
        current: str | None = None
        hung: tuple[str, str | None] | None = None
        try:
            for event in process.events():
                if event["event"] == "hung":
                    hung = event["text"], event["implementation"]
                    process.end()
                    break
                current = _note(job, event, current, progress)
        finally:
            if hung is None and not process.over() and sys.exc_info()[0] is not None:
                process.end()
            status = process.status()
        _, phase, implementation, _ = process.beat.read()
        phase, implementation = hung or (phase, implementation)
        return End(status, current, phase, implementation, process.memory_ended())


def _note(job: Job, event: dict[str, Any], current: str | None, progress: Progress) -> str | None:
    """Take one event of the child into account; returns the key of the case it is at."""
    kind = event["event"]
    if kind == "ready":
        job.seconds["starting"] += event["seconds"]
    elif kind == "case":
        progress.case(event["label"], len(job.done))
        return event["key"]
    elif kind == "phase":
        progress.phase(event["text"])
    elif kind == "refused":
        raise UserError(event["text"])
    elif kind == "broken":
        raise UserError(
            f"apexbench itself failed while it measured {job.request.component} "
            f"({_one_line(event['text'])}), which no implementation is charged with: read "
            f"{job.log}; the records written so far stay, and the same command goes on from them."
        )
    elif kind == "lost":
        job.lost.setdefault(event["key"], {})[event["implementation"]] = ("failed", event["reason"])
    elif kind == "record":
        job.done[event["key"]] = event["file"]
        job.measured += 1
        for name, value in event["seconds"].items():
            job.seconds[name if name != "total" else "cases"] = (
                job.seconds.get(name if name != "total" else "cases", 0.0) + value
            )
        if event["following"] is not None:
            _follow(job, event["following"], event["process"])
            progress.more(len(job.tasks))
        progress.record(len(job.done))
        return None
    return current


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
