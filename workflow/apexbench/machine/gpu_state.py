"""The state of one GPU at one moment: clocks, temperature, power, throttling, other processes.

It is read between blocks of measurements, so it is a handful of NVML calls on a cached handle and
allocates nothing on the GPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from apexbench.machine import gpu

HARDWARE_REASONS = {
    0x008: "hw_slowdown",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
}
"""Reasons that spoil a measurement; bits of nvmlClocksEventReasons in NVIDIA's nvml.h."""

SOFTWARE_REASONS = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x010: "sync_boost",
    0x100: "display_clock_setting",
}
"""States to record that are no fault: a power cap under load is how the board is meant to run."""

IDLE = 0x001

# The inode of the first PID namespace is a constant of the kernel (PROC_PID_INIT_INO in
# include/linux/proc_ns.h).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


@dataclass(frozen=True)
class GpuState:
    """One reading. Clocks in MHz, temperature in °C, power in W, utilisation in %.

    A field is None where the driver does not tell. ``foreign_processes`` are other processes with
    a compute context on this GPU, as ``{"pid", "name", "memory_bytes"}``, each possibly None.
    ``pids_comparable`` says whether they were told apart by pid: in a container's own PID
    namespace the driver lists pids of the host, or none at all. There only the number can be
    compared: entries beyond as many as ``own_pids`` are foreign, without pid or name.
    """

    uuid: str
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    utilisation: int | None = None
    idle: bool | None = None
    throttle_hardware: list[str] = field(default_factory=list)
    throttle_software: list[str] = field(default_factory=list)
    foreign_processes: list[dict[str, Any]] = field(default_factory=list)
    pids_comparable: bool = True

    @property
    def throttle_reasons(self) -> list[str]:
        """Hardware reasons first, then software's; being idle is not among them."""
        return self.throttle_hardware + self.throttle_software

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@functools.lru_cache(maxsize=64)
def _handle(uuid: str, pid: int) -> Any | None:
    return gpu.query("nvmlDeviceGetHandleByUUID", uuid) if gpu.nvml() else None


def gpu_state(uuid: str, own_pids: Collection[int] | None = None) -> GpuState:
    """Read the GPU ``uuid`` now; every field is empty without a driver or for an unknown GPU.

    ``own_pids`` are the processes of this run that hold a CUDA context, by default this process.
    Before it has opened its context, pass an empty collection: then every process is foreign.
    """
    handle = _handle(uuid, os.getpid())
    library = gpu.nvml()
    if handle is None or library is None:
        return GpuState(uuid=uuid)
    ask, query = gpu.ask, gpu.query
    power = query("nvmlDeviceGetPowerUsage", handle)
    usage = query("nvmlDeviceGetUtilizationRates", handle)
    bits = query("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # the name before driver 535 and pynvml 12.535
        bits = query("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    own = {os.getpid()} if own_pids is None else set(own_pids)
    foreign, comparable = _foreign_processes(handle, own)
    return GpuState(
        uuid=uuid,
        sm_clock_mhz=ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
        memory_clock_mhz=ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
        temperature_c=ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU),
        power_w=power / 1000 if power is not None else None,
        utilisation=int(usage.gpu) if usage is not None else None,
        idle=bool(bits & IDLE) if bits is not None else None,
        throttle_hardware=[name for bit, name in HARDWARE_REASONS.items() if (bits or 0) & bit],
        throttle_software=[name for bit, name in SOFTWARE_REASONS.items() if (bits or 0) & bit],
        foreign_processes=foreign,
        pids_comparable=comparable,
    )


@functools.cache
def in_first_pid_namespace() -> bool:
    """Whether this process sees the host's pids (False in most containers and sandboxes)."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _foreign_processes(handle: Any, own: set[int]) -> tuple[list[dict[str, Any]], bool]:
    entries = gpu.query("nvmlDeviceGetComputeRunningProcesses", handle) or []
    # A driver that translates pids into our namespace shows it by listing one of ours.
    comparable = in_first_pid_namespace() or any(entry.pid in own for entry in entries)
    if not comparable:
        surplus = len(entries) - len(own)
        return [{"pid": None, "name": None, "memory_bytes": None}] * max(surplus, 0), False
    foreign = []
    for entry in entries:
        if entry.pid not in own:
            name = gpu.query("nvmlSystemGetProcessName", entry.pid)
            memory = getattr(entry, "usedGpuMemory", None)
            foreign.append({"pid": entry.pid, "name": name, "memory_bytes": memory})
    return foreign, True
