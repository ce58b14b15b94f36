"""A machine with torch, nvcc and g++ that are scripts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from apexbench.image import inside, preflight, proof
from apexbench.machine import toolchain
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
