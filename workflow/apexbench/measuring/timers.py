"""Timing one window: what the clock sees, what it does not, and how cold the cache is.

``device_time``: the window's launches are queued behind a kernel that holds the device, so that the
two events enclose device work only. If the first event has already happened when the last launch
returns, the host was too slow (or the arm synchronised) and the sample is refused, never kept.

``step_time``: wall time of back-to-back calls between two synchronisations, host included.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

import torch

from apexbench.measuring.arms import Arm

CPU_FLUSH_LIMIT = 256 * 2**20
HOLD_LIMIT_NS = 60_000_000


class HostBound(Exception):
    """The device outran the host: this arm has no device_time, only a step_time."""


class Timer(ABC):
    """Measures windows of one device; all times are integer nanoseconds."""

    names: dict[str, str]
    device: str
    cache_bytes: int
    flush_bytes: int

    @abstractmethod
    def device_time(self, arm: Arm, calls: int, cold: bool) -> int:
        """One window of device work; raises HostBound where launches can't be queued ahead."""

    @abstractmethod
    def step_time(self, arm: Arm, calls: int, cold: bool) -> int:
        """One window of synchronised wall time."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device is idle."""

    @abstractmethod
    def resolution(self, quantity: str) -> tuple[int, int]:
        """(tick, null window): the least difference seen and the median empty window, in ns."""

    def sample(self, quantity: str, arm: Arm, calls: int, cold: bool) -> int:
        """One window of ``quantity``."""
        measure = self.device_time if quantity == "device_time" else self.step_time
        return measure(arm, calls, cold)


class _Null(Arm):
    def call(self, index: int) -> None:
        pass


def _tick_and_median(windows: list[int]) -> tuple[int, int]:
    distinct = sorted(set(windows))
    steps = [after - before for before, after in zip(distinct, distinct[1:], strict=False)]
    return max(1, min(steps, default=1)), sorted(windows)[len(windows) // 2]


class CpuTimer(Timer):
    """perf_counter_ns around the calls; the last-level cache is read over before the window."""

    device = "cpu"
    names = {"device_time": "perf_counter_ns", "step_time": "perf_counter_ns"}

    def __init__(self) -> None:
        self.cache_bytes = _last_level_cache()
        self.flush_bytes = min(4 * self.cache_bytes, CPU_FLUSH_LIMIT)
        self._flush = torch.ones(self.flush_bytes // 4)

    def device_time(self, arm: Arm, calls: int, cold: bool) -> int:
        arm.prepare(calls)
        if cold:
            self._flush.sum()
        begin = time.perf_counter_ns()
        for index in range(calls):
            arm.call(index)
        length = time.perf_counter_ns() - begin
        arm.finish()
        return max(1, length)

    def step_time(self, arm: Arm, calls: int, cold: bool) -> int:
        return self.device_time(arm, calls, cold)

    def synchronize(self) -> None:
        pass

    def resolution(self, quantity: str) -> tuple[int, int]:
        null = _Null()
        return _tick_and_median([self.device_time(null, 1, False) for _ in range(201)])


class CudaTimer(Timer):
    """CUDA events behind a holding kernel, or wall time between synchronisations.

    The L2 cache is made cold by reading a buffer of four times its size before the window.
    """

    device = "cuda"
    names = {"device_time": "cuda_event", "step_time": "perf_counter_ns"}

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
        self.flush_bytes = 4 * self.cache_bytes
        self._flush = torch.ones(self.flush_bytes // 4, device="cuda")
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._cycles_per_ns = self._calibrate()
        self._enqueue_ns: dict[int, int] = {}

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
        hold = self._enqueue_ns.get(id(arm), 200_000)
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
                self._enqueue_ns[id(arm)] = max(enqueue, hold // 2)
                return max(1, round(self._begin.elapsed_time(self._end) * 1e6))
            hold = max(2 * hold, enqueue)
            if hold > HOLD_LIMIT_NS:
                self._enqueue_ns.pop(id(arm), None)
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
        null = _Null()
        windows = [self.sample(quantity, null, 1, False) for _ in range(201)]
        tick, median = _tick_and_median(windows)
        return (max(tick, 32), median) if quantity == "device_time" else (tick, median)


def timer_for(device: str) -> Timer:
    """The timer of ``cpu`` or ``cuda``."""
    return CudaTimer() if device == "cuda" else CpuTimer()


def _last_level_cache() -> int:
    """Bytes of the largest CPU cache that the kernel reports; 32 MiB where it reports none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * unit)
    return max(sizes, default=32 * 2**20)
