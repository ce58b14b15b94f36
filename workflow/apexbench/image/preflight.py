"""What would make a build of Apex fail after minutes, found in seconds.

Each function answers one question with a ``Problem`` or None. They run on the base image before it
is built upon, again inside the build, and natively before ``make apex``; standard library only.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from apexbench.image.problem import Problem
from apexbench.machine import toolchain
from apexbench.machine.install import find_apex, torch_build

GIB = 1024**3
OLDEST_PYTHON = (3, 11)


def python_problem(version: tuple[int, ...] = tuple(sys.version_info[:2])) -> Problem | None:
    """apexbench needs Python 3.11 inside too."""
    if version >= OLDEST_PYTHON:
        return None
    return Problem(
        f"Python is {'.'.join(map(str, version))} there, and apexbench needs 3.11 or newer",
        "choose a base with a newer Python",
    )


def torch_problem(compiling: bool) -> Problem | None:
    """torch must be there, and of a CUDA build where Apex is compiled against it."""
    build = torch_build()
    if build is None:
        return Problem("torch is not installed there", "choose a base that brings PyTorch")
    if compiling and build.cuda is None:
        return Problem(
            f"torch {build.version} is a CPU build, and Apex's kernels need a CUDA build",
            "choose a CUDA base image, or natively install torch from a CUDA index",
        )
    return None


def nvcc_problem() -> Problem | None:
    """nvcc must be there, of exactly the CUDA version torch was built with: Apex compares both."""
    compiler, build = toolchain.nvcc(), torch_build()
    cuda = build.cuda if build and build.cuda else None
    if compiler is None:
        return Problem(
            "there is no nvcc, so Apex would be built without its kernels",
            "use a CUDA *devel* image as image.base, or natively install the CUDA toolkit"
            + (f" {cuda}" if cuda else ""),
        )
    if cuda and compiler.version != cuda:
        return Problem(
            f"nvcc is {compiler.version} but torch was built with CUDA {cuda}, which Apex refuses",
            f"use a base (or natively a CUDA toolkit) whose nvcc is {cuda}",
        )
    return None


def gcc_problem() -> Problem | None:
    """The host compiler must be there, and not newer than nvcc accepts (its host_config.h)."""
    compiler = toolchain.cxx_compiler()
    if compiler is None:
        return Problem("there is no g++, which nvcc needs", "install g++")
    newest, version = newest_gcc(), gcc_version(compiler.path)
    if newest is not None and version is not None and version > newest:
        return Problem(
            f"g++ is {version} and this nvcc accepts g++ up to {newest}",
            f"install g++-{newest} and set CXX=g++-{newest} CC=gcc-{newest}",
        )
    return None


def newest_gcc() -> int | None:
    """The newest major version of GCC that nvcc's own header accepts; None if it does not say."""
    compiler = toolchain.nvcc()
    if compiler is None:
        return None
    home = Path(os.environ.get("CUDA_HOME") or Path(compiler.path).resolve().parents[1])
    for header in (
        home / "include/crt/host_config.h",
        *home.glob("targets/*/include/crt/host_config.h"),
    ):
        try:
            said = re.search(r"gcc versions later than (\d+)", header.read_text(errors="replace"))
        except OSError:
            continue
        if said:
            return int(said.group(1))
    return None


def gcc_version(path: str) -> int | None:
    """The major version of a GCC; None for another compiler."""
    status, output = toolchain.ask_program(path, "-dumpfullversion", "-dumpversion")
    major = output.split(".")[0]
    return int(major) if status == 0 and major.isdigit() else None


def parse_architectures(text: str) -> list[str]:
    """The entries of a TORCH_CUDA_ARCH_LIST."""
    return [entry for entry in re.split(r"[;,\s]+", text.strip()) if entry]


def machine_code(entry: str) -> str | None:
    """The machine code that an entry asks for: "9.0" sm_90, "9.0a" sm_90a; None for nonsense."""
    version = re.fullmatch(r"(\d+)\.(\d+)([af]?)(?:\+PTX)?", entry)
    return "sm_" + "".join(version.groups()) if version else None


def architecture_problem(wanted: Sequence[str]) -> Problem | None:
    """There must be an architecture to compile for, and nvcc must know each."""
    if not wanted:
        return Problem(
            "there is no architecture to compile for: no GPU is visible, and without a list Apex "
            "compiles for every GPU",
            'set image.architectures to the GPU\'s compute capability, such as ["9.0"]',
        )
    for entry in wanted:
        if machine_code(entry) is None:
            return Problem(
                f"TORCH_CUDA_ARCH_LIST holds {entry!r}, which is no compute capability",
                'write image.architectures as in ["9.0"]',
            )
    compiler = toolchain.nvcc()
    if compiler is None:
        return None
    status, output = toolchain.ask_program(compiler.path, "--list-gpu-code", time_limit=20)
    known = re.findall(r"\bsm_\d+[af]?\b", output) if status == 0 else []
    for entry in wanted:
        code = str(machine_code(entry))
        # The list leaves out the variants "a" and "f" of what it knows.
        if known and code not in known and code.rstrip("af") not in known:
            return Problem(
                f"nvcc {compiler.version} does not know {code} (it knows {', '.join(known)})",
                "correct image.architectures, or use a base with a newer CUDA",
            )
    return None


def apex_problem(search_path: Sequence[str] | None = None) -> Problem | None:
    """An ``apex`` that is in the way: PyPI's other project, or files of an older build."""
    found = find_apex(search_path)
    if found.kind == "foreign":
        label = " ".join(filter(None, ("apex", found.version)))
        return Problem(
            f"the installed {label} is PyPI's Pyramid toolkit, which shadows NVIDIA's",
            "python -m pip uninstall -y apex",
        )
    if found.stale:
        files = " ".join(shlex.quote(str(found.extensions[name])) for name in found.stale)
        return Problem(
            f"{found.stale[0]} is a stale file of another build, which would be imported instead",
            f"rm {files}",
        )
    if found.kind == "leftovers":
        files = " ".join(shlex.quote(str(path)) for path in found.leftovers)
        return Problem(
            "a half-uninstalled Apex is in the way",
            f"python -m pip uninstall -y apex; rm -rf {files}".rstrip(),
        )
    return None


def disk_problem(free_bytes: int | None, needed_bytes: int, place: Path | str) -> Problem | None:
    """``place`` must have room; an unknown free space is no problem."""
    if free_bytes is None or free_bytes >= needed_bytes:
        return None
    return Problem(
        f"{place} has {free_bytes / GIB:.1f} GiB free and the build needs about "
        f"{needed_bytes / GIB:.0f} GiB",
        "free some, or move the engine's storage to a larger disk",
    )


def problems(compiling: bool, architectures: Sequence[str]) -> list[Problem]:
    """All that is wrong with this environment for measuring, or for compiling Apex in it."""
    questions: list[Callable[[], Problem | None]] = [
        python_problem,
        lambda: torch_problem(compiling),
    ]
    if compiling:
        questions += [nvcc_problem, lambda: architecture_problem(architectures), apex_problem]
    return [found for found in (question() for question in questions) if found is not None]
