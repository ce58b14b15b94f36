"""Other processes on the CPU: seen in the scheduler's counts, measured again, then no verdict."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from apexbench.machine import gpu_state
from apexbench.measuring import contention, verdicts
from apexbench.measuring.contention import Contention
from apexbench.measuring.sampler import Settings
from apexbench.measuring.state import StateProbe
from test_sampler import Fixed, Watch, sampled

ARMS = {"base": Fixed(100_000), "other": Fixed(50_000)}


class Busy(Watch):
    """A CPU that others keep busy in the blocks whose number ``disturbed`` accepts."""

    def __init__(self, disturbed):
        self.disturbed, self.begun, self.taken = disturbed, 0, 0

    def begin(self):
        self.begun += 1

    def state(self):
        self.taken += 1
        return {"cpu_contended": self.disturbed(self.taken)}


def comparison(samples):
    return verdicts.compared(samples, "device_time", "other", "torch_best", ["base"], Settings())


def test_a_block_that_others_disturbed_is_taken_again():
    watch = Busy(lambda number: number == 4)
    samples, _, workload = sampled(ARMS, watch=watch)
    assert watch.begun == watch.taken == len(workload.allocated) - 1  # one allocation sizes
    assert not any(state["cpu_contended"] for state in samples.state)
    always, _, _ = sampled(ARMS, watch=Busy(lambda number: True), retries=3)
    assert always.repeated_blocks == 3
    assert len(always.state) == len(set(always.blocks)) + 3


def test_no_verdict_is_read_off_samples_of_a_busy_cpu():
    """Arms whose times differ twofold: only what the others did keeps the verdict unclear."""
    quiet = comparison(sampled(ARMS)[0])
    assert (quiet.verdict, quiet.flags) == ("faster", [])
    busy = comparison(sampled(ARMS, watch=Busy(lambda number: True))[0])
    assert (busy.verdict, busy.flags) == ("unclear", ["other processes kept the CPU busy"])
    assert busy.ratio == pytest.approx(quiet.ratio, rel=0.01)


def test_a_block_or_two_that_the_interval_trims_change_nothing():
    seen = []
    blocks = len(sampled(ARMS)[0].state)
    for spoilt in (blocks // 10, blocks // 10 + 1):
        samples, _, _ = sampled(ARMS, retries=0)
        for state in samples.state[:spoilt]:
            state["cpu_contended"] = True
        seen.append(comparison(samples).verdict)
    assert seen == ["faster", "unclear"]


@contextlib.contextmanager
def crowded(processes: int):
    """Every core busy with other processes."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"],
                         stdout=subprocess.PIPE)
        for _ in range(processes)
    ]  # fmt: skip
    try:
        for loop in loops:
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


def test_the_scheduler_tells_of_other_processes():
    own = Contention()
    if not own.state():
        pytest.skip("this kernel keeps no schedstat of a thread")
    probe, state = StateProbe(None), {}
    with crowded(3 * (os.cpu_count() or 1)):
        probe.begin()
        begin = time.thread_time()
        while time.thread_time() - begin < 0.2:
            pass
        state = probe.state()
    assert state["cpu_waited"] > 0.2
    assert state["cpu_contended"] is True


def counts(folder, **threads):
    for thread, values in threads.items():
        (folder / thread).mkdir(exist_ok=True)
        (folder / thread / "schedstat").write_text(" ".join(map(str, values)) + " 7\n")


@pytest.mark.parametrize(
    ("after", "waited", "used", "contended"),
    [
        ({"main": (1000, 10), "other": (900, 0)}, 0.01, 1.9, False),  # alone
        ({"main": (600, 400), "other": (700, 300)}, 0.4, 1.3, True),  # a neighbour
        ({"main": (400, 600), "other": (400, 600), "new": (1200, 800)}, 0.8, 2.0, False),  # own
        ({"main": (5, 1700)}, 1.0, 0.01, True),  # since before the block
        ({"main": (20, 0)}, 0.0, 0.02, False),  # asleep, and a thread that ended
    ],
)
def test_threads_that_wait_for_each_other_blame_nobody(
    tmp_path, monkeypatch, after, waited, used, contended
):
    clock = iter([0, 1000])
    monkeypatch.setattr(contention, "cores", lambda: 2)
    monkeypatch.setattr(contention.time, "perf_counter_ns", lambda: next(clock))
    counts(tmp_path, main=(0, 0), other=(0, 0))
    found = Contention(str(tmp_path))
    for thread in set(os.listdir(tmp_path)) - set(after):
        (tmp_path / thread / "schedstat").unlink()
    counts(tmp_path, **after)
    assert found.found() == ({"cpu_waited": waited, "cpu_used": used}, contended)


def test_a_kernel_that_does_not_tell_is_believed_to_be_idle(tmp_path):
    assert Contention(str(tmp_path / "none")).found() == ({}, False)


def test_on_a_gpu_a_busy_host_is_a_note_of_what_holds_its_work(monkeypatch):
    reading = SimpleNamespace(
        sm_clock_mhz=1, memory_clock_mhz=1, temperature_c=1, power_w=1.0,
        throttle_hardware=[], throttle_software=[], foreign_processes=[],
    )  # fmt: skip
    monkeypatch.setattr(gpu_state, "gpu_state", lambda uuid: reading)
    monkeypatch.setattr(Contention, "found", lambda self: ({"cpu_waited": 0.5}, True))
    probe = StateProbe("GPU-0")

    class OnGpu(Watch):
        def state(self):
            return probe.state()

    for quantity, noted in (("step_time", True), ("device_time", False)):
        samples, _, _ = sampled(ARMS, quantity, watch=OnGpu())
        samples.stop = "target"
        found = verdicts.sampling(samples).get("note")
        assert (found is not None) == noted
        assert comparison(samples).verdict == "faster"
        assert samples.repeated_blocks == 0
    assert (
        "kept the host's CPU busy in 20 of 20 blocks"
        in verdicts.sampling(sampled(ARMS, "step_time", watch=OnGpu())[0])["note"]
    )
