"""Interleaved sampling: every round takes one window of every arm, in a new random order.

First the windows are sized, then a pilot fixes how many rounds are needed, then the rounds that
count are taken in blocks; shared buffers are allocated anew for every block.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from apexbench.measuring import statistics, stopping
from apexbench.measuring.arms import Arm, Workload
from apexbench.measuring.samples import Samples, Settings, Watch
from apexbench.measuring.timers import HostBound, Timer

WINDOW_NS = {"device_time": 50_000, "step_time": 3_000_000}
TICKS = 100
NULL_WINDOWS = 20
MOST_CALLS = 1000
BUFFER_LIMIT = 4 * 2**30


Fault = Callable[[str, BaseException], bool]
"""``fault(arm, error)`` records the error; True if sampling may go on without that arm."""


class Sampler:
    """Samples the arms of one case on one timer."""

    def __init__(
        self,
        workload: Workload,
        arms: dict[str, Arm],
        timer: Timer,
        settings: Settings,
        pairs: list[tuple[str, str]],
        seed: int,
        watch: Watch,
        fault: Fault,
    ):
        self.workload, self.arms, self.timer = workload, arms, timer
        self.settings, self.pairs, self.watch, self.fault = settings, pairs, watch, fault
        self.random = np.random.default_rng(seed)
        self.window_ns = 0
        self.short: list[str] = []

    def run(self, quantity: str, budget_seconds: float) -> Samples:
        """All windows of ``quantity``; an arm that faults is dropped, the others go on."""
        begin, self.window_ns = time.perf_counter(), 0
        tick, null = self.timer.resolution(quantity)
        live, dropped, calls = self._size(quantity, tick, null)
        samples = Samples(quantity, calls, {}, [], 0, "target", tick, null, dropped=dropped)
        samples.short, samples.cold = self.short, self._cold(calls)
        if not live:
            return samples
        outcome = stopping.run(
            lambda labels, stop_at: self._rounds(samples, live, labels, stop_at),
            self._paired,
            lambda taken: len(taken.blocks),
            self.settings.confidence,
            self.settings.pilot_rounds,
            budget_seconds - (time.perf_counter() - begin),
        )
        final = outcome.samples
        final.pilot_rounds, final.stop = outcome.pilot_rounds, outcome.stop
        final.window_seconds = self.window_ns / 1e9
        return final

    def _size(
        self, quantity: str, tick: int, null: int
    ) -> tuple[list[str], dict[str, str], dict[str, int]]:
        """Calls per window of every arm, from a few windows of one call each."""
        self.workload.allocate(1)
        shortest: dict[str, int] = {}
        dropped: dict[str, str] = {}
        for name in list(self.arms):
            if (untimed := self.arms[name].untimed) is not None:
                dropped[name] = untimed
                continue
            if quantity == "device_time" and self.arms[name].synchronises:
                dropped[name] = "it waits for the device, so that it has a step_time only"
                continue
            try:
                windows = [self._window(quantity, name, 1) for _ in range(3)]
                shortest[name] = max(1, min(windows) - (null if min(windows) > 2 * null else 0))
            except HostBound:
                dropped[name] = (
                    "its launches cannot be queued ahead, so that it has a step_time only"
                )
            except Exception as error:
                if not self.fault(name, error):
                    raise
        if not shortest:
            return [], dropped, {}
        floor = max(TICKS * tick, NULL_WINDOWS * null)
        most = MOST_CALLS
        if size := self.workload.buffer_bytes():
            # An eighth of what is free: outputs and saved tensors of all calls come on top.
            room = min(BUFFER_LIMIT, self.timer.free_bytes() // 8)
            most = min(most, max(1, room // size))
        # Device windows hold the same calls for every arm, so that their caches are equally cold.
        on_device, least = quantity == "device_time", min(shortest.values())
        wanted = {
            name: (None if on_device else self.arms[name].window_ns) or WINDOW_NS[quantity]
            for name in shortest
        }
        calls = {
            name: math.ceil(max(wanted[name], floor) / (least if on_device else length))
            for name, length in shortest.items()
        }
        limits = {name: min(most, self.arms[name].max_calls or most) for name in shortest}
        calls = {name: min(calls[name], limits[name]) for name in calls}
        self.short = [name for name in calls if calls[name] * shortest[name] < 0.9 * floor]
        return list(shortest), dropped, calls

    def _cold(self, calls: dict[str, int]) -> str:
        """Which calls meet a cold cache: those with buffers of their own, or the first."""
        if not self.workload.cold_cache:
            return "no call"
        moved = self.workload.work.bytes or 0
        alone = max(calls.values(), default=1) == 1 or self.workload.buffer_bytes() > 0
        if alone or moved >= 4 * self.timer.cache_bytes:
            return "every call"
        return "the first call of a window"

    def _window(self, quantity: str, name: str, calls: int) -> int:
        self.watch.beat(f"window {quantity}", name)
        length = self.timer.sample(quantity, self.arms[name], calls, self.workload.cold_cache)
        self.window_ns += length
        return length

    def _rounds(
        self, samples: Samples, live: list[str], labels: list[int], stop_at: float = math.inf
    ) -> Samples:
        """Take the rounds of ``labels``; a disturbed block is taken again, up to a limit.

        The pilot gives ``stop_at``: past half the budget it ends after two blocks at the least.
        """
        result = replace(
            samples,
            calls=dict(samples.calls),
            times={name: [] for name in live},
            blocks=[],
            clocks={name: [] for name in live},
            state=[],
        )
        retries = self.settings.retries
        for block in dict.fromkeys(labels):
            while True:
                length = labels.count(block)
                with _no_collection():
                    taken = self._block(result, live, length)
                state = {"block": block, **self.watch.state()}
                disturbed = state.get("hardware_throttle") or state.get("cpu_contended")
                if disturbed and retries > 0:
                    retries -= 1
                    result.repeated_blocks += 1
                    result.state.append({**state, "repeated": True})
                    continue
                break
            for name in live:
                result.times[name].extend(taken[name])
            result.blocks.extend([block] * length)
            result.state.append(state)
            if not live or (block > 0 and time.perf_counter() > stop_at):
                break
        for name in set(result.times) - set(live):
            del result.times[name]
        return result

    def _block(self, result: Samples, live: list[str], length: int) -> dict[str, list[int]]:
        self.workload.allocate(max(result.calls[name] for name in live))
        self.watch.begin()
        taken: dict[str, list[int]] = {name: [] for name in live}
        for index in range(length):
            for position in self.random.permutation(len(live)):
                name = live[position]
                try:
                    taken[name].append(self._window(result.quantity, name, result.calls[name]))
                except HostBound:
                    result.dropped[name] = "its launches cannot be queued ahead every time"
                except Exception as error:
                    if not self.fault(name, error):
                        raise
                    result.dropped[name] = "it failed"
                if index == length - 1 and (clock := self.watch.clock()) is not None:
                    result.clocks[name].append(clock)
            gc.collect(0)  # between windows: a cycle may hold the device's memory
            for name in [name for name in live if name in result.dropped]:
                live.remove(name)
            if not live:
                break
        return taken

    def _paired(self, samples: Samples) -> list[stopping.Paired]:
        """Paired log ratios, blocks and the wanted half-width (m/2) of every comparison."""
        labels = np.asarray(samples.blocks)
        live = [pair for pair in self.pairs if set(pair) <= set(samples.times)]
        found = []
        for candidate, baseline in live:
            slow, fast = samples.per_call(baseline), samples.per_call(candidate)
            shortest = min(float(np.median(slow)), float(np.median(fast)))
            target = statistics.margin_for(shortest, self.settings.margin) / 2
            # The largest baseline holds every member, and asks the most of each interval.
            members = sum(other == candidate for other, _ in live)
            floor = samples.tick_per_call(candidate, baseline) / shortest
            ratios = np.log(slow) - np.log(fast)
            found.append(stopping.Paired(ratios, labels, target, members, floor))
        return found


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No cyclic garbage collection of its own accord, which would come inside windows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
