"""The proof that Apex was compiled, and for the architectures asked for.

pip reports success for an Apex without a single kernel, so every module is imported, after torch,
in a process of its own, and the machine code in it is listed.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apexbench.image import contrib as contribs
from apexbench.image.preflight import machine_code
from apexbench.machine import cubin, toolchain
from apexbench.machine.apex_source import CORE, EXTENSIONS
from apexbench.machine.import_probe import probe
from apexbench.machine.install import find_apex, torch_build

RECORD = "apex-build.json"
OWN_ARCHITECTURES = ("group_norm_v2_cuda",)
"""Modules whose architectures Apex's setup.py fixes itself."""


class NotProven(Exception):
    """One sentence: what is missing, and the remedy."""


def prove(
    architectures: Sequence[str],
    contrib: Sequence[str] = (),
    search_path: Sequence[str] | None = None,
) -> dict[str, list[str]]:
    """Module -> architectures in it, for every compiled module of the Apex that is installed.

    Raises:
        NotProven: a module that was asked for is missing, does not import, or has no code for one
            of ``architectures`` (entries of a TORCH_CUDA_ARCH_LIST).
    """
    install = find_apex(search_path)
    wanted = [*CORE, *contribs.modules(contrib)]
    fates = probe(["torch", *wanted], search_path)
    for name in ["torch", *wanted]:
        if name not in fates or not fates[name].ok:
            why = fates[name].error if name in fates else "not tried"
            flags = " ".join(f"{key}=1" for key in contribs.switches(contrib))
            raise NotProven(
                f"Apex was built without {name} ({why}): build it with {flags}, with nvcc of the "
                "CUDA version torch was built for, and read the log above."
            )
    found = {name: cubin.architectures(path) for name, path in sorted(install.extensions.items())}
    for name, embedded in found.items():
        if embedded is None:
            raise NotProven(
                f"{name}: cuobjdump cannot list its architectures: install CUDA's cuobjdump."
            )
        needed = name in wanted or EXTENSIONS.get(name) == "APEX_CUDA_EXT"
        if needed and name not in OWN_ARCHITECTURES:
            _check(name, embedded, architectures)
    return {name: embedded or [] for name, embedded in found.items()}


def _check(name: str, embedded: Sequence[str], architectures: Sequence[str]) -> None:
    missing = [entry for entry in architectures if machine_code(entry) not in embedded]
    if missing:
        raise NotProven(
            f"{name} holds code for {', '.join(embedded) or 'no GPU'}, but not for "
            f"{', '.join(missing)}: check TORCH_CUDA_ARCH_LIST and that the build was not reused."
        )


def describe(
    repository: str,
    commit: str,
    architectures: Sequence[str],
    contrib: Sequence[str],
    modules: dict[str, list[str]],
    seconds: float,
    jobs: dict[str, int],
) -> dict[str, Any]:
    """The record of a build. ``architectures`` holds what is embedded, by module."""
    build, nvcc, gxx = torch_build(), toolchain.nvcc(), toolchain.cxx_compiler()
    return {
        "repository": repository,
        "commit": commit,
        "target": list(architectures),
        "architectures": modules,
        "flags": contribs.switches(contrib),
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "torch": build.version if build else None,
        "cuda": build.cuda if build else None,
        "nvcc": nvcc.build if nvcc else None,
        "cxx": gxx.identity if gxx else None,
        "python": platform.python_version(),
    }


def write(record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write the record beside the installed package, where ``machine.install`` looks for it.

    The sizes of the modules are added: a module of another size is not the one that was proven.
    Raises:
        NotProven: no folder is given and there is no ``apex``.
    """
    if folder is None:
        spec = find_spec("apex")
        places = list(spec.submodule_search_locations or ()) if spec else []
        if not places:
            raise NotProven(f"apex is not importable in {sys.prefix} after its installation.")
        folder = Path(places[0]).parent
    modules = find_apex([str(folder)]).extensions
    record["bytes"] = {name: path.stat().st_size for name, path in sorted(modules.items())}
    path = folder / RECORD
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path
