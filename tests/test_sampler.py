"""The sampler: pairing, order, windows, calls; with arms whose clock is faked."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from apexbench.machine import gpu_state
from apexbench.measuring.arms import Arm, Workload
from apexbench.measuring.sampler import Sampler, Settings, Watch
from apexbench.measuring.state import StateProbe
from apexbench.measuring.timers import HostBound, Timer
from apexbench.records import Work


class Fixed(Arm):
    """Takes ``ns`` a call on the fake clock."""

    def __init__(self, ns, **attributes):
        self.ns, self.windows = ns, []
        for name, value in attributes.items():
            setattr(self, name, value)

    def call(self, index):
        raise AssertionError("the fake timer makes no calls")


class FakeTimer(Timer):
    device = "cpu"
    names = {"device_time": "cuda_event", "step_time": "perf_counter_ns"}  # noqa: RUF012
    cache_bytes = flush_bytes = 1

    def __init__(self):
        self.order, self.random = [], np.random.default_rng(0)

    def device_time(self, arm, calls, cold):
        self.order.append((arm, calls))
        if arm.ns == 13:
            raise HostBound
        return max(1, round(arm.ns * calls * self.random.lognormal(0, 0.001)))

    step_time = device_time

    def synchronize(self):
        pass

    def resolution(self, quantity):
        return 32, 1000


class Nothing(Workload):
    cold_cache = False
    work = Work(None, None, "nothing")

    def __init__(self):
        self.allocated = []

    def arm(self, implementation):
        raise AssertionError

    def check(self, arm):
        raise AssertionError

    def allocate(self, calls):
        self.allocated.append(calls)


class NoisyWatch(Watch):
    """Reports hardware throttling in the first ``bad`` blocks."""

    def __init__(self, bad=0):
        self.bad = bad

    def state(self):
        self.bad -= 1
        return {"hardware_throttle": ["hw_thermal"] if self.bad >= 0 else []}


def sampled(arms, quantity="device_time", watch=None, fault=None, **settings):
    workload, timer = Nothing(), FakeTimer()
    sampler = Sampler(
        workload,
        arms,
        timer,
        Settings(**settings),
        [(name, "base") for name in arms if name != "base"],
        7,
        watch or Watch(),
        fault or (lambda name, error: False),
    )
    return sampler.run(quantity, 1.0), timer, workload


def test_every_round_holds_one_window_of_every_arm_in_a_random_order():
    arms = {"base": Fixed(100_000), "other": Fixed(110_000), "third": Fixed(90_000)}
    samples, timer, workload = sampled(arms)
    rounds = len(samples.blocks)
    assert all(len(times) == rounds for times in samples.times.values())
    taken = [arm for arm, _ in timer.order][-3 * rounds :]
    orders = {tuple(taken[index : index + 3]) for index in range(0, len(taken), 3)}
    assert all(len(set(order)) == 3 for order in orders)
    assert len(orders) > 1
    assert len(workload.allocated) >= len(set(samples.blocks))
    assert samples.stop == "target"


def test_device_windows_hold_the_same_calls_and_are_long_enough():
    samples, _, _ = sampled({"base": Fixed(2_000), "slow": Fixed(20_000)})
    assert set(samples.calls.values()) == {samples.calls["base"]}
    assert samples.calls["base"] * 2_000 >= 50_000 * 0.99


def test_step_windows_are_sized_for_each_arm_and_obey_its_wishes():
    arms = {
        "base": Fixed(1_000_000),
        "slow": Fixed(10_000_000),
        "once": Fixed(1_000_000, max_calls=1),
        "long": Fixed(50_000_000, window_ns=200_000_000),
    }
    samples, _, _ = sampled(arms, "step_time")
    assert samples.calls["slow"] == samples.calls["once"] == 1
    assert samples.calls["base"] in (3, 4)
    assert samples.calls["long"] in (4, 5)


def test_an_arm_that_waits_for_the_device_has_no_device_time():
    arms = {"base": Fixed(100_000), "waits": Fixed(100_000, synchronises=True), "host": Fixed(13)}
    samples, _, _ = sampled(arms)
    assert set(samples.times) == {"base"}
    assert set(samples.dropped) == {"waits", "host"}


def test_a_block_under_hardware_throttling_is_taken_again_a_bounded_number_of_times():
    arms = {"base": Fixed(100_000), "other": Fixed(100_000)}
    samples, _, _ = sampled(arms, watch=NoisyWatch(bad=10_000), retries=3)
    assert samples.stop == "target"
    assert sum(bool(state.get("hardware_throttle")) for state in samples.state) >= 20
    quiet, _, _ = sampled(arms, watch=NoisyWatch(bad=0), retries=3)
    assert quiet.repeated_blocks == 0


def test_an_arm_that_fails_is_dropped_and_the_others_go_on():
    class Breaks(Fixed):
        pass

    arms = {"base": Fixed(100_000), "breaks": Breaks(100_000)}
    seen = []

    class BreakingTimer(FakeTimer):
        def device_time(self, arm, calls, cold):
            if isinstance(arm, Breaks) and len(self.order) > 40:
                raise RuntimeError("illegal access")
            return super().device_time(arm, calls, cold)

    sampler = Sampler(
        Nothing(), arms, BreakingTimer(), Settings(), [("breaks", "base")], 7, Watch(),
        lambda name, error: seen.append(name) or True,
    )  # fmt: skip
    samples = sampler.run("device_time", 1.0)
    assert seen == ["breaks"]
    assert set(samples.times) == {"base"}
    assert len(samples.times["base"]) == len(samples.blocks) >= 8


@pytest.mark.parametrize("names", [["base"], ["base", "other"]])
def test_few_arms_are_enough(names):
    samples, _, _ = sampled({name: Fixed(100_000) for name in names})
    assert set(samples.times) == set(names)


def test_a_window_that_cannot_be_made_long_enough_is_named():
    arms = {"base": Fixed(1_000, max_calls=1), "long": Fixed(100_000, max_calls=1)}
    samples, _, _ = sampled(arms, "step_time")
    assert samples.short == ["base"]


@pytest.mark.parametrize(
    ("cold", "buffers", "moved", "expected"),
    [
        (False, 0, 0, "no call"),
        (True, 0, 0, "the first call of a window"),
        (True, 1, 0, "every call"),
        (True, 0, 4, "every call"),
    ],
)
def test_the_samples_say_which_calls_were_cold(monkeypatch, cold, buffers, moved, expected):
    monkeypatch.setattr(Nothing, "cold_cache", cold)
    monkeypatch.setattr(Nothing, "buffer_bytes", lambda self: buffers)
    monkeypatch.setattr(Nothing, "work", Work(moved, None, "moved"))
    samples, _, _ = sampled({"base": Fixed(10_000), "other": Fixed(10_000)})
    assert samples.cold == expected


def test_a_windows_buffers_leave_room_for_what_its_calls_allocate(monkeypatch):
    monkeypatch.setattr(Nothing, "buffer_bytes", lambda self: 100)
    monkeypatch.setattr(FakeTimer, "free_bytes", lambda self: 8 * 300)
    samples, _, _ = sampled({"base": Fixed(1_000), "other": Fixed(1_000)})
    assert set(samples.calls.values()) == {3}


def test_no_garbage_is_collected_inside_a_block(monkeypatch):
    seen = []

    class Watching(FakeTimer):
        def device_time(self, arm, calls, cold):
            seen.append(gc.isenabled())
            return super().device_time(arm, calls, cold)

    sampler = Sampler(
        Nothing(), {"base": Fixed(10_000)}, Watching(), Settings(), [], 7, Watch(),
        lambda name, error: False,
    )  # fmt: skip
    sampler.run("device_time", 1.0)
    assert not any(seen[3:])  # the first three size the window
    assert gc.isenabled()


def test_a_brake_that_was_let_go_before_the_block_ended_is_told(monkeypatch):
    readings = iter([["hw_thermal"], [], [], []])

    def read(uuid):
        return SimpleNamespace(
            sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=40, power_w=500.0,
            throttle_hardware=next(readings), throttle_software=[], foreign_processes=[],
        )  # fmt: skip

    monkeypatch.setattr(gpu_state, "gpu_state", read)
    probe = StateProbe("GPU-0")
    assert probe.clock() == 1980
    assert probe.state()["hardware_throttle"] == ["hw_thermal"]
    assert probe.state()["hardware_throttle"] == []
