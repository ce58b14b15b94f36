"""The part of the fingerprint that a login node cannot know, and how a job finds it out.

Snakemake evaluates the Snakefile on the login node and again in every job: both must come to the
same request, or every result would look stale. So the plan holds ``ON_NODE`` for what belongs to
the node, and the job replaces it before it computes the keys of its records.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from apexbench.jobs.request import Request
from apexbench.machine.environment import environment

ON_NODE = "asked on the node"
OF_THE_NODE = {
    "cuda": ("driver", "gpus", "cxx"),
    "cpu": ("cpu", "cxx", "threads"),
}
"""Keys of the fingerprint that belong to a machine and not to the shared Python, by device."""


def planned(found: Mapping[str, str | None], device: str) -> dict[str, str | None]:
    """The fingerprint ``found`` on the login node, with the keys of the node left open."""
    return {**found, **dict.fromkeys(OF_THE_NODE[device], ON_NODE)}


def settled(request: Request) -> Request:
    """``request`` with every key that was left open answered by this machine."""
    still_open = [key for key, value in request.environment.items() if value == ON_NODE]
    if not still_open:
        return request
    here = {**environment(request.device), "threads": os.environ.get("APEXBENCH_THREADS")}
    answered = {key: value for key in still_open if (value := here[key])}
    kept = {key: value for key, value in request.environment.items() if key not in still_open}
    return dataclasses.replace(request, environment=dict(sorted({**kept, **answered}.items())))
