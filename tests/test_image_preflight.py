"""Every failure that is found before minutes are spent, and the proof after the build."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from apexbench.image import inside, native, parallelism, preflight, proof
from apexbench.machine import install, toolchain
from apexbench.machine.import_probe import Imported
from apexbench.machine.install import ApexInstall, TorchBuild

GIB = 1024**3


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which everything is right: a test breaks one part."""
    state = SimpleNamespace(
        torch=TorchBuild("2.11.0+cu130", "13.0", None, Path("torch")),
        nvcc=None,
        apex=ApexInstall("absent"),
        folder=tmp_path / "cuda",
        gcc=12,
    )
    (state.folder / "bin").mkdir(parents=True)
    header = state.folder / "include/crt/host_config.h"
    header.parent.mkdir(parents=True)
    header.write_text("#error -- unsupported GNU version! gcc versions later than 15 are not s")

    def tools(version: str = "13.0") -> None:
        path = state.folder / "bin/nvcc"
        path.write_text("#!/bin/sh\necho sm_75; echo sm_80; echo sm_90; echo sm_100\n")
        path.chmod(0o755)
        state.nvcc = toolchain.Nvcc(str(path), version, f"{version}.88")

    def gcc(path: Path | str) -> tuple[int, str]:
        return 0, f"{state.gcc}.2.0"

    state.tools = tools
    tools()
    for module in (preflight, proof, inside):
        monkeypatch.setattr(module, "torch_build", lambda: state.torch)
    monkeypatch.setattr(toolchain, "nvcc", lambda: state.nvcc)
    monkeypatch.setattr(
        toolchain, "cxx_compiler", lambda: toolchain.Compiler("g++", "g++", "g++ 12")
    )
    monkeypatch.setattr(preflight, "gcc_version", lambda path: state.gcc)
    monkeypatch.setattr(preflight, "find_apex", lambda path=None: state.apex)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return state


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


# ---- compilers side by side ----


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


# ---- the proof ----


@pytest.fixture
def built(machine, monkeypatch):
    """An installed Apex: each module's fate, and what is in it."""
    fates = {name: Imported(ok=True) for name in ("torch", "amp_C", "fused_layer_norm_cuda")}
    code = {"amp_C": ["sm_90"], "fused_layer_norm_cuda": ["sm_90"], "apex_C": []}
    paths = {name: Path(f"{name}.so") for name in code}
    monkeypatch.setattr(
        proof, "find_apex", lambda path=None: ApexInstall("nvidia", extensions=paths)
    )
    monkeypatch.setattr(proof, "probe", lambda names, path: fates)
    monkeypatch.setattr(proof.cubin, "architectures", lambda path: code[path.stem])
    return SimpleNamespace(fates=fates, code=code, paths=paths)


def test_what_was_built_is_listed_by_module(built):
    assert proof.prove(["9.0"]) == {
        "amp_C": ["sm_90"],
        "apex_C": [],
        "fused_layer_norm_cuda": ["sm_90"],
    }


def test_a_python_only_build_is_no_success(built):
    built.fates["amp_C"] = Imported(ok=False, absent=True, error="No module named 'amp_C'")
    with pytest.raises(proof.NotProven, match=r"without amp_C .*APEX_CPP_EXT=1 APEX_CUDA_EXT=1"):
        proof.prove(["9.0"])


def test_a_contrib_extension_that_was_asked_for_must_be_there(built):
    with pytest.raises(proof.NotProven, match=r"without xentropy_cuda .*APEX_XENTROPY=1"):
        proof.prove(["9.0"], ["xentropy"])


def test_code_for_another_gpu_is_no_success(built):
    built.code["fused_layer_norm_cuda"] = ["sm_80"]
    with pytest.raises(proof.NotProven, match=r"holds code for sm_80, but not for 9\.0"):
        proof.prove(["9.0"])
    assert proof.prove(["8.0+PTX"][:0])  # nothing asked for, nothing missing


def test_ptx_alone_is_no_machine_code(built):
    built.code["amp_C"] = ["compute_90"]
    with pytest.raises(proof.NotProven, match="amp_C"):
        proof.prove(["9.0"])


def test_without_cuobjdump_nothing_is_proven(built):
    built.code["amp_C"] = None
    with pytest.raises(proof.NotProven, match="cuobjdump"):
        proof.prove(["9.0"])


