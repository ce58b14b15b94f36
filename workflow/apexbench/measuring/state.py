"""The machine's state while it measures, from NVML: cheap enough to ask after every block."""

from __future__ import annotations

import os
from typing import Any


class StateProbe:
    """State and SM clock of one GPU; on a CPU only the load average."""

    def __init__(self, gpu_uuid: str | None):
        self.gpu_uuid = gpu_uuid
        self._hardware: set[str] = set()
        self._software: set[str] = set()

    def state(self) -> dict[str, Any]:
        """Clocks (MHz), temperature (°C), power (W), throttle reasons, foreign processes.

        Throttle reasons are those of now and of every :meth:`clock` since the last call: a brake
        that was let go before the block ended has spoilt it all the same.
        """
        if self.gpu_uuid is None:
            return {"load_average": round(os.getloadavg()[0], 2)}
        from apexbench.machine.gpu_state import gpu_state

        reading = gpu_state(self.gpu_uuid)
        hardware = sorted(self._hardware | set(reading.throttle_hardware))
        software = sorted(self._software | set(reading.throttle_software))
        self._hardware, self._software = set(), set()
        return {
            "sm_clock_mhz": reading.sm_clock_mhz,
            "memory_clock_mhz": reading.memory_clock_mhz,
            "temperature_c": reading.temperature_c,
            "power_w": reading.power_w,
            "hardware_throttle": hardware,
            "software_throttle": software,
            "foreign_processes": reading.foreign_processes,
        }

    def clock(self) -> int | None:
        """SM clock in MHz, right after a window; throttle reasons are kept for the block."""
        if self.gpu_uuid is None:
            return None
        from apexbench.machine.gpu_state import gpu_state

        reading = gpu_state(self.gpu_uuid)
        self._hardware |= set(reading.throttle_hardware)
        self._software |= set(reading.throttle_software)
        return reading.sm_clock_mhz
