"""What a record says of where it comes from, asked of the process that measures."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import apexbench
from apexbench.cluster import allocation
from apexbench.errors import UserError
from apexbench.jobs.request import Request
from apexbench.measuring.samples import Settings
from apexbench.records import digest


def settings(request: Request) -> Settings:
    """The sampler's settings of a request."""
    measuring = request.measuring
    return Settings(
        case_seconds=measuring["case_seconds"],
        pilot_rounds=measuring["pilot_rounds"],
        confidence=measuring["confidence"],
        margin=measuring["margin"],
        retries=measuring["throttle_retries"],
    )


def slug(name: str) -> str:
    """A device name as a folder name: ``NVIDIA H200`` becomes ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def provenance(request: Request, cache: Path, torch_free: bool = False) -> dict[str, Any]:
    """Machine, versions and Apex of this process; ``cache`` keeps what is slow to find out.

    Raises UserError where the device is not the one that the request was made for.
    """
    from apexbench.machine.host import cpu_model
    from apexbench.machine.source import source_version

    values: dict[str, Any] = {
        "run": os.environ.get("APEXBENCH_RUN_ID", ""),
        "device": request.device,
        "node": allocation.node(),
        "config_hash": digest(request.text()),
        "runtime": os.environ.get("APEXBENCH_RUNTIME", "native"),
        "image": request.image,
        "apexbench": apexbench.__version__,
        "source": source_version(),
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "gpu_uuid": None,
        "driver": None,
        "torch": None,
        "cuda": None,
        "cudnn": None,
        "triton": None,
        "apex": None,
    }
    if given := allocation.allocation():
        values.update(given.to_dict())
    if request.device == "cuda":
        values.update(gpu(request))
    else:
        values["device_name"] = cpu_model() or "unknown"
    values["machine"] = (
        slug(values["device_name"])
        if request.device == "cuda"
        else "cpu-" + slug(values["device_name"])
    )
    if not torch_free:
        values.update(_libraries(cache))
    return values


def gpu(request: Request) -> dict[str, Any]:
    """The GPU that this process measures on; UserError where it is not the one planned for."""
    from apexbench.machine.gpu import driver_version, visible_gpus

    visible = visible_gpus()
    if not visible:
        raise UserError(
            "device is 'cuda' but this process sees no NVIDIA GPU: set device: cpu in config.yaml, "
            "or run where nvidia-smi lists one."
        )
    first = visible[0]
    wanted = request.gpu_names()
    if wanted and first.name not in wanted:
        raise UserError(
            f"the run was planned for {' or '.join(wanted)} but {allocation.node()} has "
            f"{first.name}: set gpu_model to the driver's own name of the GPU, and on a cluster "
            "ask for that model in the profile."
        )
    return {"device_name": first.name, "gpu_uuid": first.uuid, "driver": driver_version()}


def _libraries(cache: Path) -> dict[str, Any]:
    import importlib.metadata

    import torch

    from apexbench.machine.apex import recall_status

    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "triton": triton,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "apex": recall_status(cache).to_dict(),
    }
