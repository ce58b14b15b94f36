"""Debian's packages for the lab: those that are missing come, and go again with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


class LabError(Exception):
    """Why there is no Slurm here, in one sentence."""


def install(folder: Path, packages: Sequence[str]) -> None:
    """Install those of ``packages`` that are missing; ``folder``/installed lists what came."""
    missing = [name for name in packages if not _installed(name)]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise LabError(f"{', '.join(missing)} cannot be installed: there is no apt-get here.")
    options = ["-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
    apt("update", "-q")
    # What they bring along is removed again too, and nothing else.
    planned = apt("install", *options, "--simulate", *missing)
    (folder / "installed").write_text("\n".join(re.findall(r"^Inst (\S+)", planned, re.M)))
    apt("install", *options, *missing)


def apt(*arguments: str) -> str:
    """What apt-get says; LabError where it fails at more than an update."""
    done = subprocess.run(
        ["apt-get", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and arguments[0] != "update":
        raise LabError(f"apt-get {arguments[0]} fails: {done.stderr.strip()}")
    return done.stdout


def _installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    if shutil.which("dpkg-query") is None:
        return False
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "installed"
