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
        from apexbench.machine.gpu import gpu_state

        return gpu_state(self.gpu_uuid, own_pids={os.getpid()})

    def clock(self) -> int | None:
        """SM clock in MHz."""
        if self.gpu_uuid is None:
            return None
        from apexbench.machine.gpu import sm_clock

        return sm_clock(self.gpu_uuid)
