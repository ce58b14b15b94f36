"""What a measurement depends on, cheaply: the fingerprint that decides whether it is stale.

The Snakefile asks for it on every start, so torch is never imported; versions come from package
metadata, GPUs and driver from NVML, Apex from its commit and a hash of its RECORD file.
"""

from __future__ import annotations

import difflib
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from apexbench.errors import UserError
from apexbench.machine.apex_source import LEGACY_FOLDER
from apexbench.machine.gpu import cuda_driver_version, driver_version, visible_gpus
from apexbench.machine.host import cpu_model
from apexbench.machine.install import find_apex, package_version, torch_build
from apexbench.machine.toolchain import cxx_compiler

DEVICES = ("cuda", "cpu")

# Key -> the distribution whose version it holds.
PACKAGES = {
    "triton": "triton",
    "numpy": "numpy",
    "liger_kernel": "liger-kernel",
    "transformer_engine": "transformer-engine",
    "flash_attn": "flash-attn",
    "quack_kernels": "quack-kernels",
    "bitsandbytes": "bitsandbytes",
}


@dataclass(frozen=True)
class DeviceChoice:
    """The device the measurements run on, and one sentence why."""

    device: str
    why: str


def device_choice(requested: str = "auto", in_image: bool = False) -> DeviceChoice:
    """Resolve ``auto``, ``cuda`` or ``cpu``; ``in_image``: torch is the image's, not this one.

    Raises:
        UserError: an unknown device, or ``cuda`` where it cannot be had.
    """
    if requested not in ("auto", *DEVICES):
        near = difflib.get_close_matches(requested, ("auto", *DEVICES), n=1)
        hint = f"; did you mean {near[0]}?" if near else "; choose auto, cuda or cpu."
        raise UserError(f"device: {requested!r} is not a device{hint}")
    if requested == "cpu":
        return DeviceChoice("cpu", "The configuration asks for the CPU.")
    obstacle = _why_not_cuda(in_image)
    if obstacle is None:
        name = visible_gpus()[0].name
        torch = "the image brings torch" if in_image else "torch is a CUDA build"
        return DeviceChoice("cuda", f"{name} is visible and {torch}.")
    if requested == "cuda":
        raise UserError(f"device: cuda cannot be used: {obstacle}; set device: cpu or auto.")
    return DeviceChoice("cpu", f"Measuring on the CPU: {obstacle}.")


def device_for(requested: str = "auto") -> str:
    """``device_choice(requested).device``: "cuda" or "cpu"."""
    return device_choice(requested).device


def _why_not_cuda(in_image: bool = False) -> str | None:
    build = torch_build()
    if not visible_gpus():
        return "no NVIDIA GPU is visible"
    if in_image:
        return None
    if build is None:
        return "torch is not installed"
    if build.cuda is None:
        return f"torch {build.version} is not a CUDA build"
    newest = cuda_driver_version()
    if driver_too_old(build.cuda, newest):
        return f"the driver runs CUDA up to {newest}, torch {build.version} needs {build.cuda}"
    return None


def driver_too_old(cuda: str, newest: str | None) -> bool:
    """Whether torch's CUDA is of a later major version than the driver's newest.

    Within a major version any toolkit runs on any of its drivers (NVIDIA's minor version
    compatibility).
    """
    return newest is not None and int(cuda.split(".")[0]) > int(newest.split(".")[0])


def environment(device: str) -> dict[str, str | None]:
    """The fingerprint for measurements on ``device`` ("cuda" or "cpu"); None for what is not here.

    Keys: python, torch, torch_cuda, torch_git, the keys of ``PACKAGES``, cxx (compiler identity),
    and for cuda driver, gpus (visible ones by name, sorted, "2x NAME"), apex_commit, apex_files,
    legacy_apex (the Apex that still has apex.amp); for cpu cpu. The keys are the same for both
    devices; those of the other one are None, so that a driver update does not make a CPU
    measurement stale.
    """
    build, compiler = torch_build(), cxx_compiler()
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": build.version if build else None,
        "torch_cuda": build.cuda if build else None,
        "torch_git": build.git if build else None,
        **{key: package_version(name) for key, name in PACKAGES.items()},
        "cxx": compiler.identity if compiler else None,
        "driver": None,
        "gpus": None,
        "apex_commit": None,
        "apex_files": None,
        "legacy_apex": None,
        "cpu": None,
    }
    if device == "cpu":
        found["cpu"] = cpu_model()
        return found
    apex = find_apex()
    names = sorted(gpu.name for gpu in visible_gpus())
    counted = [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
    found["driver"] = driver_version()
    found["gpus"] = ", ".join(counted) or None
    found["apex_commit"] = apex.commit
    found["apex_files"] = apex.fingerprint
    found["legacy_apex"] = find_apex([str(LEGACY_FOLDER)]).fingerprint
    return found


def environment_slice(device: str, keys: Iterable[str]) -> dict[str, str | None]:
    """The part of ``environment(device)`` one measuring rule depends on, in sorted order.

    Raises:
        KeyError: a key ``environment`` does not have.
    """
    found = environment(device)
    return {key: found[key] for key in sorted(keys)}
