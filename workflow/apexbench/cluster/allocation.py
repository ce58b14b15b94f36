"""What Slurm gave the job that this process belongs to, read from the environment that it sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from apexbench.errors import UserError
from apexbench.machine.host import cores

NODE = "APEXBENCH_NODE"
"""The node's name for a process in a container, whose own host name is the container's."""


@dataclass(frozen=True)
class Allocation:
    """One Slurm job. ``slurm_gpus`` are the node's numbers of its GPUs, such as ``0,3``."""

    slurm_job: str
    slurm_node: str | None
    slurm_partition: str | None
    slurm_gpus: str | None
    slurm_restarts: int

    def to_dict(self) -> dict[str, str | int | None]:
        """As a record's provenance holds it."""
        return asdict(self)


def allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """The Slurm job around this process; None outside of one."""
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return None
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    return Allocation(
        slurm_job=job,
        slurm_node=environment.get("SLURMD_NODENAME"),
        slurm_partition=environment.get("SLURM_JOB_PARTITION"),
        slurm_gpus=environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS"),
        slurm_restarts=int(restarts) if restarts.isdecimal() else 0,
    )


def node(environment: Mapping[str, str] = os.environ) -> str:
    """This machine's name: Slurm's, else the one handed into the container, else its own."""
    given = allocation(environment)
    name = given.slurm_node if given else None
    return name or environment.get(NODE) or os.uname().nodename


def threads(environment: Mapping[str, str] = os.environ) -> int:
    """Processor cores that this process may use: those that Slurm gave its task, if it says so."""
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    return min(int(given), cores()) if given.isdecimal() and int(given) else cores()


def gpu_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a Slurm job on a GPU must see beside what Slurm set.

    Slurm counts GPUs in the order of the PCI bus, CUDA by speed unless told otherwise: where the
    GPUs of a node differ, the same number would name another one.

    Raises:
        UserError: Slurm gave this job no GPU, so that every GPU of the node would be taken.
    """
    given = allocation(environment)
    if given is None:
        return {}
    if environment.get("CUDA_VISIBLE_DEVICES") is None:
        raise UserError(
            f"Slurm job {given.slurm_job} was given no GPU (CUDA_VISIBLE_DEVICES is not set): ask "
            "for one with gpu or gres in profiles/slurm/config.yaml, or set CUDA_VISIBLE_DEVICES "
            "where Slurm does not manage the GPUs."
        )
    return {} if "CUDA_DEVICE_ORDER" in environment else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
