"""Windows on a CUDA device: events behind a holding kernel, or synchronised wall time."""

from __future__ import annotations

import time
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch

from apexbench.measuring.arms import Arm
from apexbench.measuring.timers import HostBound, Null, Timer, tick_and_median

HOLD_LIMIT_NS = 60_000_000
EVENT_TICK_NS = 32
"""The finest step of event times on GPUs since Volta; two null windows may hide a coarser one."""


class CudaTimer(Timer):
    """CUDA events behind a holding kernel, or wall time between synchronisations.

    The L2 cache is made cold by reading a buffer of four times its size before the window.
    """

    device = "cuda"
    names: ClassVar = {"device_time": "cuda_event", "step_time": "perf_counter_ns"}

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
        self.flush_bytes = 4 * self.cache_bytes
        self._flush = torch.ones(self.flush_bytes // 4, device="cuda")
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._cycles_per_ns = self._calibrate()
        self._enqueue_ns: WeakKeyDictionary[Arm, int] = WeakKeyDictionary()
        self._resolution: dict[str, tuple[int, int]] = {}

    def _calibrate(self) -> float:
        """Cycles of the holding kernel per nanosecond, from one known sleep."""
        cycles = 20_000_000
        for _ in range(2):
            self._begin.record()
            torch.cuda._sleep(cycles)
            self._end.record()
            self._end.synchronize()
        return cycles / (self._begin.elapsed_time(self._end) * 1e6)

    def hold(self, nanoseconds: float) -> None:
        """Keep the device busy for about ``nanoseconds``, touching no memory."""
        torch.cuda._sleep(int(nanoseconds * self._cycles_per_ns))

    def device_time(self, arm: Arm, calls: int, cold: bool) -> int:
        hold = self._enqueue_ns.get(arm, 200_000)
        while True:
            arm.prepare(calls)
            if cold:
                self._flush.sum()
            self.hold(hold * 1.5 + 30_000)
            enqueue = time.perf_counter_ns()
            self._begin.record()
            for index in range(calls):
                arm.call(index)
            self._end.record()
            enqueue = time.perf_counter_ns() - enqueue
            queued_ahead = not self._begin.query()
            self._end.synchronize()
            arm.finish()
            if queued_ahead:
                self._enqueue_ns[arm] = max(enqueue, hold // 2)
                return max(1, round(self._begin.elapsed_time(self._end) * 1e6))
            hold = max(2 * hold, enqueue)
            if hold > HOLD_LIMIT_NS:
                self._enqueue_ns.pop(arm, None)
                raise HostBound

    def step_time(self, arm: Arm, calls: int, cold: bool) -> int:
        arm.prepare(calls)
        if cold:
            self._flush.sum()
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for index in range(calls):
            arm.call(index)
        torch.cuda.synchronize()
        length = time.perf_counter_ns() - begin
        arm.finish()
        return max(1, length)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def resolution(self, quantity: str) -> tuple[int, int]:
        if quantity not in self._resolution:
            null = Null()
            windows = [self.sample(quantity, null, 1, False) for _ in range(201)]
            tick, median = tick_and_median(windows)
            least = EVENT_TICK_NS if quantity == "device_time" else 1
            self._resolution[quantity] = max(tick, least), median
        return self._resolution[quantity]

    def free_bytes(self) -> int:
        # What the caching allocator holds and nothing uses can be had again.
        reusable = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + int(reusable)
