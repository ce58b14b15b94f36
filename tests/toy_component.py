"""A tiny component without torch, as an installed plug-in would bring it: for tests of faults."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import ClassVar

from apexbench.components.component import Component
from apexbench.measuring import faults, verdicts
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Check, Parity, Work


class Spin(Arm):
    """Spends a fixed time in each call; ``act`` happens in the call after parity.

    Its windows are short, so that a busy machine leaves most of them alone.
    """

    window_ns = 300_000

    def __init__(self, microseconds, act=None, error=0.0):
        self.seconds, self.act, self.error, self.checked = microseconds * 1e-6, act, error, False

    def call(self, index):
        if self.checked and self.act is not None:
            self.act()
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass


class ToyWorkload(Workload):
    quantities: ClassVar = ("step_time",)
    cold_cache = False

    def __init__(self, case, device, seed):
        if case["name"] == "inputs":
            _crash()
        self.case, self.allocated = case, 0
        self.work = Work(None, None, "a toy moves nothing", None, "n/a: a toy")

    def allocate(self, calls):
        self.allocated += 1
        if self.case["name"] == "allocate" and self.allocated > 4:
            raise MemoryError

    def arm(self, implementation):
        return implementation.build(self.case)

    def check(self, arm):
        arm.checked = True
        check = Check("output", arm.error, 0.5)
        return Parity(check.passed, "error <= 0.5", [check])


component = Component("toy", ToyWorkload, lambda case: f"toy {case['name']}", torch_free=True)


@component.implementation(role="default")
def steady(case):
    """A steady 200 µs."""
    return Spin(200)


@component.implementation()
def quick(case):
    """A tenth of that."""
    return Spin(20)


@component.implementation()
def wrong(case):
    """Fast but wrong."""
    return Spin(1, error=1.0)


def _crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang():
    time.sleep(3600)


def _break_apexbench():
    """A fault of apexbench's own, after the windows."""

    def broken(*arguments):
        raise LookupError("a fault of\nour own")

    verdicts.compare = broken


def _raise():
    raise MemoryError


def _fill():
    """Fill the disk that the case is told of, and leave it so."""
    with open(os.environ["TOY_FILL"], "ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1 << 16))
            os.fsync(stream.fileno())


def _lose_the_disk():
    """From now on nothing reaches the disk, for the reason that the environment names."""
    if number := int(os.environ.get("TOY_ERRNO", 0)):

        def fail(handle):
            raise OSError(number, os.strerror(number))

        os.fsync = fail


def _no_cache():
    """As a compiler's cache on a full disk: a library wraps the error."""
    if os.environ.get("TOY_ERRNO"):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/x.so")
        except OSError as error:
            raise RuntimeError("the backend failed") from error


def _kill():
    """What a user, a session's end or a memory daemon does to a process."""
    if once := os.environ.get("TOY_KILL_ONCE"):
        if os.path.exists(once):
            return
        open(once, "x").close()
    os.kill(os.getpid(), signal.SIGKILL)


class LostDevice(Spin):
    """A sticky CUDA error: from the first one on, whatever touches the device raises."""

    lost: ClassVar = False

    def __init__(self, microseconds):
        super().__init__(microseconds, self.fault)

    def fault(self):
        LostDevice.lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def close(self):
        if LostDevice.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


faults.device_is_lost = lambda device, error: LostDevice.lost


@component.implementation()
def faulty(case):
    """Does what the case says: crash, hang, memory, kill, sticky or nothing."""
    acts = {
        "crash": _crash,
        "hang": _hang,
        "memory": _raise,
        "kill": _kill,
        "own": _break_apexbench,
        "fill": _fill,
        "lose": _lose_the_disk,
        "cache": _no_cache,
    }
    return LostDevice(100) if case["name"] == "sticky" else Spin(100, acts.get(case["name"]))
