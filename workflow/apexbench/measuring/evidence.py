"""Evidence of what ran: kernel names, peak memory, compilation, each in a pass of its own."""

from __future__ import annotations

import functools
import re
import sys
import time

from apexbench.measuring.arms import Arm
from apexbench.measuring.timers import Timer

MOST_KERNELS = 60
LATE_S = 50e-6
"""Waiting for an idle device takes about 5 µs; more than this is work that a window missed."""


def kernel_names(arm: Arm) -> list[str]:
    """Distinct CUDA kernels of one call, in order of first launch."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    arm.prepare(1)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        arm.call(0)
        torch.cuda.synchronize()
    arm.finish()
    names = [
        event.name
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith(("Memcpy", "Memset"))
    ]
    return [name[:200] for name in dict.fromkeys(names)][:MOST_KERNELS]


def matches(kernels: list[str], pattern: str) -> bool:
    """Whether one of the kernels is the one an implementation says it launches."""
    return any(re.search(pattern, name) for name in kernels)


def outside(arm: Arm, tries: int = 5) -> float:
    """Seconds of device work that one call leaves outside its window, on other streams.

    A window's end event waits for the current stream alone; what a call started elsewhere and never
    joined would go unseen. Tried again where it seems long, since the host may be interrupted.
    """
    import torch

    late: list[float] = []
    while len(late) < tries and (not late or min(late) > LATE_S):
        arm.prepare(1)
        torch.cuda.synchronize()
        end = torch.cuda.Event()
        arm.call(0)
        end.record()
        end.synchronize()
        begin = time.perf_counter()
        torch.cuda.synchronize()
        late.append(time.perf_counter() - begin)
        arm.finish()
    return min(late)


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
