"""Measuring the component stage again, or as much of it as the time allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from apexbench import records
from apexbench.jobs import supervisor
from apexbench.jobs.request import Request
from apexbench.plan import Plan

START_S = 6.0
"""Starting one measuring process, torch and the device included."""


def measure(plan: Plan, run: Path, folder: Path, until: float) -> None:
    """Measure the cases of the configured components in a process after the run's own.

    Where ``run`` holds no record of a case, it is measured in two new processes. As many cases as
    should end before ``until`` are taken, evenly over each component; ``plan.json`` says of how
    many.
    """
    requests = [Request.parse(plan.request(name)) for name in plan.components]
    counts = {request.component: len(request.expanded()) for request in requests}
    text = records.canonical({"cases": sum(counts.values()), "preset": plan.config.preset})
    records.write_text_atomically(folder / "plan.json", text + "\n")
    seconds = {request.component: _seconds(request, run) for request in requests}
    for place, request in enumerate(requests):
        left = until - time.time()
        ahead = sum(seconds[later.component][0] for later in requests[place:])
        share = 1.0 if ahead <= left else left * seconds[request.component][0] / ahead
        whole, first = seconds[request.component]
        cases = request.expanded()
        if ahead > left:
            count = int(len(cases) * max(0.0, share - START_S) / max(whole - START_S, 1e-9))
            cases = spread(cases, max(1, count))
        again = max(request.processes) + 1
        supervisor.run(
            replace(
                request,
                grid=None,
                cases=cases,
                processes=(again,) if first else (0, again),
            ),
            folder / "records" / request.component / "index.json",
            folder / "logs" / f"{request.component}.log",
            until=until,
        )


def spread(cases: Sequence[dict[str, object]], count: int) -> list[dict[str, object]]:
    """``count`` of the cases, evenly spaced, in their order."""
    count = min(count, len(cases))
    return [cases[round((index + 0.5) * len(cases) / count - 0.5)] for index in range(count)]


def _seconds(request: Request, run: Path) -> tuple[float, bool]:
    """What measuring a component again should take, and whether the run holds all its records."""
    place = run / "records" / request.component
    found, tasks = 0.0, [task for task in request.tasks() if task.process == 0]
    present = {path.stem.rsplit("-", 1)[-1]: path for path in place.glob("*-*.json")}
    for task in tasks:
        if task.key not in present:
            each = 2 * float(request.measuring["case_seconds"]) + 1
            return 2 * (START_S + each * len(tasks)), False
        found += records.read(present[task.key]).seconds["total"]
    return START_S + found, True
