"""What only a real driver and a real Apex can show; skipped without an NVIDIA GPU."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apexbench.machine import gpu
from apexbench.machine.apex import apex_status
from apexbench.machine.apex_proof import apex_proof
from apexbench.machine.describe import describe
from apexbench.machine.environment import environment
from apexbench.machine.gpu_state import gpu_state

pytestmark = [
    pytest.mark.needs_gpu,
    pytest.mark.skipif(not gpu.gpus(), reason="needs an NVIDIA GPU"),
]


def test_a_state_takes_less_than_2_ms():
    uuid = gpu.visible_gpus()[0].uuid
    gpu_state(uuid)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        state = gpu_state(uuid)
        seconds.append(time.perf_counter() - start)
    assert state.sm_clock_mhz
    assert state.temperature_c
    assert statistics.median(seconds) < 0.002


def test_the_environment_takes_less_than_150_ms_in_a_fresh_process():
    program = (
        "import time; start = time.perf_counter();"
        "from apexbench.machine.environment import environment, device_for;"
        "device_for('auto'); environment('cuda'); print(time.perf_counter() - start)"
    )
    package = Path(gpu.__file__).parents[2]
    command = [sys.executable, "-c", program]
    runs = [
        subprocess.run(command, cwd=package, check=True, capture_output=True, text=True)
        for _ in range(3)
    ]
    # NVML's own start belongs to the driver: seconds without persistence mode.
    assert min(float(run.stdout) for run in runs) < 0.3
    assert environment("cuda")["driver"]


def test_a_second_process_is_noticed():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA build of torch")
    uuid = gpu.visible_gpus()[0].uuid
    torch.zeros(1, device="cuda")
    alone = gpu_state(uuid)
    program = "import torch; torch.zeros(1, device='cuda'); print('up', flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        crowded = gpu_state(uuid)
        both = gpu_state(uuid, own_pids={os.getpid(), other.pid})
        other.communicate(b"\n")
    if (
        gpu.query(
            "nvmlDeviceGetComputeRunningProcesses", gpu.query("nvmlDeviceGetHandleByUUID", uuid)
        )
        == []
    ):
        pytest.skip("this driver lists no processes to this process")
    assert len(crowded.foreign_processes) == len(alone.foreign_processes) + 1
    assert len(both.foreign_processes) == len(alone.foreign_processes)


def test_a_compiled_apex_is_proven():
    status = apex_status()
    if status.state != "compiled":
        pytest.skip(status.sentence)
    assert status.missing("amp_C") is None
    assert status.architectures or status.notes
    assert {name: result["error"] for name, result in apex_proof().items()} == {
        "fused_adam_step": None,
        "fused_layer_norm_forward": None,
    }


def test_the_description_agrees_with_torch():
    described = describe()
    devices = described["torch"].get("devices")
    if not devices:
        pytest.skip("needs a CUDA build of torch")
    assert devices[0]["uuid"] == described["gpus"][0]["uuid"]
    assert devices[0]["capability"] == described["gpus"][0]["compute_capability"]
