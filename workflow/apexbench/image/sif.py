"""Apptainer's images: a file that is given, or one built from docker/apptainer.def."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.image import log as logs
from apexbench.image import preflight, record
from apexbench.image.build import GIB, NEEDED_GIB, say
from apexbench.image.recipe import Recipe
from apexbench.machine import host


def given(path: str, out: Path) -> dict[str, Any]:
    """Record the .sif that config.yaml names.

    Raises:
        UserError: it is not there.
    """
    made = describe(record.given_file(path), "given", None)
    record.write(out, made)
    return made


def describe(file: Path, target: str, key: str | None) -> dict[str, Any]:
    """The content of image.json for a .sif."""
    return {
        "engine": "apptainer",
        "id": record.file_id(file),
        "reference": str(file),
        "stamp": record.stamp(file),
        "target": target,
        "key": key,
        "size_bytes": file.stat().st_size,
    }


def build_argv(recipe: Recipe, root: Path, sif: Path) -> list[str]:
    """The command that builds ``recipe`` into ``sif``; run in the repository at ``root``."""
    argv = ["apptainer", "build", "--force"]
    arguments = {"APEX_CONTRIB": "", **recipe.build_arguments()}
    arguments.setdefault("RUNTIME_IMAGE", arguments["BASE_IMAGE"])
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    return [*argv, str(sif), str(root / "docker" / "apptainer.def")]


def build(recipe: Recipe, root: Path, out: Path, log: Path, echo: bool = False) -> dict[str, Any]:
    """Build a .sif unless the one with this key is here; write ``out``.

    Raises:
        UserError: apptainer fails, or the recipe is one that its definition does not cover.
    """
    if recipe.target != "runtime":
        raise UserError(
            "runtime: apptainer builds the image with Apex only: build the other with docker or "
            "podman, `apexbench image sif` makes a .sif of it, and image.sif names that."
        )
    identities = {name: base.reference for name, base in recipe.bases.items()}
    key = recipe.key(root, identities)
    sif = out.absolute().parent / ".cache" / "image" / f"{key[:16]}.sif"
    if not sif.is_file():
        sif.parent.mkdir(parents=True, exist_ok=True)
        needed = NEEDED_GIB[recipe.target] * GIB
        if problem := preflight.disk_problem(host.free_disk_bytes(sif), needed, sif.parent):
            raise UserError(str(problem))
        say(f"image: building {sif} with apptainer; its log is {log}")
        log.write_text(recipe.text() + "\n", encoding="utf-8")
        partial = sif.with_suffix(".partial.sif")
        # %files of a definition are relative to the working folder.
        argv = build_argv(recipe, root, partial)
        # Its layers are gigabytes, and a cluster's home folders are small.
        kept = {"APPTAINER_CACHEDIR": str(sif.parent / "apptainer")}
        logs.run(
            argv,
            log.absolute(),
            "building the image",
            environment={**kept, **os.environ},
            echo=echo,
            folder=root,
        )
        os.replace(partial, sif)
    made = describe(sif, recipe.target, key)
    record.write(out, made)
    return made


def convert(image: Mapping[str, Any], sif: Path, log: Path) -> Path:
    """Make a .sif of the image that image.json describes, for machines with apptainer alone."""
    engine, archive = image["engine"], sif.with_suffix(".tar")
    if engine == "apptainer":
        raise UserError(f"{image['reference']} is a .sif already.")
    sif.parent.mkdir(parents=True, exist_ok=True)
    save = [engine, "save", "--output", str(archive)]
    save += ["--format", "docker-archive"] if engine == "podman" else []
    try:
        logs.run([*save, image["reference"]], log, f"saving {image['reference']}")
        source = f"docker-archive:{archive}"
        logs.run(["apptainer", "build", "--force", str(sif), source], log, "converting the image")
    finally:
        archive.unlink(missing_ok=True)
    return sif
