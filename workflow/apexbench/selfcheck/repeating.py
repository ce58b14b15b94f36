"""Measuring the component stage again, or as much of it as the time allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from apexbench import records
from apexbench.cluster.fingerprint import settled
from apexbench.jobs import supervisor
from apexbench.jobs.request import Request
from apexbench.plan import Plan

CEILING = "ceiling"
START_S = 6.0
"""Starting one measuring process, torch and the device included."""


def measure(plan: Plan, run: Path, folder: Path, until: float) -> None:
    """Measure the cases of the configured components in a process after the run's own.

    Where ``run`` does not hold all records of a component, it is measured in two new processes.
    What should end before ``until`` is taken, evenly over the components and over the cases of
    each; ``plan.json`` says of how many. The ceilings are left out: they compare nothing.
    """
    requests = [settled(Request.parse(plan.request(name))) for name in plan.components]
    counts = {request.component: len(request.expanded()) for request in requests}
    compared = [request for request in requests if request.component != CEILING]
    text = records.canonical(
        {
            "cases": sum(counts[request.component] for request in compared),
            "stage": sum(counts.values()),
            "preset": plan.config.preset,
        }
    )
    records.write_text_atomically(folder / "plan.json", text + "\n")
    needs = [_needs(request, run) for request in compared]
    for place, (request, need) in enumerate(zip(compared, needs, strict=True)):
        left = until - time.time()
        ahead = sum(later.seconds for later in needs[place:])
        cases = request.expanded()
        end = until
        if ahead > left:
            share = max(0.0, left * need.seconds / ahead)
            end = min(until, time.time() + share)
            cases = spread(cases, max(1, int(len(cases) * (share - START_S) / need.seconds)))
        again = max(request.processes) + 1
        processes = (again,) if need.measured else (0, again)
        supervisor.run(
            replace(request, grid=None, cases=cases, processes=processes),
            folder / "records" / request.component / "index.json",
            folder / "logs" / f"{request.component}.log",
            until=end,
        )


def spread(cases: Sequence[dict[str, object]], count: int) -> list[dict[str, object]]:
    """``count`` of the cases, evenly spaced, in their order."""
    count = min(count, len(cases))
    return [cases[round((index + 0.5) * len(cases) / count - 0.5)] for index in range(count)]


@dataclass(frozen=True)
class Need:
    """Seconds that a component should take, and whether the run holds its first measurement."""

    seconds: float
    measured: bool


def _needs(request: Request, run: Path) -> Need:
    place = run / "records" / request.component
    found, tasks = 0.0, [task for task in request.tasks() if task.process == 0]
    present = {path.stem.rsplit("-", 1)[-1]: path for path in place.glob("*-*.json")}
    for task in tasks:
        if task.key not in present:
            each = 2 * float(request.measuring["case_seconds"]) + 1
            return Need(2 * (START_S + each * len(tasks)), False)
        found += records.read(present[task.key]).seconds["total"]
    return Need(START_S + found, True)
