"""The measuring process: takes tasks one by one, writes a record for each, may die at any time.

Started by :mod:`apexbench.jobs.supervisor` as ``python -m apexbench.jobs.worker <job.json>``.
Events go to the file descriptor or the pipe named in the job, as one JSON value a line.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.errors import UserError
from apexbench.machine.host import threads_asked
from apexbench.processes import die_with_parent
from apexbench.termination import interrupted_quietly

EXIT_DEVICE_LOST = 17
EXIT_REFUSED = 18
EXIT_BROKEN = 19
STARTING_S = 120
"""Importing takes as long as a busy machine and a shared disk let it, whatever a case may take."""


class Events:
    """A stream of JSON lines to the supervisor, over a descriptor or a named pipe."""

    def __init__(self, handle: int | str):
        if isinstance(handle, str):
            handle = os.open(handle, os.O_WRONLY)
        elif "LOCAL_RANK" in os.environ:  # torchrun, this process's parent, holds it
            handle = os.open(f"/proc/{os.getppid()}/fd/{handle}", os.O_WRONLY)
        self._stream = os.fdopen(handle, "w", encoding="utf-8", buffering=1)

    def send(self, event: str, **values: Any) -> None:
        """One event, at once."""
        self._stream.write(json.dumps({"event": event, **values}) + "\n")


def main(path: str) -> int:
    """Run the job of ``path``; 0 at its end (or its time's), 17 when the device was lost.

    18 when nothing can be measured or kept here, whichever implementation runs (a wrong request, a
    full disk): the sentence for the person goes to the supervisor. 19 for an exception outside
    every implementation: apexbench's own fault (or a plug-in's), which is charged to no cell.
    """
    die_with_parent()
    begin = time.perf_counter()
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s"
    )
    leads = os.environ.get("RANK", "0") == "0"
    events = Events(job["events"]) if leads else None
    try:
        _share_threads(job["request"]["device"])
        if events is None:
            from apexbench.transformer.distributed import follow

            follow(job["request"]["device"])
            return 0
        return _measure(job, events, begin)
    except UserError as error:
        logging.getLogger(__name__).error("%s", error)
        if events is not None:
            events.send("refused", text=str(error))
        return EXIT_REFUSED
    except Exception as error:
        # What implementations raise is a cell's status by now. Not so where another rank's end,
        # of which this one may hear first, can be behind it.
        if events is None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise
        logging.getLogger(__name__).exception("outside every implementation")
        events.send("broken", text=f"{type(error).__name__}: {error}")
        return EXIT_BROKEN


def _measure(job: dict[str, Any], events: Events, begin: float) -> int:
    from apexbench.jobs import case, catalogue, groups, preparing, provenance
    from apexbench.jobs.request import Request
    from apexbench.measuring import faults
    from apexbench.measuring.beat import Beat
    from apexbench.measuring.state import StateProbe
    from apexbench.measuring.timers import timer_for

    request = Request.parse(json.dumps(job["request"]))
    beat = Beat(Path(job["beat"]))
    beat.write("import", None, max(STARTING_S, request.measuring["implementation_seconds"]))
    component = catalogue.find(request.component)
    timer = timer_for(request.device)
    described = provenance.provenance(request, Path(job["cache"]), component.torch_free)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from apexbench.transformer.distributed import places

        described["ranks"] = places(request.device)
    context = preparing.Context(
        device=request.device,
        timer=timer,
        settings=provenance.settings(request),
        seed=request.seed,
        process=0,
        beat=beat,
        environment=request.environment,
        provenance=described,
        probe=StateProbe(described["gpu_uuid"]),
        limit_seconds=request.measuring["implementation_seconds"],
        progress=lambda text: events.send("phase", text=text),
    )
    events.send("ready", seconds=time.perf_counter() - begin)
    # What was imported lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    tasks = list(job["tasks"])
    for task in tasks:  # grows by the groups of arms that had no room
        if job["until"] is not None and time.time() >= job["until"]:
            break
        names = groups.arms(task["case"], component.names(task["case"], request.implementations))
        events.send("case", key=task["key"], label=component.label(task["case"]))
        if strangers := groups.strangers(task["case"], names):
            raise UserError(
                f"a record of {component.label(task['case'])} in {job['folder']} names "
                f"'{strangers[0]}', which {component.name} does not have: delete that file and run "
                "the same command again; no other record is touched."
            )
        context.process = task["process"]
        try:
            record = case.measure(
                component, task["case"], names, task["key"], context, task["lost"]
            )
        except faults.DeviceLost as lost:
            events.send(
                "lost", key=task["key"], implementation=lost.implementation, reason=lost.reason
            )
            return EXIT_DEVICE_LOST
        written = records.write(record, Path(job["folder"]))
        beside = groups.following(record)
        # One event: what follows from a record is known as soon as the record counts as done.
        events.send(
            "record",
            key=task["key"],
            file=written.name,
            seconds=record.seconds,
            following=beside,
            process=task["process"],
        )
        if beside is not None:
            following = request.task_of()(beside, task["process"])
            if not any(Path(job["folder"]).glob(f"*-{following.key}.json")):
                tasks.append({**asdict(following), "lost": {}})
    return 0


def _share_threads(device: str) -> None:
    """Hand the run's number of threads to the libraries; the ranks of a node share it."""
    if threads := threads_asked("APEXBENCH_THREADS"):
        if device == "cpu":
            threads = max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))


if __name__ == "__main__":
    interrupted_quietly()  # nor has a measurement anything to clear up
    sys.exit(main(sys.argv[1]))
