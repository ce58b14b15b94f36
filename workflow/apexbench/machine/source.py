"""Which apexbench this is: the commit of its sources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import apexbench


def source_version() -> str | None:
    """The git commit of this apexbench, with ``+changes`` where files differ; None without git.

    The Snakefile's process leaves it in APEXBENCH_SOURCE for containers, which have no git.
    """
    if known := os.environ.get("APEXBENCH_SOURCE"):
        return known
    root = Path(apexbench.__file__).parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", "workflow")
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None
