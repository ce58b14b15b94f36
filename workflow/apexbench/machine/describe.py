"""The full description of the machine that goes with every set of results."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apexbench
from apexbench.errors import UserError
from apexbench.machine import gpu, host, toolchain
from apexbench.machine.apex import apex_status
from apexbench.machine.apex_proof import after_proof, apex_proof
from apexbench.machine.environment import PACKAGES, device_choice
from apexbench.machine.install import package_version
from apexbench.machine.legacy import legacy_apex

REPOSITORY = Path(__file__).resolve().parents[3]

# Only what changes a measurement: the environment may hold secrets.
ENVIRONMENT_VARIABLES = re.compile(
    r"CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|HOME|LAUNCH_BLOCKING|MODULE_LOADING|CACHE_\w+)"
    r"|NVIDIA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|PYTORCH_\w+|TORCH_\w+|TORCHINDUCTOR_\w+"
    r"|TRITON_\w+|CUBLAS\w*|CUDNN_\w+|OMP_\w+|MKL_\w+|KMP_\w+|CC|CXX|LD_PRELOAD"
    r"|PYTHONHASHSEED|PYTHONNOUSERSITE"
)


def describe() -> dict[str, Any]:
    """Everything a reader needs to know about this machine, as JSON-serialisable data.

    Imports torch if it is there. With a compiled Apex on a GPU it also launches Apex's kernels
    once, in processes of their own (``apex_proof``). Never raises: what cannot be told is None,
    what failed is a sentence under ``error``.
    """
    status = apex_status()
    proof = apex_proof() if status.state == "compiled" and status.gpu else None
    if proof is not None:
        status = after_proof(status, proof)
    compiler, c_compiler, nvcc = (
        toolchain.cxx_compiler(),
        toolchain.c_compiler(),
        toolchain.nvcc(),
    )
    return {
        "apexbench": apexbench.__version__,
        "described_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": _device(),
        "gpus": _gpus(),
        "driver": gpu.driver_version(),
        "cuda_driver": gpu.cuda_driver_version(),
        "torch": _torch(),
        "packages": {key: package_version(name) for key, name in PACKAGES.items()},
        "apex": status.to_dict(),
        "apex_proof": proof,
        "legacy_apex": legacy_apex(),
        "cxx": compiler.to_dict() if compiler else None,
        "cc": c_compiler.to_dict() if c_compiler else None,
        "nvcc": nvcc.to_dict() if nvcc else None,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "compiler": platform.python_compiler(),
        },
        "host": {
            "os": host.operating_system(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
            "cpu": host.cpu_model(),
            "cores": host.cores(),
            "memory_bytes": host.memory_bytes(),
            **host.surroundings(),
        },
        "environment_variables": {
            name: portable(value, REPOSITORY)
            for name, value in sorted(os.environ.items())
            if ENVIRONMENT_VARIABLES.fullmatch(name)
        },
    }


def portable(value: Any, root: Path) -> Any:
    """``value`` with the folder ``root`` written as ``.``: where a user keeps it is theirs."""
    if isinstance(value, str):
        return value.replace(str(root), ".")
    if isinstance(value, dict):
        return {name: portable(entry, root) for name, entry in value.items()}
    if isinstance(value, list):
        return [portable(entry, root) for entry in value]
    return value


def _device() -> dict[str, str | None]:
    try:
        choice = device_choice("auto")
    except UserError as error:
        return {"device": None, "why": str(error)}
    return {"device": choice.device, "why": choice.why}


def _gpus() -> list[dict[str, Any]]:
    """Each visible GPU with its limits: clocks in MHz, power in W."""
    try:
        visible = gpu.visible_gpus()
    except UserError as error:
        return [{"error": str(error)}]
    return [one.to_dict() | _limits(one.uuid) for one in visible]


def _limits(uuid: str) -> dict[str, Any]:
    library = gpu.nvml()
    handle = gpu.query("nvmlDeviceGetHandleByUUID", uuid)
    if library is None or handle is None:
        return {}
    power = gpu.query("nvmlDeviceGetEnforcedPowerLimit", handle)
    ecc = gpu.query("nvmlDeviceGetEccMode", handle)
    mig = gpu.query("nvmlDeviceGetMigMode", handle)
    clock = "nvmlDeviceGetMaxClockInfo"
    return {
        "max_sm_clock_mhz": gpu.query(clock, handle, library.NVML_CLOCK_SM),
        "max_memory_clock_mhz": gpu.query(clock, handle, library.NVML_CLOCK_MEM),
        "power_limit_w": power / 1000 if power is not None else None,
        "ecc": bool(ecc[0]) if ecc is not None else None,
        "mig": bool(mig[0]) if mig is not None else None,
        "persistence_mode": _truth(gpu.query("nvmlDeviceGetPersistenceMode", handle)),
        "pcie_generation": gpu.query("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "vbios": gpu.query("nvmlDeviceGetVbiosVersion", handle),
    }


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _tell(question: Callable[[], Any]) -> Any:
    """One answer of torch's: some raise on builds or machines without that part."""
    try:
        return question()
    except Exception:
        return None


def _torch() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:
        return {"error": f"torch cannot be imported: {error}"}
    nccl = _tell(lambda: torch.cuda.nccl.version())
    described: dict[str, Any] = {
        "version": str(torch.__version__),
        "git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "cuda_available": bool(_tell(torch.cuda.is_available)),
        "cudnn": _tell(torch.backends.cudnn.version),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "architectures": _tell(torch.cuda.get_arch_list) or [],
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": _tell(torch.get_float32_matmul_precision),
        "tf32_matmul": _tell(lambda: torch.backends.cuda.matmul.allow_tf32),
        "tf32_cudnn": _tell(lambda: torch.backends.cudnn.allow_tf32),
        "cpu_capability": _tell(torch.backends.cpu.get_cpu_capability),
        "build": _tell(lambda: _build_lines(torch.__config__.show())),
    }
    if described["cuda_available"]:
        described["devices"] = _tell(
            lambda: [_device_properties(torch, i) for i in range(torch.cuda.device_count())]
        )
    return described


def _build_lines(config: str) -> list[str]:
    """torch.__config__.show() without the line of compiler flags, which is its longest by far."""
    lines = [line.strip(" -") for line in config.splitlines()[1:]]
    return [line for line in lines if line and not line.startswith("Build settings")]


def _device_properties(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else None,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
    }
