"""A job step over all nodes of a Slurm job: one task a node, each in its own runtime.

``apexbench exec --nodes N`` leaves in the environment how a task enters its runtime, and runs the
supervisor outside of any; the supervisor starts each measuring process through :func:`argv`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apexbench.cluster.queue import ask
from apexbench.errors import UserError

STEP = "APEXBENCH_STEP"
"""JSON: the words that run apexbench on a node, and what CUDA_VISIBLE_DEVICES was."""
# The job's identity; the rest are defaults of another step, which srun would take for this one's.
_KEPT = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_CONF")


@dataclass(frozen=True)
class Nodes:
    """The nodes of this job: names, addresses of the first two, cores of each one's task."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    cores: int | None


def check(count: int, cluster: str, runtime: str) -> None:
    """Raise UserError where one training cannot be on ``count`` nodes, whatever Slurm gives it."""
    if count > 1 and cluster == "none":
        raise UserError(
            f"transformer.nodes is {count}, but only Slurm starts one training on several nodes: "
            "run `make slurm` on a cluster's login node (docs/slurm.md), or set "
            "transformer.nodes: 1."
        )
    if count > 1 and runtime in ("docker", "podman"):
        raise UserError(
            f"transformer.nodes is {count}, but a {runtime} container has no network on which "
            "ranks of several nodes could meet: set runtime: apptainer or runtime: native, or "
            "transformer.nodes: 1."
        )


def nodes(count: int, environment: Mapping[str, str] = os.environ) -> Nodes:
    """The nodes of the Slurm job around this process.

    Raises:
        UserError: there is none, it has not ``count`` nodes, or Slurm does not answer.
    """
    job = environment.get("SLURM_JOB_ID")
    if not job:
        raise UserError(
            f"transformer.nodes is {count}, but this is no Slurm job: run `make slurm` on a "
            "cluster's login node, or set transformer.nodes: 1."
        )
    told = dict(re.findall(r"(\S+?)=(\S*)", ask("scontrol", "--oneliner", "show", "job", job)))
    listed = environment.get("SLURM_JOB_NODELIST") or told.get("NodeList", "")
    names = tuple(ask("scontrol", "show", "hostnames", listed).split())
    if len(names) != count:
        raise UserError(
            f"transformer.nodes is {count}, but Slurm job {job} has {len(names)} ({listed}): leave "
            "nodes of the rule transformer to the workflow, in the profile's set-resources too."
        )
    cores = told.get("CPUs/Task", "")
    addresses = tuple(_address(name) for name in names[:2])
    return Nodes(names, addresses, int(cores) if cores.isdecimal() else None)


def _address(name: str) -> str:
    """Where a node is reached: not always under its name in Slurm."""
    found = re.search(r"\bNodeAddr=(\S+)", ask("scontrol", "--oneliner", "show", "node", name))
    return found[1] if found else name


def entrance(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable from which ``argv`` and ``variables`` know how a task enters its runtime."""
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    return {STEP: json.dumps({"words": list(words), "devices": shown})}


def argv(given: Nodes, command: Sequence[str]) -> list[str]:
    """The host command that runs ``apexbench <command>`` on every node and ends them together."""
    count = len(given.names)
    words = [
        "srun",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        "--overlap",  # where the supervisor is in a step itself, which holds the job's cores
        "--export=ALL",
    ]
    if given.cores:  # srun does not take it over from sbatch
        words.append(f"--cpus-per-task={given.cores}")
    return [*words, *_entrance(os.environ)["words"], *command]


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of that command: without this process's own step and GPUs."""
    found = {
        key: value
        for key, value in environment.items()
        if key in _KEPT or not key.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }
    found.pop("CUDA_VISIBLE_DEVICES", None)
    shown = _entrance(environment)["devices"]
    return found if shown is None else {**found, "CUDA_VISIBLE_DEVICES": shown}


def _entrance(environment: Mapping[str, str]) -> dict[str, Any]:
    if text := environment.get(STEP):
        return dict(json.loads(text))
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    return {"words": [sys.executable, "-m", "apexbench"], "devices": shown}
