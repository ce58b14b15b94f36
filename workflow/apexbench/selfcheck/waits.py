"""Waits of known length: what the clock must see, whoever synchronises and on whichever stream."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Parity, Work

CALIBRATION_CYCLES = 200_000_000


class Wait(Arm):
    """The host spins for a known time; one call a window, which a busy machine may leave alone."""

    max_calls = 1

    def __init__(self, workload: Waits):
        self.ns = workload.case["ns"]

    def call(self, index: int) -> None:
        end = time.perf_counter_ns() + self.ns
        while time.perf_counter_ns() < end:
            pass


class Sleep(Arm):
    """A kernel that spins for a known number of cycles; nobody waits for it."""

    def __init__(self, workload: Waits):
        self.cycles = workload.case["cycles"]

    def call(self, index: int) -> None:
        torch.cuda._sleep(self.cycles)


class Unjoined(Sleep):
    """The same on a stream that is never joined."""

    def __init__(self, workload: Waits):
        super().__init__(workload)
        self.side = torch.cuda.Stream()

    def call(self, index: int) -> None:
        with torch.cuda.stream(self.side):
            super().call(index)


class Waits(Workload):
    """Nothing but the wait; a kernel's is timed in both quantities."""

    quantities: ClassVar[tuple[str, ...]] = ("device_time", "step_time")
    cold_cache = False

    def __init__(self, case: Case, device: str, seed: int):
        self.case, self.device = case, device
        self.work = Work(None, None, "a wait moves nothing", None, "a wait moves nothing")
        if "ns" in case:  # the host's wait has no device work
            self.quantities = ("step_time",)  # type: ignore[misc]

    def arm(self, implementation: Implementation) -> Arm:
        arm: Arm = implementation.build(self)
        return arm

    def check(self, arm: Arm) -> Parity:
        """Nothing is computed."""
        return Parity(True, "n/a: nothing is computed", [])

    def details(self, arm: Arm) -> dict[str, Any]:
        """The length that the wait must have, and what a timer that does not synchronise sees.

        Cycles become ns by the wall clock, over a wait so long that its start costs nothing: no
        event takes part.
        """
        if isinstance(arm, Wait):
            return {"expected_ns": arm.ns}
        assert isinstance(arm, Sleep)
        pace = min(_wall_ns(CALIBRATION_CYCLES) for _ in range(3)) / CALIBRATION_CYCLES
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        arm.call(0)
        naive = time.perf_counter_ns() - begin
        torch.cuda.synchronize()
        return {
            "cycles": arm.cycles,
            "expected_ns": round(arm.cycles * pace),
            "cycles_per_us": round(1000 / pace, 1),
            "unsynchronised_ns": naive,
        }


def _wall_ns(cycles: int) -> int:
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    return time.perf_counter_ns() - begin
