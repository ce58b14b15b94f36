"""NVML faked by a stub: CUDA_VISIBLE_DEVICES, state, foreign processes, and no driver at all."""

from __future__ import annotations

import os
import sys
import types
from types import SimpleNamespace

import pytest

import record_factory as factory
from apexbench.errors import UserError
from apexbench.machine import gpu, gpu_state
from apexbench.measuring import verdicts
from apexbench.measuring.sampler import Samples
from apexbench.report import evidence, validity

UUIDS = ("GPU-8a1fc3e2-0000", "GPU-8a99d1b7-1111", "GPU-b7c0de00-2222")


class NVMLError(Exception):
    pass


def stub(names: tuple[str, ...] = ("NVIDIA H200",) * 3) -> types.ModuleType:
    """A pynvml with these GPUs; handles are their indices. A MIG instance is handle "mig"."""
    module = types.ModuleType("pynvml")
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0
    module.processes = []
    module.bits = 0x004 | 0x040

    def by_uuid(uuid: str) -> object:
        if uuid == "MIG-1":
            return "mig"
        if uuid not in UUIDS[: len(names)]:
            raise NVMLError("not found")
        return UUIDS.index(uuid)

    def parent(handle: object) -> int:
        if handle != "mig":
            raise NVMLError("not a MIG device")
        return 0

    def unsupported(*_: object) -> None:
        raise NVMLError("not supported")

    module.nvmlInit = lambda: None
    module.nvmlDeviceGetCount = lambda: len(names)
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetHandleByUUID = by_uuid
    module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = parent
    module.nvmlDeviceGetUUID = lambda h: "MIG-1" if h == "mig" else UUIDS[h]
    module.nvmlDeviceGetName = lambda h: b"NVIDIA H200 MIG 1g" if h == "mig" else names[h]
    module.nvmlDeviceGetMemoryInfo = lambda h: SimpleNamespace(total=141 * 1024**3)
    module.nvmlDeviceGetCudaComputeCapability = lambda h: (9, 0)
    module.nvmlDeviceGetPciInfo = lambda h: SimpleNamespace(busId=f"0000:0{h}:00.0".encode())
    module.nvmlSystemGetDriverVersion = lambda: b"580.159.04"
    module.nvmlSystemGetCudaDriverVersion_v2 = lambda: 13000
    module.nvmlDeviceGetClockInfo = lambda h, which: {1: 1980, 2: 3201}[which]
    module.nvmlDeviceGetTemperature = lambda h, which: 41
    module.nvmlDeviceGetPowerUsage = lambda h: 652_310
    module.nvmlDeviceGetUtilizationRates = unsupported
    module.nvmlDeviceGetCurrentClocksEventReasons = lambda h: module.bits
    module.nvmlDeviceGetComputeRunningProcesses = lambda h: module.processes
    module.nvmlSystemGetProcessName = lambda pid: f"/usr/bin/python{pid}"
    return module


