"""Compilers on this machine: what torch.compile would use, and CUDA's nvcc."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apexbench.machine.install import torch_build

TIME_LIMIT_S = 3


def ask_program(*command: str, time_limit: float = TIME_LIMIT_S) -> tuple[int | None, str]:
    """Exit status and output (both streams) of a program; (None, why) if it could not answer."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=time_limit,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {time_limit:g} s"
    except OSError as error:
        return None, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


@dataclass(frozen=True)
class Compiler:
    """A compiler that answers: ``identity`` is the first line of its ``--version``."""

    command: str
    path: str
    identity: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _compiler(command: str) -> Compiler | None:
    path = shutil.which(command)
    if path is None:
        return None
    status, output = ask_program(path, "--version")
    if status != 0 or not output:
        return None
    return Compiler(command=command, path=path, identity=output.splitlines()[0])


@functools.cache
def cxx_compiler() -> Compiler | None:
    """The C++ compiler torch.compile's CPU backend would use: ``$CXX``, else ``g++``.

    As in ``torch._inductor.config.cpp.cxx``: nothing else is tried, so clang++ alone does not
    count until CXX names it.
    """
    return _compiler(os.environ.get("CXX") or "g++")


@functools.cache
def c_compiler() -> Compiler | None:
    """The C compiler Triton builds its launchers with: ``$CC``, else gcc, else clang."""
    if os.environ.get("CC"):
        return _compiler(os.environ["CC"])
    return _compiler("gcc") or _compiler("clang")


def python_headers() -> Path | None:
    """The path of Python.h, which both backends of torch.compile include; None if missing."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header if header.is_file() else None


def needs_quoting(path: str) -> bool:
    """Whether a shell, or torch.compile's C++ backend, would take ``path`` apart."""
    return bool(path) and shlex.quote(path) != path


def compile_missing(device: str) -> tuple[str, str] | None:
    """What keeps torch.compile from running on ``device``: (reason, remedy), None if nothing."""
    if device == "cpu" and cxx_compiler() is None:
        if os.environ.get("CXX"):
            named = os.environ["CXX"]
            return "needs a C++ compiler", f"unset CXX  # it names {named}, which does not run"
        if shutil.which("clang++"):
            return "needs a C++ compiler", "export CXX=clang++"
        return "needs a C++ compiler", "sudo apt-get install g++"
    if device == "cuda" and c_compiler() is None:
        return "needs a C compiler", "sudo apt-get install gcc"
    if python_headers() is None:
        return "needs Python's headers (Python.h)", "sudo apt-get install python3-dev"
    return None


@dataclass(frozen=True)
class Nvcc:
    """CUDA's compiler: ``version`` as torch.version.cuda writes it ("13.0"), ``build`` in full."""

    path: str
    version: str
    build: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@functools.cache
def nvcc() -> Nvcc | None:
    """nvcc where torch's extension builder looks: ``$CUDA_HOME``, PATH, /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [f"{home}/bin/nvcc"] if home else []
    candidates += [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    for path in candidates:
        if not path or not os.access(path, os.X_OK):
            continue
        status, output = ask_program(path, "--version")
        release = re.search(r"release (\d+\.\d+)", output)
        build = re.search(r"V(\d[\d.]*)", output)
        if status == 0 and release:
            full = build.group(1) if build else release.group(1)
            return Nvcc(path=path, version=release.group(1), build=full)
    return None


def nvcc_mismatch() -> str | None:
    """One sentence when nvcc's version differs from torch's CUDA, which stops Apex's build."""
    compiler, build = nvcc(), torch_build()
    if compiler is None or build is None or build.cuda is None or compiler.version == build.cuda:
        return None
    return (
        f"nvcc is {compiler.version} but torch was built with CUDA {build.cuda}: "
        "Apex does not build until they are equal."
    )
