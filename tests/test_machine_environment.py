"""The fingerprint: cheap, without torch, and sensitive to exactly what it should be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from apexbench.errors import UserError
from apexbench.machine import environment, install
from apexbench.machine.gpu import Gpu

H200 = Gpu(0, "GPU-1", "NVIDIA H200", None, "9.0", None)
A100 = Gpu(1, "GPU-2", "NVIDIA A100", None, "8.0", None)
CUDA_BUILD = install.TorchBuild("2.11.0+cu130", "13.0", "abc", Path("torch"))
CPU_BUILD = install.TorchBuild("2.13.0+cpu", None, "abc", Path("torch"))


def machine(monkeypatch, gpus, build) -> None:
    monkeypatch.setattr(environment, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(environment, "cuda_driver_version", lambda: "13.0")
    monkeypatch.setattr(environment, "torch_build", lambda: build)


@pytest.mark.parametrize(
    ("gpus", "build", "device", "words"),
    [
        ([H200], CUDA_BUILD, "cuda", "NVIDIA H200 is visible"),
        ([], CUDA_BUILD, "cpu", "no NVIDIA GPU is visible"),
        ([H200], CPU_BUILD, "cpu", "torch 2.13.0+cpu is not a CUDA build"),
        ([H200], None, "cpu", "torch is not installed"),
    ],
)
def test_auto(monkeypatch, gpus, build, device, words):
    machine(monkeypatch, gpus, build)
    choice = environment.device_choice("auto")
    assert choice.device == device
    assert words in choice.why
    assert environment.device_for("cpu") == "cpu"


def test_a_driver_too_old_for_torch(monkeypatch):
    machine(monkeypatch, [H200], CUDA_BUILD)
    monkeypatch.setattr(environment, "cuda_driver_version", lambda: "12.8")
    assert environment.device_choice("auto").why == (
        "Measuring on the CPU: the driver runs CUDA up to 12.8, torch 2.11.0+cu130 needs 13.0."
    )
    assert not environment.driver_too_old("12.8", "12.2")
    assert not environment.driver_too_old("12.8", None)


def test_cuda_that_cannot_be_had_and_nonsense(monkeypatch):
    machine(monkeypatch, [], CUDA_BUILD)
    with pytest.raises(UserError, match="no NVIDIA GPU is visible"):
        environment.device_for("cuda")
    with pytest.raises(UserError, match="did you mean cuda"):
        environment.device_for("cudaa")


def test_each_device_depends_on_its_own_parts(monkeypatch):
    machine(monkeypatch, [H200, A100, H200], CUDA_BUILD)
    monkeypatch.setattr(environment, "driver_version", lambda: "580.1")
    apex = install.ApexInstall("nvidia", commit="6424da3", fingerprint="f00")
    legacy = install.ApexInstall("nvidia", commit="e13873d", fingerprint="0ld")
    monkeypatch.setattr(environment, "find_apex", lambda *path: legacy if path else apex)
    cuda, cpu = environment.environment("cuda"), environment.environment("cpu")
    assert list(cuda) == list(cpu)
    assert cuda["gpus"] == "1x NVIDIA A100, 2x NVIDIA H200"
    assert (cuda["driver"], cuda["apex_commit"], cuda["apex_files"]) == ("580.1", "6424da3", "f00")
    assert cuda["legacy_apex"] == "0ld"
    assert cuda["cpu"] is None
    assert cpu["cpu"]
    assert [cpu[key] for key in ("driver", "gpus", "apex_commit", "apex_files")] == [None] * 4


def test_a_slice(monkeypatch):
    machine(monkeypatch, [], CPU_BUILD)
    assert environment.environment_slice("cpu", ["torch", "numpy"]).keys() == {"numpy", "torch"}
    with pytest.raises(KeyError, match="torhc"):
        environment.environment_slice("cpu", ["torhc"])


def test_it_never_imports_torch_nor_pandas():
    program = (
        "import sys; from apexbench.machine.environment import environment, device_for;"
        "environment('cpu'); environment('cuda'); device_for('auto');"
        "sys.exit(bool({'torch', 'pandas', 'numpy'} & sys.modules.keys()))"
    )
    package = Path(environment.__file__).parents[2]
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, cwd=package, check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", "2.11.0+cu130", "13.0"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "2.13.0+cpu", None),
        ("__version__ = '2.6.0'\ncuda = '12.4'\nhip = None\n", "2.6.0", "12.4"),
    ],
)
def test_torchs_version_file_is_read_as_text(tmp_path, monkeypatch, text, version, cuda):
    (tmp_path / "version.py").write_text(text + "git_version = 'abc'\nraise SystemExit\n")
    monkeypatch.setattr(install, "_package_folder", lambda name, path: tmp_path)
    build = install.torch_build()
    assert (build.version, build.cuda, build.git) == (version, cuda, "abc")


def test_no_torch(monkeypatch):
    monkeypatch.setattr(install, "_package_folder", lambda name, path: None)
    assert install.torch_build() is None


def test_apex_fingerprint_follows_the_record_and_the_libraries(tmp_path):
    (tmp_path / "apex" / "normalization").mkdir(parents=True)
    (tmp_path / "apex" / "__init__.py").touch()
    library = tmp_path / "amp_C.so"
    library.write_text("one")
    first = install.find_apex([str(tmp_path)]).fingerprint
    library.write_text("another")
    second = install.find_apex([str(tmp_path)]).fingerprint
    info = tmp_path / "apex-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: apex\nVersion: 0.1\n")
    (info / "RECORD").write_text("apex/__init__.py,,\namp_C.so,,\n")
    third = install.find_apex([str(tmp_path)]).fingerprint
    library.write_text("RECORD stands for it now")
    assert third == install.find_apex([str(tmp_path)]).fingerprint
    assert len({first, second, third, None}) == 4
