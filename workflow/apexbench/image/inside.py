"""What runs where Apex is compiled: in the image's build, and natively for ``make apex``.

``python -m apexbench.image.inside check|apex|legacy|describe``. A failure is one sentence on
stderr that begins with ``apexbench:``, and exit status 2. Standard library only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apexbench.image import contrib as contribs
from apexbench.image import parallelism, preflight, proof
from apexbench.image.problem import Problem
from apexbench.machine import host, toolchain
from apexbench.machine.apex_source import LEGACY_FOLDER, missing_build_tools
from apexbench.machine.install import torch_build

PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input")
BUILD = ("--verbose", "--no-deps", "--no-build-isolation", "--no-cache-dir")
"""--no-build-isolation: compile against the torch that is here. --no-deps: bring no other one.
--no-cache-dir: pip keeps the wheel it built from a commit, also one without kernels."""


class Stop(Exception):
    """One sentence for a person."""


def requirement(repository: str, commit: str) -> str:
    """Apex as pip's requirement."""
    return f"apex @ git+{repository}@{commit}"


def check(target: str, architectures: Sequence[str]) -> int:
    """Print what is here as one JSON line, with the problems of building ``target`` on it."""
    build, nvcc = torch_build(), toolchain.nvcc()
    gxx = toolchain.cxx_compiler()
    found = {
        "python": platform.python_version(),
        "torch": build.version if build else None,
        "cuda": build.cuda if build else None,
        "nvcc": nvcc.version if nvcc else None,
        "cxx": gxx.identity if gxx else None,
        "problems": [str(p) for p in preflight.problems(target != "measuring", architectures)],
    }
    print(json.dumps(found), flush=True)
    return 0


def apex(repository: str, commit: str, architectures: Sequence[str], contrib: Sequence[str]) -> int:
    """Compile and install Apex, prove it, write ``apex-build.json``."""
    memory = host.memory_bytes()
    problems: list[Problem | None] = [
        *preflight.problems(True, architectures),
        preflight.gcc_problem(),
        parallelism.memory_problem(memory, os.environ),
    ]
    _stop(problems)
    jobs = parallelism.jobs(host.cores(), memory)
    for key, value in jobs.items():
        asked = os.environ.get(key) or ""
        jobs[key] = int(asked) if asked.isdecimal() and int(asked) > 0 else value
    flags = contribs.switches(contrib)
    environment = {
        **os.environ,
        **flags,
        **{key: str(value) for key, value in jobs.items()},
        "TORCH_CUDA_ARCH_LIST": ";".join(architectures),
    }
    began = time.monotonic()
    _pip([*BUILD, "--force-reinstall", requirement(repository, commit)], environment)
    seconds = time.monotonic() - began
    modules = proof.prove(architectures, contrib)
    record = proof.describe(repository, commit, architectures, contrib, modules, seconds, jobs)
    print(f"{proof.write(record)}: {json.dumps(record)}", flush=True)
    return 0


def legacy(repository: str, commit: str, folder: Path, compiled: Sequence[str] = ()) -> int:
    """Install the last Apex with ``apex.amp`` into ``folder``, and prove that it imports.

    Without ``compiled`` (architectures) it is Python-only; with, its extensions are built by that
    commit's own options, which are words on setup.py's command line.
    """
    options = list(BUILD)
    environment = dict(os.environ)
    # Its setup.py asks nvcc for its version even where nothing is compiled.
    _stop([preflight.torch_problem(True), preflight.nvcc_problem()])
    if compiled:
        _stop([*preflight.problems(True, compiled), preflight.gcc_problem()])
        environment["TORCH_CUDA_ARCH_LIST"] = ";".join(compiled)
        jobs = parallelism.jobs(host.cores(), host.memory_bytes())
        environment["MAX_JOBS"] = str(jobs["MAX_JOBS"] * jobs["APEX_PARALLEL_BUILD"])
        for word in ("--cpp_ext", "--cuda_ext"):
            options += ["--config-settings", f"--build-option={word}"]
    began = time.monotonic()
    _pip(
        [*options, "--upgrade", "--target", str(folder), requirement(repository, commit)],
        environment,
    )
    seconds = time.monotonic() - began
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch; from apex import amp; "
        "assert amp.__file__.startswith(sys.argv[1]), amp.__file__"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program, str(folder)], check=False)
    if done.returncode != 0:
        raise Stop(f"apex.amp of {commit} does not import from {folder}: read the log above.")
    search = [str(folder), *sys.path]
    try:
        modules = proof.prove(compiled, (), search) if compiled else {}
    except proof.NotProven as fault:
        raise Stop(str(fault)) from fault
    record = proof.describe(repository, commit, compiled, (), modules, seconds, {})
    record |= {"compiled": bool(compiled), "flags": {}}
    print(f"{proof.write(record, folder)}: {json.dumps(record)}", flush=True)
    return 0


def _stop(problems: Sequence[Problem | None]) -> None:
    found = [problem for problem in problems if problem is not None]
    if not missing_build_tools() and not found:
        return
    if tools := missing_build_tools():
        found.append(
            Problem(
                f"{' and '.join(tools)} must be installed, since Apex builds without isolation",
                f"{sys.executable} -m pip install {' '.join(tools)}",
            )
        )
    raise Stop(" ".join(map(str, found)))


def _pip(arguments: Sequence[str], environment: dict[str, str]) -> None:
    status = subprocess.run([*PIP, *arguments], env=environment, check=False).returncode
    importlib.invalidate_caches()
    if status != 0:
        raise Stop(
            "Apex did not build, and it is not tried again without its extensions: "
            "the compiler's own error stands above."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m apexbench.image.inside", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("check", "apex", "legacy"):
        command = commands.add_parser(name)
        command.add_argument("--architectures", default="")
        if name == "check":
            command.add_argument("--target", default="runtime")
            continue
        command.add_argument("--repository", required=True)
        command.add_argument("--commit", required=True)
        if name == "apex":
            command.add_argument("--contrib", default="")
        else:
            command.add_argument("--folder", type=Path, default=LEGACY_FOLDER)
    given = parser.parse_args(arguments)
    architectures = preflight.parse_architectures(given.architectures)
    try:
        if given.command == "check":
            return check(given.target, architectures)
        if given.command == "apex":
            names = preflight.parse_architectures(given.contrib)
            return apex(given.repository, given.commit, architectures, names)
        return legacy(given.repository, given.commit, given.folder, architectures)
    except (Stop, proof.NotProven) as fault:
        print(f"apexbench: {fault}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
