"""The CUDA timer over a pretended device: a stream that runs behind the host on a fake clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from apexbench.measuring import cuda_timer
from apexbench.measuring.arms import Arm
from apexbench.measuring.timers import HostBound

LAUNCH_NS, QUERY_NS, DEPTH = 5_000, 500, 1024
CYCLES_PER_NS = 2


class Device:
    """Kernels run in order, each after its launch and its predecessor; DEPTH may be waiting."""

    def __init__(self):
        self.now, self.waiting = 0, []

    @property
    def idle_at(self):
        return self.waiting[-1] if self.waiting else 0

    def launch(self, length, host=LAUNCH_NS):
        self.now += host
        self.waiting = [end for end in self.waiting if end > self.now] or self.waiting[-1:]
        if len(self.waiting) >= DEPTH:
            self.now = max(self.now, self.waiting[-DEPTH])
        self.waiting.append(max(self.now, self.idle_at) + length)

    def synchronize(self):
        self.now = max(self.now, self.idle_at) + LAUNCH_NS


@pytest.fixture
def device(monkeypatch):
    device = Device()

    class Event:
        def __init__(self, enable_timing=False):
            self.at = 0

        def record(self):
            device.now += QUERY_NS
            self.at = max(device.now, device.idle_at)

        def query(self):
            device.now += QUERY_NS
            return device.now >= self.at

        def synchronize(self):
            device.now = max(device.now, self.at)

        def elapsed_time(self, other):
            return (other.at - self.at) / 1e6

    cuda = SimpleNamespace(
        Event=Event,
        _sleep=lambda cycles: device.launch(cycles / CYCLES_PER_NS),
        synchronize=device.synchronize,
        current_device=lambda: 0,
        get_device_properties=lambda index: SimpleNamespace(L2_cache_size=2**20),
    )
    flush = SimpleNamespace(sum=lambda: device.launch(60_000))
    torch = SimpleNamespace(cuda=cuda, ones=lambda *args, **options: flush)
    monkeypatch.setattr(cuda_timer, "torch", torch)
    clock = SimpleNamespace(perf_counter_ns=lambda: round(device.now))
    monkeypatch.setattr(cuda_timer, "time", clock)
    return device


class Kernel(Arm):
    """``launches`` kernels of ``length`` ns a call; ``host`` ns of the host before each."""

    def __init__(self, device, length, launches=1, host=0, waits=False):
        self.device, self.length, self.launches = device, length, launches
        self.host, self.waits = host, waits

    def call(self, index):
        for _ in range(self.launches):
            self.device.launch(self.length, self.host + LAUNCH_NS)
        if self.waits:
            self.device.synchronize()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("host", [0, 200_000, 2_000_000])
def test_device_time_is_the_devices_work_alone(device, host, cold):
    timer = cuda_timer.CudaTimer()
    arm = Kernel(device, 10_000, host=host)
    assert [timer.device_time(arm, 3, cold) for _ in range(4)] == [30_000] * 4


def test_a_sleep_of_known_cycles_is_seen_at_its_length(device):
    timer = cuda_timer.CudaTimer()
    arm = Kernel(device, 0)
    arm.call = lambda index: cuda_timer.torch.cuda._sleep(2_000_000)
    assert timer.device_time(arm, 1, True) == 1_000_000
    assert timer._cycles_per_ns == pytest.approx(CYCLES_PER_NS, rel=1e-3)


@pytest.mark.parametrize(
    "arm",
    [{"waits": True}, {"launches": 3 * DEPTH}, {"host": cuda_timer.HOLD_LIMIT_NS}],
    ids=["waits for the device", "overflows the launch queue", "host outlasts every hold"],
)
def test_what_cannot_be_queued_ahead_has_no_device_time(device, arm):
    timer = cuda_timer.CudaTimer()
    with pytest.raises(HostBound):
        timer.device_time(Kernel(device, 10_000, **arm), 1, True)


def test_a_missing_synchronize_is_caught(device):
    """The call returns at once; the kernel that it launched takes two milliseconds."""
    timer = cuda_timer.CudaTimer()
    arm = Kernel(device, 2_000_000)
    begin = device.now
    arm.call(0)
    assert device.now - begin < 10_000
    for cold in (False, True):
        assert 2_000_000 <= timer.step_time(arm, 1, cold) < 2_020_000
        assert 6_000_000 <= timer.step_time(arm, 3, cold) < 6_020_000
    assert timer.device_time(arm, 1, True) == 2_000_000


def test_work_left_from_before_is_not_in_the_window(device):
    timer = cuda_timer.CudaTimer()
    device.launch(50_000_000)
    assert timer.step_time(Kernel(device, 1_000_000), 1, False) < 1_020_000
    device.launch(50_000_000)
    assert timer.device_time(Kernel(device, 1_000_000), 1, False) == 1_000_000


def test_the_null_window_is_measured_once(device):
    timer = cuda_timer.CudaTimer()
    found = timer.resolution("device_time")
    assert found[0] >= cuda_timer.EVENT_TICK_NS
    before = device.now
    assert timer.resolution("device_time") == found
    assert device.now == before
