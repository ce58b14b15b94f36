"""What would fail a build is found before it: toolchain, architectures, disk, compilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from apexbench.image import parallelism, preflight
from apexbench.machine import toolchain
from apexbench.machine.install import ApexInstall, TorchBuild
from toolchain_stubs import GIB, machine

__all__ = ["machine"]


def found(machine, architectures=("9.0",)) -> str:
    return " ".join(map(str, preflight.problems(True, architectures)))


def test_a_good_machine_has_no_problem(machine):
    assert found(machine) == ""
    assert preflight.gcc_problem() is None
    assert preflight.problems(False, ()) == []


def test_no_torch_and_a_cpu_build_of_it(machine):
    machine.torch = None
    assert "torch is not installed there" in found(machine)
    assert "torch is not installed there" in str(preflight.problems(False, ())[0])
    machine.torch = TorchBuild("2.13.0+cpu", None, None, Path("torch"))
    assert "torch 2.13.0+cpu is a CPU build" in found(machine)
    assert preflight.problems(False, ()) == []


def test_no_nvcc(machine):
    machine.nvcc = None
    told = found(machine)
    assert "there is no nvcc, so Apex would be built without its kernels" in told
    assert "the CUDA toolkit 13.0" in told


@pytest.mark.parametrize("version", ["12.8", "13.1"])
def test_nvcc_of_another_cuda_than_torchs(machine, version):
    machine.tools(version)
    assert f"nvcc is {version} but torch was built with CUDA 13.0" in found(machine)


def test_a_gcc_that_nvcc_does_not_accept(machine, monkeypatch):
    machine.gcc = 16
    told = str(preflight.gcc_problem())
    assert "g++ is 16 and this nvcc accepts g++ up to 15" in told
    assert "CXX=g++-15" in told
    machine.gcc = 15
    assert preflight.gcc_problem() is None
    monkeypatch.setattr(toolchain, "cxx_compiler", lambda: None)
    assert "there is no g++" in str(preflight.gcc_problem())


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ([], "no architecture to compile for"),
        (["Hopper"], "'Hopper', which is no compute capability"),
        (["90"], "'90', which is no compute capability"),
        (["9.0", "6.1"], "nvcc 13.0 does not know sm_61 (it knows sm_75, sm_80, sm_90, sm_100)"),
    ],
)
def test_an_architecture_that_nvcc_does_not_compile_for(machine, wanted, words):
    assert words in found(machine, wanted)


def test_architectures_as_torch_writes_them(machine):
    assert preflight.parse_architectures("8.0;9.0a 10.0+PTX, 12.0") == [
        "8.0",
        "9.0a",
        "10.0+PTX",
        "12.0",
    ]
    assert preflight.machine_code("10.0+PTX") == "sm_100"
    assert preflight.machine_code("9.0a") == "sm_90a"
    assert found(machine, ["9.0a", "10.0f", "8.0+PTX"]) == ""


def test_an_apex_from_pypi(machine):
    machine.apex = ApexInstall("foreign", version="0.9.10")
    told = found(machine)
    assert "the installed apex 0.9.10 is PyPI's Pyramid toolkit" in told
    assert "pip uninstall -y apex" in told


def test_a_stale_module_and_a_half_uninstalled_apex(machine):
    so = Path("/env/site packages/amp_C.so")
    machine.apex = ApexInstall("nvidia", stale=["amp_C"], extensions={"amp_C": so})
    assert "amp_C is a stale file of another build" in found(machine)
    assert "rm '/env/site packages/amp_C.so'" in found(machine)
    machine.apex = ApexInstall("leftovers", leftovers=[so])
    assert "a half-uninstalled Apex is in the way" in found(machine)


def test_an_old_python():
    assert "Python is 3.10 there" in str(preflight.python_problem((3, 10)))
    assert preflight.python_problem((3, 11)) is None


def test_a_full_disk():
    told = str(preflight.disk_problem(3 * GIB, 40 * GIB, Path("/var/lib/docker")))
    assert told.startswith("/var/lib/docker has 3.0 GiB free and the build needs about 40 GiB")
    assert preflight.disk_problem(41 * GIB, 40 * GIB, "x") is None
    assert preflight.disk_problem(None, 40 * GIB, "x") is None


def test_all_problems_are_said_at_once(machine):
    machine.nvcc = None
    machine.apex = ApexInstall("foreign")
    assert len(preflight.problems(True, [])) == 3


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 7, 8, 16, 64, 224])
@pytest.mark.parametrize("gib", [2, 3, 6, 8, 10, 24, 30, 128, 2048, None])
def test_the_compilers_fit_the_machine(cores, gib):
    found = parallelism.jobs(cores, gib * GIB if gib else None)
    together = found["MAX_JOBS"] * found["APEX_PARALLEL_BUILD"]
    assert min(found.values()) >= 1
    if gib:
        assert together * parallelism.JOB_BYTES <= max(gib * GIB, parallelism.JOB_BYTES)
    # No core is left idle for want of jobs, and none gets more than two.
    assert min(cores, gib // 2 if gib else cores) / 2 < together <= 2 * cores


def test_too_little_memory_for_one_or_for_those_asked_for():
    assert "this machine allows 1.5 GiB" in str(parallelism.memory_problem(3 * GIB // 2))
    assert parallelism.memory_problem(24 * GIB) is None
    assert parallelism.memory_problem(None) is None
    asked = {"MAX_JOBS": "8", "APEX_PARALLEL_BUILD": "4"}
    told = str(parallelism.memory_problem(24 * GIB, asked))
    assert "ask for 32 compilers at once, about 64 GiB, and this machine allows 24.0 GiB" in told
    assert parallelism.memory_problem(64 * GIB, asked) is None
