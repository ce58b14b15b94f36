"""Timing one window: what the clock sees, what it does not, and how cold the cache is.

``device_time``: the window's launches are queued behind a kernel that holds the device, so that the
two events enclose device work only. If the first event has already happened when the last launch
returns, the host was too slow (or the arm synchronised) and the sample is refused, never kept.

``step_time``: wall time of back-to-back calls between two synchronisations, host included.
"""

from __future__ import annotations

import itertools
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np

from apexbench.measuring.arms import Arm

CPU_FLUSH_LIMIT = 256 * 2**20


class HostBound(Exception):
    """The device outran the host: this arm has no device_time, only a step_time."""


class Timer(ABC):
    """Measures windows of one device; all times are integer nanoseconds."""

    names: ClassVar[dict[str, str]]
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

    def free_bytes(self) -> int:
        """Bytes of the device's memory that nothing uses yet."""
        return 2**63

    def sample(self, quantity: str, arm: Arm, calls: int, cold: bool) -> int:
        """One window of ``quantity``."""
        measure = self.device_time if quantity == "device_time" else self.step_time
        return measure(arm, calls, cold)


class Null(Arm):
    """Nothing: what an empty window measures."""

    def call(self, index: int) -> None:
        pass


def tick_and_median(windows: list[int]) -> tuple[int, int]:
    """The least step between distinct windows, and their median, in ns."""
    distinct = sorted(set(windows))
    steps = [after - before for before, after in itertools.pairwise(distinct)]
    return max(1, min(steps, default=1)), sorted(windows)[len(windows) // 2]


class CpuTimer(Timer):
    """perf_counter_ns around the calls; the last-level cache is read over before the window."""

    device = "cpu"
    names: ClassVar = {"device_time": "perf_counter_ns", "step_time": "perf_counter_ns"}

    def __init__(self) -> None:
        self.cache_bytes = last_level_cache()
        self.flush_bytes = min(4 * self.cache_bytes, CPU_FLUSH_LIMIT)
        self._flush = np.ones(self.flush_bytes // 8)
        self._resolution: tuple[int, int] | None = None

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
        if self._resolution is None:
            null = Null()
            windows = [self.device_time(null, 1, False) for _ in range(201)]
            self._resolution = tick_and_median(windows)
        return self._resolution

    def free_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def timer_for(device: str) -> Timer:
    """The timer of ``cpu`` or ``cuda``."""
    if device != "cuda":
        return CpuTimer()
    from apexbench.measuring.cuda_timer import CudaTimer

    return CudaTimer()


def last_level_cache() -> int:
    """Bytes of the largest CPU cache that the kernel reports; 32 MiB where it reports none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * unit)
    return max(sizes, default=32 * 2**20)
