"""Builds the image, or finds it built, and writes what it is to ``results/image.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apexbench import broken_pipe
from apexbench.errors import UserError
from apexbench.image import log as logs
from apexbench.image import pin, preflight, record, sbom
from apexbench.image.engine import Builder
from apexbench.image.recipe import Recipe
from apexbench.machine import host
from apexbench.machine.apex_source import LEGACY_FOLDER

GIB = 1024**3
NEEDED_GIB = {"runtime": 40, "legacy": 40, "measuring": 4}
"""Disk for a build: a CUDA devel image with torch is about 20 GiB unpacked, twice with layers; the
stage without Apex adds the Python dependencies to a base. What is here already counts less."""

PRESENT_GIB = {"runtime": 12, "legacy": 12, "measuring": 2}
REPOSITORY = "localhost/apexbench"
PACKAGE = Path(__file__).resolve().parents[2]

# Runs in the image that was built: the records that the build left, without importing Apex.
FACTS = """
import importlib.util, json, pathlib, platform, sys
def read(folder):
    try:
        return json.loads((folder / "apex-build.json").read_text())
    except OSError:
        return None
spec = importlib.util.find_spec("apex")
places = list(spec.submodule_search_locations or ()) if spec else []
print(json.dumps({"python": platform.python_version(), "prefix": sys.prefix,
                  "apex": read(pathlib.Path(places[0]).parent) if places else None,
                  "legacy": read(pathlib.Path(sys.prefix) / LEGACY)}))
"""


def build(
    recipe: Recipe,
    builder: Builder,
    root: Path,
    out: Path,
    log: Path,
    config: Path | None = None,
    echo: bool = False,
) -> dict[str, Any]:
    """Build ``recipe`` unless an image with its key is here; write ``out`` and the bill beside it.

    The digests of bases that have none are written to ``config`` (None: nowhere).

    Raises:
        UserError: anything that keeps the image from being built, found as early as possible.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    unpinned = [key for key, base in recipe.bases.items() if not base.digest]
    seen = {key: base.digest or "" for key, base in recipe.bases.items()}
    image = None if unpinned else _built(recipe, builder, root, seen)
    if image is None:
        log.write_text(f"{recipe.text()}\n", encoding="utf-8")
        _check_disk(recipe, builder)
        found = {key: builder.obtain(base, log) for key, base in recipe.bases.items()}
        digests = {key: builder.digest(base, found[key]) for key, base in recipe.bases.items()}
        recipe = recipe.pinned(digests)
        seen = {key: base.digest or found[key]["Id"] for key, base in recipe.bases.items()}
        image = _built(recipe, builder, root, seen) or _build(
            recipe, builder, root, seen, found, log, echo
        )
    key = recipe.key(root, seen)
    made = describe(recipe, builder, image, key, seen)
    bill = json.loads(builder.python(image["Id"], ["-c", sbom.PROGRAM]))
    record.write(out.with_name("image.cdx.json"), sbom.document(bill, made))
    record.write(out, made)
    if config is not None:
        for line in pin.write(config, {name: recipe.bases[name] for name in unpinned}):
            say(f"{config.name}: {line}, as seen at this build.")
    return made


def tag(key: str) -> str:
    """The name under which an image is found again."""
    return f"{REPOSITORY}:{key[:16]}"


def _built(
    recipe: Recipe, builder: Builder, root: Path, identities: Mapping[str, str]
) -> dict[str, Any] | None:
    """The image of this recipe if it is here."""
    key = recipe.key(root, identities)
    image = builder.inspect(tag(key))
    if image is None or labels_of(image).get("apexbench.key") != key:
        return None
    say(f"image: {tag(key)} is here already.")
    return image