def test_the_builds_record_is_what_the_machine_reads(built, tmp_path):
    record = proof.describe(
        "url", "c" * 40, ["9.0"], ["xentropy"], {"amp_C": ["sm_90"]}, 138.04, {}
    )
    assert (record["seconds"], record["target"], record["cuda"]) == (138.0, ["9.0"], "13.0")
    assert record["flags"]["APEX_XENTROPY"] == "1"
    path = proof.write(record, tmp_path)
    assert json.loads(path.read_text()) == record
    package = tmp_path / "apex"
    (package / "optimizers").mkdir(parents=True)
    (package / "__init__.py").touch()
    seen = install.find_apex([str(tmp_path)])
    assert (seen.commit, seen.build["architectures"]) == ("c" * 40, {"amp_C": ["sm_90"]})


# ---- what the Dockerfile and `make apex` run ----


def test_check_prints_one_line_of_json(machine, capsys):
    machine.nvcc = None
    assert inside.main(["check", "--target", "runtime", "--architectures", "9.0"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["torch"], said["nvcc"]) == ("2.11.0+cu130", None)
    assert "there is no nvcc" in said["problems"][0]
    inside.main(["check", "--target", "measuring"])
    assert json.loads(capsys.readouterr().out)["problems"] == []


APEX = ["apex", "--repository", "https://r", "--commit", "c" * 40, "--architectures", "9.0"]


def test_a_build_that_fails_is_not_tried_without_extensions(machine, monkeypatch, capsys):
    calls = []

    def pip(argv, env, check):
        calls.append((argv, env))
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(inside, "subprocess", SimpleNamespace(run=pip))
    monkeypatch.setattr(inside, "missing_build_tools", list)
    monkeypatch.setattr(inside.host, "memory_bytes", lambda: 32 * GIB)
    monkeypatch.setattr(inside.host, "cores", lambda: 16)
    for name in ("MAX_JOBS", "APEX_PARALLEL_BUILD"):
        monkeypatch.delenv(name, raising=False)
    assert inside.main([*APEX, "--contrib", "xentropy"]) == 2
    assert "not tried again without its extensions" in capsys.readouterr().err
    [(argv, env)] = calls
    assert argv[-1] == f"apex @ git+https://r@{'c' * 40}"
    assert {"--no-build-isolation", "--no-deps", "--no-cache-dir", "--verbose"} <= set(argv)
    asked = {"APEX_CPP_EXT", "APEX_CUDA_EXT", "APEX_XENTROPY", "MAX_JOBS", "APEX_PARALLEL_BUILD"}
    assert {name: env[name] for name in asked} == {
        "APEX_CPP_EXT": "1",
        "APEX_CUDA_EXT": "1",
        "APEX_XENTROPY": "1",
        "MAX_JOBS": "4",
        "APEX_PARALLEL_BUILD": "4",
    }
    assert env["TORCH_CUDA_ARCH_LIST"] == "9.0"


def test_nothing_is_compiled_where_something_is_wrong(machine, monkeypatch, capsys):
    monkeypatch.setattr(inside, "_pip", lambda *_: pytest.fail("pip was started"))
    machine.gcc = 16
    monkeypatch.setattr(inside, "missing_build_tools", lambda: ["ninja"])
    assert inside.main(APEX) == 2
    said = capsys.readouterr().err
    assert "g++ is 16" in said
    assert "ninja must be installed" in said


def test_the_legacy_apex_needs_nvcc_even_without_its_extensions(machine, monkeypatch, capsys):
    monkeypatch.setattr(inside, "_pip", lambda *_: pytest.fail("pip was started"))
    monkeypatch.setattr(inside, "missing_build_tools", list)
    machine.nvcc = None
    assert inside.main(["legacy", "--repository", "https://r", "--commit", "c" * 40]) == 2
    assert "there is no nvcc" in capsys.readouterr().err


def test_make_apex_refuses_before_it_starts(machine, monkeypatch, tmp_path):
    from apexbench.errors import UserError

    monkeypatch.setattr(native.logs, "run", lambda *_, **__: pytest.fail("it was started"))
    image = {
        "base": "b/c:1",
        "digest": None,
        "runtime_base": None,
        "architectures": [],
        "contrib": [],
        "apex_commit": "c" * 40,
    }
    machine.tools("12.8")
    with pytest.raises(UserError, match=r"nvcc is 12\.8 but torch was built with CUDA 13\.0"):
        native.install(image, ["9.0"], tmp_path / "apex.log")
    with pytest.raises(UserError, match="no GPU is visible"):
        native.install(image, [], tmp_path / "apex.log")
