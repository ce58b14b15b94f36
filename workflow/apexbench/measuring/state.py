"""The machine's state while it measures, from NVML: cheap enough to ask after every block."""

from __future__ import annotations

import os
from typing import Any

from apexbench.measuring.contention import Contention


class StateProbe:
    """State and SM clock of one GPU, and whether other processes keep this one from the CPU."""

    def __init__(self, gpu_uuid: str | None):
        self.gpu_uuid = gpu_uuid
        self._hardware: set[str] = set()
        self._software: set[str] = set()
        self._contention = Contention()

    def begin(self) -> None:
        """A block begins."""
        self._contention.begin()

    def state(self) -> dict[str, Any]:
        """Clocks (MHz), temperature (°C), power (W), throttle reasons, foreign processes, host.

        Throttle reasons are those of now and of every :meth:`clock` since the last call: a brake
        that was let go before the block ended has spoilt it all the same. ``cpu_contended`` spoils
        a block on the CPU; on a GPU ``host_contended`` is only told: most of it is the device's.
        """
        host, contended = self._contention.found()
        if self.gpu_uuid is None:
            load = round(os.getloadavg()[0], 2)
            return {"load_average": load, **host, "cpu_contended": contended}
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
            **host,
            "host_contended": contended,
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
