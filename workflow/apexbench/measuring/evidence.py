"""Evidence of what ran: kernel names, peak memory, compilation, each in a pass of its own."""

from __future__ import annotations

import functools
import re
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apexbench.measuring.arms import Arm
from apexbench.measuring.timers import Timer

MOST_KERNELS = 60
LATE_S = 5e-6
"""More device work than this after a call's own stream has gone on is work that windows miss."""
MARK_CYCLES = 2000
MARK = "spin_kernel"
"""The kernel of ``torch.cuda._sleep``."""


@dataclass(frozen=True)
class Traced:
    """One call as the device saw it: its kernels' names, and the seconds that no window would see.

    ``late_s`` is how long the call's work went on after the current stream had done its part.
    """

    kernels: list[str]
    late_s: float


def traced(arm: Arm) -> Traced:
    """Profile one call; a kernel queued behind it marks where a window would end.

    A window waits for the current stream alone: work on another stream that the call did not join
    still runs when the mark does. Names are distinct, in order of first launch.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    arm.prepare(1)
    torch.cuda.synchronize()
    with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CUDA]) as trace:
        warnings.simplefilter("ignore")
        arm.call(0)
        torch.cuda._sleep(MARK_CYCLES)
        torch.cuda.synchronize()
    arm.finish()
    events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    mark = max((i for i, event in enumerate(events) if MARK in event.name), default=None)
    if mark is None:
        return Traced(_names(events), 0.0)
    end = events.pop(mark).time_range.start
    late = max((event.time_range.end - end for event in events), default=0.0)
    return Traced(_names(events), max(0.0, 1e-6 * late))


def kernel_names(arm: Arm) -> list[str]:
    """Distinct CUDA kernels of one call, in order of first launch."""
    return traced(arm).kernels


def _names(events: Sequence[Any]) -> list[str]:
    copies = ("Memcpy", "Memset")
    names = [event.name[:200] for event in events if not event.name.startswith(copies)]
    return list(dict.fromkeys(names))[:MOST_KERNELS]


def matches(kernels: list[str], pattern: str) -> bool:
    """Whether one of the kernels is the one an implementation says it launches."""
    return any(re.search(pattern, name) for name in kernels)


def warm(arm: Arm, timer: Timer, calls: int = 3) -> float:
    """Run until compilation and autotuning have ended; returns the seconds of the first call."""
    first = 0.0
    for index in range(calls):
        begin = time.perf_counter()
        arm.prepare(1)
        arm.call(0)
        timer.synchronize()
        arm.finish()
        if index == 0:
            first = time.perf_counter() - begin
    return first


@functools.cache
def open_libraries(device: str) -> None:
    """Have cuBLAS allocate its workspaces now: else the first arm's peak memory would hold them."""
    if device != "cuda":
        return
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        matrix = torch.ones(64, 64, device=device, dtype=dtype)
        torch.addmm(matrix[0], matrix, matrix)
        matrix @ matrix
    torch.cuda.synchronize()


def peak_memory(arm: Arm, timer: Timer, before: int) -> int | None:
    """Peak bytes of one call above ``before`` (what was allocated before the arm was built)."""
    if timer.device != "cuda":
        return None
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    arm.prepare(1)
    arm.call(0)
    torch.cuda.synchronize()
    peak = int(torch.cuda.max_memory_allocated())
    arm.finish()
    return max(0, peak - before)


def forget_compiled() -> None:
    """Begin afresh: past eight shapes of one function, dynamo runs it eager without a word."""
    if "torch._dynamo" in sys.modules:
        import torch

        torch._dynamo.reset()


def graphs_compiled() -> int:
    """How many graphs torch.compile has compiled in this process so far."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))
