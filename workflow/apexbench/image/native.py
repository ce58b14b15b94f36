"""``make apex``: the pinned Apex compiled into this Python, proven as in the image."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.image import log as logs
from apexbench.image import preflight
from apexbench.image.build import GIB, say
from apexbench.image.recipe import Recipe
from apexbench.machine import host
from apexbench.machine.apex_source import LEGACY_FOLDER

NEEDED_GIB = 4
"""Sources, objects and the wheel of Apex in the temporary folder."""


def commands(recipe: Recipe, legacy: bool) -> list[tuple[str, list[str]]]:
    """What is run, in order, each with its name."""
    inside = [sys.executable, "-P", "-m", "apexbench.image.inside"]
    apex = [*inside, "apex", "--repository", recipe.apex_repository]
    apex += ["--commit", recipe.apex_commit, "--architectures", ";".join(recipe.architectures)]
    apex += ["--contrib", ",".join(recipe.contrib)]
    found = [("compiling Apex", apex)]
    if legacy:
        old = [*inside, "legacy", "--repository", recipe.apex_repository]
        old += ["--commit", recipe.legacy_commit, "--folder", str(LEGACY_FOLDER)]
        found.append(("installing the last Apex with apex.amp", old))
    return found


def install(
    image: Mapping[str, Any], capabilities: Sequence[str], log: Path, legacy: bool = True
) -> None:
    """Compile and prove; ``image`` is config.yaml's, ``capabilities`` those of the visible GPUs.

    Raises:
        UserError: what would fail, before minutes are spent; or what did, with the log's end.
    """
    recipe = Recipe.from_settings({**image, "apex": True, "legacy_kernels": False}, capabilities)
    problems = preflight.problems(True, recipe.architectures)
    place = tempfile.gettempdir()
    if room := preflight.disk_problem(host.free_disk_bytes(place), NEEDED_GIB * GIB, place):
        problems.append(room)
    if problems:
        raise UserError(" ".join(map(str, problems)))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(recipe.text() + "\n", encoding="utf-8")
    package = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": package, "PYTHONNOUSERSITE": "1"}
    for what, argv in commands(recipe, legacy):
        say(f"{what}; the log is {log}")
        logs.run(argv, log, what, environment, echo=True)
    say(f"Apex {recipe.apex_commit[:8]} is compiled and proven; `make report` measures it.")