def use(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpu._session.cache_clear()
    gpu_state._handle.cache_clear()


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    module = stub()
    use(monkeypatch, module)
    yield module
    gpu._session.cache_clear()
    gpu_state._handle.cache_clear()


def test_gpus_and_versions(nvml):
    first = gpu.gpus()[0]
    assert first == gpu.Gpu(0, UUIDS[0], "NVIDIA H200", 141 * 1024**3, "9.0", "0000:00:00.0")
    assert gpu.driver_version() == "580.159.04"
    assert gpu.cuda_driver_version() == "13.0"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("0,-1,1", [0]),
        (UUIDS[1], [1]),
        ("GPU-b7", [2]),
        (f"GPU-b7,{UUIDS[0]}", [2, 0]),
    ],
)
def test_visible_devices(nvml, monkeypatch, setting, expected):
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [one.index for one in gpu.visible_gpus()] == expected


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("7", "names GPU 7, which is not here"),
        ("GPU-8a", "fits several GPUs"),
        ("GPU-ffff", "is no GPU of this machine"),
        ("0,0", "twice"),
        ("H200", "is no GPU of this machine"),
        ("MIG-9", "MIG instance the driver does not have"),
        ("²", "is no GPU of this machine"),
    ],
)
def test_visible_devices_that_name_nothing(nvml, monkeypatch, setting, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES") as caught:
        gpu.visible_gpus()
    assert words in str(caught.value)


def test_mig_instances_are_taken_as_they_are(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    (instance,) = gpu.visible_gpus()
    assert (instance.uuid, instance.name) == ("MIG-1", "NVIDIA H200 MIG 1g")
    assert instance.compute_capability == "9.0"


def test_an_index_among_different_gpus_is_ambiguous(monkeypatch, nvml):
    use(monkeypatch, stub(("NVIDIA RTX 4090", "NVIDIA GeForce GT 1030")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UserError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpu.visible_gpus()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert gpu.visible_gpus()[0].name == "NVIDIA GeForce GT 1030"


def test_state(nvml, monkeypatch):
    monkeypatch.setattr(gpu_state, "in_first_pid_namespace", lambda: True)
    nvml.processes = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=1),
        SimpleNamespace(pid=77, usedGpuMemory=2048),
    ]
    state = gpu_state.gpu_state(UUIDS[0])
    assert (state.sm_clock_mhz, state.memory_clock_mhz, state.temperature_c) == (1980, 3201, 41)
    assert state.power_w == pytest.approx(652.31)
    assert state.utilisation is None  # this driver does not tell
    assert state.throttle_hardware == ["hw_thermal"]
    assert state.throttle_software == ["sw_power_cap"]
    assert state.throttle_reasons == ["hw_thermal", "sw_power_cap"]
    assert state.idle is False
    assert state.foreign_processes == [
        {"pid": 77, "name": "/usr/bin/python77", "memory_bytes": 2048}
    ]


def test_the_older_name_of_the_throttle_question(nvml):
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x001 | 0x020
    state = gpu_state.gpu_state(UUIDS[0])
    assert state.throttle_hardware == ["sw_thermal"]
    assert state.idle is True


@pytest.mark.parametrize(("listed", "own", "foreign"), [(0, 1, 0), (1, 1, 0), (3, 1, 2), (1, 0, 1)])
def test_in_another_pid_namespace_only_the_number_counts(nvml, monkeypatch, listed, own, foreign):
    monkeypatch.setattr(gpu_state, "in_first_pid_namespace", lambda: False)
    nvml.processes = [SimpleNamespace(pid=9000 + i, usedGpuMemory=None) for i in range(listed)]
    state = gpu_state.gpu_state(UUIDS[0], own_pids=range(1, own + 1))
    assert len(state.foreign_processes) == foreign
    assert all(process["pid"] is None for process in state.foreign_processes)
    assert not state.pids_comparable


def test_a_driver_that_translates_pids_is_believed(nvml, monkeypatch):
    monkeypatch.setattr(gpu_state, "in_first_pid_namespace", lambda: False)
    nvml.processes = [SimpleNamespace(pid=p, usedGpuMemory=None) for p in (5, 6)]
    state = gpu_state.gpu_state(UUIDS[0], own_pids={5})
    assert [process["pid"] for process in state.foreign_processes] == [6]


def test_no_driver_and_no_package(monkeypatch):
    broken = stub()

    def refuse() -> None:
        raise NVMLError("driver not loaded")

    broken.nvmlInit = refuse
    for module in (broken, None):  # None makes the import itself fail
        use(monkeypatch, module)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
        assert gpu.gpus() == []
        assert gpu.visible_gpus() == []
        assert gpu.driver_version() is None
        assert gpu.cuda_driver_version() is None
        state = gpu_state.gpu_state(UUIDS[0])
        assert state.sm_clock_mhz is None
        assert state.throttle_reasons == []
    gpu._session.cache_clear()
    gpu_state._handle.cache_clear()


def test_an_unknown_gpu_has_an_empty_state(nvml):
    assert gpu_state.gpu_state("GPU-unknown").temperature_c is None


def test_another_process_on_the_gpu_is_flagged_and_said(tmp_path):
    state = [{"foreign_processes": [{"pid": 7, "name": "python", "memory_bytes": 1 << 30}]}]
    samples = Samples("step_time", {}, {}, [], 30, "target", 1, 1, state=state)
    assert verdicts._flags(samples, "a", ["b"]) == ["another process used the GPU"]
    record = factory.optimizer()[0]
    record.state = state
    found = evidence.load(factory.write_run(tmp_path, [record]))
    assert "Other processes used the GPU during 1 record." in validity.threats(found, [])
