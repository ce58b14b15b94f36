"""doctor's table: what it says, how wide it is, and its exit status."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from apexbench import doctor
from apexbench.errors import UserError
from apexbench.machine import apex_source, environment, gpu, install, toolchain
from apexbench.machine.apex import ApexStatus
from apexbench.machine.import_probe import Imported

H200 = gpu.Gpu(0, "GPU-1", "NVIDIA H200", 141 * 1024**3, "9.0", None)
CUDA_BUILD = install.TorchBuild("2.11.0+cu130", "13.0", None, Path("torch"))
CPU_BUILD = install.TorchBuild("2.13.0+cpu", None, None, Path("torch"))
COMMIT = "6424da3b4faa6c8f062da4a48c424fff3f02d42d"

PYTHON_ONLY = ApexStatus(
    state="python_only",
    sentence="Apex 6424da3 was built Python-only: FusedAdam and the norms have no kernels.",
    remedy=apex_source.install_command("9.0"),
    commit=COMMIT,
    commit_source="pip (direct_url.json)",
    gpu=True,
)
COMPILED = ApexStatus(
    state="compiled",
    sentence="Apex 6424da3 is compiled (2 modules, sm_90).",
    commit=COMMIT,
    commit_source="pip (direct_url.json)",
    modules={"amp_C": True, "fused_layer_norm_cuda": True, "xentropy_cuda": False},
    gpu=True,
)


def set_up(monkeypatch, gpus=(), build=CPU_BUILD, status=None, torch=None) -> None:
    for module in (doctor, environment, toolchain):
        monkeypatch.setattr(module, "torch_build", lambda: build)
    monkeypatch.setattr(gpu, "gpus", lambda: list(gpus))
    monkeypatch.setattr(gpu, "visible_gpus", lambda: list(gpus))
    monkeypatch.setattr(environment, "visible_gpus", lambda: list(gpus))
    monkeypatch.setattr(gpu, "driver_version", lambda: "580.159.04" if gpus else None)
    for module in (gpu, environment):
        monkeypatch.setattr(module, "cuda_driver_version", lambda: "13.0" if gpus else None)
    status = status or ApexStatus(state="absent", sentence="Apex is not installed.")
    monkeypatch.setattr(doctor, "apex_status", lambda: status)
    monkeypatch.setattr(doctor, "probe", lambda names: {"torch": torch or Imported(ok=True)})


def output(results: Path, width: int = 80, as_json: bool = False, tty: bool = False):
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=tty)
    code = doctor.run(console, as_json=as_json, results=results)
    return code, text.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_without_a_gpu_the_main_job_runs(monkeypatch, tmp_path, width):
    set_up(monkeypatch)
    code, text = output(tmp_path, width)
    assert code == 0
    assert "no NVIDIA GPU" in text
    assert "once an NVIDIA GPU is here" in " ".join(text.split())
    assert "The main job can run here. Measuring on the CPU" in text
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_colours_on_a_terminal_only(monkeypatch, tmp_path):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    set_up(monkeypatch)
    assert "\x1b[" in output(tmp_path, tty=True)[1]


@pytest.mark.parametrize("state", ["python_only", "foreign", "broken", "absent"])
def test_a_wrong_apex_without_a_gpu_has_its_remedy_too(monkeypatch, tmp_path, state):
    """None need be installed for a CPU, so that an absent one has none."""
    status = dataclasses.replace(PYTHON_ONLY, state=state, gpu=False)
    set_up(monkeypatch, status=status)
    code, text = output(tmp_path)
    assert code == 0
    assert "once an NVIDIA GPU is here" in " ".join(text.split())
    assert (status.remedy in text.splitlines()) == (state != "absent")


def test_python_only_gives_the_command_on_one_line(monkeypatch, tmp_path):
    set_up(monkeypatch, [H200], CUDA_BUILD, PYTHON_ONLY)
    code, text = output(tmp_path)
    assert code == 0
    assert "built Python-only" in text
    assert PYTHON_ONLY.remedy in text.splitlines()


def test_a_compiled_apex_lists_commit_and_modules(monkeypatch, tmp_path):
    set_up(monkeypatch, [H200], CUDA_BUILD, COMPILED)
    _, text = output(tmp_path, 120)
    assert COMMIT in text
    assert "Modules: amp_C, fused_layer_norm_cuda." in text
    assert "NVIDIA H200, 141 GiB, sm_90" in text
    assert "580.159.04, up to CUDA 13.0" in text


def test_nvcc_of_another_version_names_both(monkeypatch, tmp_path):
    set_up(monkeypatch, [H200], CUDA_BUILD, PYTHON_ONLY)
    nvcc = toolchain.Nvcc("/usr/bin/nvcc", "12.4", "12.4.131")
    for module in (doctor.toolchain, toolchain):
        monkeypatch.setattr(module, "nvcc", lambda: nvcc)
    text = output(tmp_path, 160)[1]
    assert "nvcc is 12.4 but torch was built with CUDA 13.0" in text
    assert "cuda-toolkit-13-0" in text


def test_a_cpu_build_of_torch_beside_a_gpu(monkeypatch, tmp_path):
    set_up(monkeypatch, [H200], CPU_BUILD)
    code, text = output(tmp_path, 200)
    assert code == 0
    assert "a CPU build cannot use it" in text
    assert "https://download.pytorch.org/whl/cu130" in text


@pytest.mark.parametrize(
    ("build", "torch", "words"),
    [
        (None, None, "not installed"),
        (CPU_BUILD, Imported(ok=False, error="OSError: libgomp.so.1"), "libgomp.so.1"),
    ],
)
def test_without_torch_the_main_job_cannot_run(monkeypatch, tmp_path, build, torch, words):
    set_up(monkeypatch, build=build, torch=torch)
    code, text = output(tmp_path)
    assert code == 1
    assert words in text
    assert "The main job cannot run here: see torch above." in text


def test_results_that_cannot_be_written(monkeypatch, tmp_path):
    set_up(monkeypatch)
    (tmp_path / "results").touch()
    code, text = output(tmp_path / "results", 200)
    assert code == 1
    assert "is not a folder" in text


def test_a_wrong_cuda_visible_devices(monkeypatch, tmp_path):
    set_up(monkeypatch)

    def refuse() -> list[gpu.Gpu]:
        raise UserError('CUDA_VISIBLE_DEVICES="7" names GPU 7, which is not here.')

    monkeypatch.setattr(gpu, "visible_gpus", refuse)
    code, text = output(tmp_path)
    assert code == 1
    assert "names GPU 7" in text


def test_square_brackets_are_text_not_markup(monkeypatch, tmp_path):
    set_up(monkeypatch, torch=Imported(ok=False, error="[red]could not select[/nothing]"))
    assert "[red]could not select[/nothing]" in output(tmp_path, 200)[1]


def test_json(monkeypatch, tmp_path):
    set_up(monkeypatch, [H200], CUDA_BUILD, PYTHON_ONLY)
    code, text = output(tmp_path, as_json=True)
    answer = json.loads(text)
    assert code == 0
    assert answer["able"] is True
    assert answer["apex"]["state"] == "python_only"
    rows = {row["part"]: row for row in answer["rows"]}
    assert rows["Apex"]["status"] == "missing"
    assert rows["Apex"]["command"] == PYTHON_ONLY.remedy
