"""What was built is proven, and what the Dockerfile runs refuses before it compiles."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from apexbench.image import inside, native, proof
from apexbench.machine import install
from apexbench.machine.import_probe import Imported
from apexbench.machine.install import ApexInstall
from toolchain_stubs import GIB, machine

__all__ = ["machine"]


@pytest.fixture
def built(machine, monkeypatch, tmp_path_factory):
    """An installed Apex: each module's fate, and what is in it."""
    fates = {name: Imported(ok=True) for name in ("torch", "amp_C", "fused_layer_norm_cuda")}
    code = {"amp_C": ["sm_90"], "fused_layer_norm_cuda": ["sm_90"], "apex_C": []}
    folder = tmp_path_factory.mktemp("site")
    paths = {name: folder / f"{name}.so" for name in code}
    for path in paths.values():
        path.write_text(path.name)
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
    assert record["bytes"] == {name: len(f"{name}.so") for name in built.code}
    package = tmp_path / "apex"
    (package / "optimizers").mkdir(parents=True)
    (package / "__init__.py").touch()
    seen = install.find_apex([str(tmp_path)])
    assert (seen.commit, seen.build["architectures"]) == ("c" * 40, {"amp_C": ["sm_90"]})


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
