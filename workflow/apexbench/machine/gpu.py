"""NVIDIA GPUs through NVML: which exist, which are visible, and in what state one is.

Nothing here imports torch or opens a CUDA context. Without a driver every function answers with
nothing (an empty list, ``None``); the only error raised is a ``UserError`` for a
``CUDA_VISIBLE_DEVICES`` that names no GPU of this machine.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apexbench.errors import UserError

NO_DRIVER = "no NVIDIA driver"


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``index`` is NVML's (PCI bus order); ``compute_capability`` is "9.0" for sm_90."""

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    compute_capability: str | None
    pci: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@functools.lru_cache(maxsize=1)
def _session(pid: int) -> Any | None:
    """pynvml, initialised once in the process ``pid`` (NVML does not survive a fork), or None."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver, no permission: no GPU to this program
        return None
    return pynvml


def nvml() -> Any | None:
    """The initialised ``pynvml`` module, or None without an NVIDIA driver."""
    return _session(os.getpid())


def ask(call: Callable[..., Any], *arguments: Any) -> Any | None:
    """The answer of one NVML call, None where the driver or this GPU does not support it.

    NVML's answers differ by GPU, driver and privilege, so each question may fail on its own.
    """
    try:
        answer = call(*arguments)
    except Exception:
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _function(name: str) -> Callable[..., Any]:
    """NVML's function ``name``; one that fails when the installed pynvml is too old to have it."""

    def missing(*_: Any) -> None:
        raise AttributeError(name)

    return getattr(nvml(), name, missing)


def query(name: str, *arguments: Any) -> Any | None:
    """``ask`` by the name of the NVML function: ``query("nvmlSystemGetDriverVersion")``."""
    return ask(_function(name), *arguments)


def _describe(index: int, handle: Any) -> Gpu | None:
    uuid = query("nvmlDeviceGetUUID", handle)
    if uuid is None:
        return None
    memory = query("nvmlDeviceGetMemoryInfo", handle)
    # A MIG instance has neither capability nor PCI address of its own.
    parent = query("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
    capability = query("nvmlDeviceGetCudaComputeCapability", parent)
    pci = getattr(query("nvmlDeviceGetPciInfo", parent), "busId", None)
    return Gpu(
        index=index,
        uuid=uuid,
        name=query("nvmlDeviceGetName", handle) or "unknown NVIDIA GPU",
        memory_bytes=int(memory.total) if memory is not None else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        pci=pci.decode() if isinstance(pci, bytes) else pci,
    )


def gpus() -> list[Gpu]:
    """Every GPU the driver shows to this process, in PCI bus order; [] without a driver."""
    count = query("nvmlDeviceGetCount") if nvml() else None
    found = []
    for index in range(count or 0):
        handle = query("nvmlDeviceGetHandleByIndex", index)
        found.append(_describe(index, handle) if handle is not None else None)
    return [gpu for gpu in found if gpu is not None]


def visible_gpus() -> list[Gpu]:
    """The GPUs CUDA would show to this process, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it: unset shows all, empty or ``-1`` hides all,
    entries are indices, UUIDs or prefixes of UUIDs. MIG entries are taken as they are. CUDA
    silently drops an entry it cannot resolve, with all that follow; here that is an error.

    Raises:
        UserError: an entry names no GPU, names two, or is an index on a machine with different
            GPUs whose order CUDA chooses by speed and NVML by PCI bus.
    """
    everything = gpus()
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not everything:
        return everything
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry in ("", "-1", "NoDevFiles"):
            break
        gpu = _resolve(entry, everything, setting)
        if gpu in chosen:
            raise UserError(f'CUDA_VISIBLE_DEVICES="{setting}" names {gpu.uuid} twice.')
        chosen.append(gpu)
    return chosen


def _resolve(entry: str, everything: list[Gpu], setting: str) -> Gpu:
    where = f'CUDA_VISIBLE_DEVICES="{setting}"'
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in everything)
    if entry.isascii() and entry.isdigit():
        if int(entry) >= len(everything):
            raise UserError(f"{where} names GPU {entry}, which is not here; there is {known}.")
        ordered = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if len({gpu.name for gpu in everything}) > 1 and not ordered:
            raise UserError(
                f"{where} is an index on a machine with different GPUs, where CUDA and the driver "
                "count differently; set CUDA_DEVICE_ORDER=PCI_BUS_ID too, or give the UUID."
            )
        return everything[int(entry)]
    if entry.startswith("MIG-"):
        handle = query("nvmlDeviceGetHandleByUUID", entry)
        instance = _describe(len(everything), handle) if handle is not None else None
        if instance is None:
            raise UserError(f"{where} names {entry}, a MIG instance the driver does not have.")
        return instance
    matches = [gpu for gpu in everything if entry and gpu.uuid.startswith(entry)]
    if len(matches) == 1:
        return matches[0]
    problem = "fits several GPUs" if matches else "is no GPU of this machine"
    raise UserError(f"{where}: {entry} {problem}; there is {known}.")


def driver_version() -> str | None:
    """The NVIDIA driver's version, such as "580.159.04"."""
    return query("nvmlSystemGetDriverVersion") if nvml() else None


def cuda_driver_version() -> str | None:
    """The newest CUDA this driver supports, such as "13.0"; not the toolkit's or torch's."""
    version = query("nvmlSystemGetCudaDriverVersion_v2") if nvml() else None
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def unclaimed_hardware() -> bool:
    """Whether an NVIDIA display or 3D controller is on the PCI bus, with or without a driver."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            display = (device / "class").read_text().startswith("0x03")
        except OSError:
            continue
        if vendor == "0x10de" and display:
            return True
    return False