def _build(
    recipe: Recipe,
    builder: Builder,
    root: Path,
    identities: Mapping[str, str],
    found: Mapping[str, Mapping[str, Any]],
    log: Path,
    echo: bool,
) -> dict[str, Any]:
    key = recipe.key(root, identities)
    base = ask_base(recipe, builder, found)
    say(f"image: building {tag(key)} with {builder.name}; its log is {log}")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"base: {json.dumps(base)}\n")
    labels = recipe.labels(key, base)
    argv = builder.build_argv(recipe, root, tag(key), labels, jobs(recipe))
    logs.run(argv, log, "building the image", builder.environment(), echo)
    image = builder.inspect(tag(key))
    if image is None:
        raise UserError(f"{builder.name} built {tag(key)} but does not show it: read {log}.")
    return image


def jobs(recipe: Recipe) -> dict[str, str]:
    """The user's own numbers of compilers; without them the build computes its own."""
    names = ("MAX_JOBS", "APEX_PARALLEL_BUILD") if recipe.target != "measuring" else ()
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def labels_of(image: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an image that an engine described."""
    return dict(image.get("Config", {}).get("Labels") or {})


def say(sentence: str) -> None:
    """One line for the person at the terminal."""
    broken_pipe.say(f"apexbench: {sentence}")


def _check_disk(recipe: Recipe, builder: Builder) -> None:
    place = builder.storage()
    if place is None:
        return
    here = all(builder.inspect(base.reference) for base in recipe.bases.values())
    needed = (PRESENT_GIB if here else NEEDED_GIB)[recipe.target] * GIB
    if problem := preflight.disk_problem(host.free_disk_bytes(place), needed, place):
        raise UserError(str(problem))


def ask_base(
    recipe: Recipe, builder: Builder, found: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What the bases hold, asked inside them.

    Raises:
        UserError: the image cannot be built upon them; one sentence for each reason.
    """
    words = ["-m", "apexbench.image.inside", "check", "--target", recipe.target]
    words += ["--architectures", ";".join(recipe.architectures)]
    key, base = next(iter(recipe.bases.items()))
    said = builder.python(found[key]["Id"], words, PACKAGE, f"image.{key} ({base.name})")
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    problems = [f"image.{key} ({base.name}): {text}" for text in answer.pop("problems")]
    if not problems and recipe.runtime_base is not None:
        other = _torch(builder, str(found["runtime_base"]["Id"]), recipe)
        if other != answer["torch"]:
            problems.append(
                f"image.runtime_base ({recipe.runtime_base.name}) has torch {other} and image.base "
                f"has {answer['torch']}: choose two tags of the same release."
            )
    if problems:
        raise UserError(" ".join(problems))
    return answer


def _torch(builder: Builder, image: str, recipe: Recipe) -> str | None:
    words = ["-m", "apexbench.image.inside", "check", "--target", "measuring"]
    name = recipe.runtime_base.name if recipe.runtime_base else image
    said = builder.python(image, words, PACKAGE, f"image.runtime_base ({name})")
    torch = json.loads(said.splitlines()[-1])["torch"]
    return None if torch is None else str(torch)


def describe(
    recipe: Recipe,
    builder: Builder,
    image: Mapping[str, Any],
    key: str,
    identities: Mapping[str, str],
) -> dict[str, Any]:
    """The content of image.json."""
    program = FACTS.replace("LEGACY", repr(LEGACY_FOLDER.name))
    facts = json.loads(builder.python(image["Id"], ["-c", program]))
    labels = labels_of(image)
    if recipe.target == "runtime" and not facts["apex"]:
        raise UserError(
            f"{tag(key)} holds no Apex: remove it with `{builder.name} rmi {tag(key)}`."
        )
    return {
        "engine": builder.name,
        "id": image["Id"],
        "reference": tag(key),
        "key": key,
        "target": recipe.target,
        "bases": {
            name: {"name": base.name, "digest": base.digest, "identity": identities[name]}
            for name, base in recipe.bases.items()
        },
        "labels": {name: value for name, value in labels.items() if not name.startswith("io.")},
        "created": image.get("Created"),
        "torch": labels.get("apexbench.torch"),
        "cuda": labels.get("apexbench.cuda"),
        **facts,
    }
