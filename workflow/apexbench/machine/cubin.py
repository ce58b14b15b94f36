"""For which GPUs a compiled module holds code, and whether one of them is this GPU."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from apexbench.machine.toolchain import ask_program

TIME_LIMIT_S = 20


def cuobjdump() -> str | None:
    """CUDA's cuobjdump: from PATH, a CUDA toolkit, or the copy inside the triton package."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    packages = Path(sysconfig.get_path("purelib"))
    candidates = [shutil.which("cuobjdump"), f"{home}/bin/cuobjdump"]
    candidates += [str(packages / "triton/backends/nvidia/bin/cuobjdump")]
    candidates += [str(path) for path in sorted(packages.glob("nvidia/cu*/bin/cuobjdump"))]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def architectures(module: Path) -> list[str] | None:
    """What ``module`` embeds: "sm_90" for machine code, "compute_90" for PTX, sorted.

    [] for a module without device code; None when cuobjdump is not there or fails.
    """
    tool = cuobjdump()
    if tool is None:
        return None
    status, output = ask_program(
        tool, "--list-elf", "--list-ptx", str(module), time_limit=TIME_LIMIT_S
    )
    if "does not contain device code" in output:
        return []
    return parse(output) if status == 0 else None


def parse(listing: str) -> list[str]:
    """The architectures in cuobjdump's listing, whose lines end in ``.sm_90.cubin`` or ``.ptx``."""
    found = set()
    for architecture, kind in re.findall(r"\.sm_(\d+[af]?)\.(cubin|ptx)\b", listing):
        found.add(f"sm_{architecture}" if kind == "cubin" else f"compute_{architecture}")
    return sorted(found)


def runs_on(embedded: Iterable[str], capability: str) -> bool:
    """Whether a GPU of compute capability ``capability`` ("9.0") can run one of ``embedded``.

    The rules of NVIDIA's CUDA programming guide: machine code runs within its major version on the
    same or a later minor one, PTX on any later GPU; an ``a`` suffix binds code to exactly that GPU,
    an ``f`` suffix to its family (the same major version).
    """
    major, minor = (int(part) for part in capability.split("."))
    for architecture in embedded:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
        if match is None:
            continue
        kind, suffix = match[1], match[4]
        theirs = (int(match[2]), int(match[3]))
        if suffix == "a":
            fits = theirs == (major, minor)
        elif kind == "compute" and suffix == "":
            fits = theirs <= (major, minor)
        else:
            fits = theirs[0] == major and theirs[1] <= minor
        if fits:
            return True
    return False
