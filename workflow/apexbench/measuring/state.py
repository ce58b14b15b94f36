"""The machine's state while it measures, from NVML: cheap enough to ask after every block."""

from __future__ import annotations

import os
from typing import Any


class StateProbe:
    """State and SM clock of one GPU; on a CPU only the load average."""

    def __init__(self, gpu_uuid: str | None):
        self.gpu_uuid = gpu_uuid

    def state(self) -> dict[str, Any]:
        """Clocks (MHz), temperature (°C), power (W), throttle reasons, foreign processes."""
        if self.gpu_uuid is None:
            return {"load_average": round(os.getloadavg()[0], 2)}
        from apexbench.machine.gpu_state import gpu_state

        reading = gpu_state(self.gpu_uuid)
        return {
            "sm_clock_mhz": reading.sm_clock_mhz,
            "memory_clock_mhz": reading.memory_clock_mhz,
            "temperature_c": reading.temperature_c,
            "power_w": reading.power_w,
            "hardware_throttle": reading.throttle_hardware,
            "software_throttle": reading.throttle_software,
            "foreign_processes": reading.foreign_processes,
        }

    def clock(self) -> int | None:
        """SM clock in MHz."""
        if self.gpu_uuid is None:
            return None
        from apexbench.machine.gpu_state import gpu_state

        return gpu_state(self.gpu_uuid).sm_clock_mhz
