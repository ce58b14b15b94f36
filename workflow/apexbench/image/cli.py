"""``apexbench image …``: build, pin, show and convert the image; compile Apex without one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbench.disk import a_file
from apexbench.errors import UserError

if TYPE_CHECKING:
    from apexbench.image.engine import Builder
    from apexbench.image.recipe import Recipe

ROOT = Path(__file__).resolve().parents[3]
app = typer.Typer(no_args_is_help=True, help="The image with Apex compiled from source.")

Record = Annotated[Path, typer.Option("--out", callback=a_file, help="The image's record.")]
Log = Annotated[Path, typer.Option(callback=a_file, help="The build's log.")]
Runtime = Annotated[str, typer.Option(help="auto, docker, podman or apptainer.")]
OUT, LOG = Path("results/image.json"), Path("results/logs/image.log")


@app.command()
def build(
    out: Record = OUT,
    log: Log = LOG,
    runtime: Runtime = "auto",
    recipe: Annotated[
        str | None, typer.Option(help="What to build, as JSON; left out: config.yaml's image.")
    ] = None,
    pins: Annotated[
        list[str] | None, typer.Option("--pin", help="A base's digest, as KEY=sha256:….")
    ] = None,
    sif: Annotated[str | None, typer.Option(help="A prebuilt .sif to record instead.")] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the engine's command and build nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Do not show the build's output.")] = False,
) -> None:
    """Build the image of config.yaml, unless it is here, and write what it is."""
    from apexbench.image import build as module
    from apexbench.image import sif as sifs
    from apexbench.image.recipe import Recipe

    if recipe is None:
        image, capabilities = _settings()
        sif = sif or image["sif"]
    if sif is not None:
        sifs.given(sif, out)
        return
    wanted = Recipe.parse(recipe) if recipe else Recipe.from_settings(image, capabilities)
    wanted = wanted.pinned(dict(entry.split("=", 1) for entry in pins or []))
    builder = _builder(runtime)
    if show:
        print(shlex.join(_command(wanted, builder)))
    elif builder is None:
        sifs.build(wanted, ROOT, out, log, echo=not quiet)
    else:
        module.build(wanted, builder, ROOT, out, log, ROOT / "config.yaml", echo=not quiet)


@app.command()
def pin(
    runtime: Runtime = "auto",
    log: Log = LOG,
    update: Annotated[
        bool, typer.Option(help="Ask the registry again, also for a base that is pinned.")
    ] = False,
) -> None:
    """Write the digests of the bases into config.yaml, pulling those that are not here."""
    from dataclasses import replace

    from apexbench.image import pin as module
    from apexbench.image.recipe import Recipe

    image, capabilities = _settings()
    builder = _builder(runtime)
    if builder is None:
        raise UserError("apptainer cannot tell an image's digest: pin with docker or podman.")
    recipe = Recipe.from_settings({**image, "legacy_kernels": False}, capabilities or ["9.0"])
    seen = {}
    for key, base in recipe.bases.items():
        unpinned = replace(base, digest=None)
        wanted = unpinned if update else base
        if update:
            builder.pull(unpinned, log)
        digest = builder.digest(base, builder.obtain(wanted, log))
        seen[key] = replace(base, digest=digest)
        if digest is None:
            raise UserError(
                f"image.{key} ({base.name}) was made here and has no registry's digest to pin."
            )
    changed = module.write(ROOT / "config.yaml", seen)
    print("\n".join(changed) if changed else "config.yaml is pinned to what is here already.")


@app.command()
def show(out: Record = OUT) -> None:
    """Print the image's record; exit 2 with the remedy if the image is gone."""
    from apexbench.image import record as module

    record = module.read(out)
    check_present(record)
    print(json.dumps(record, indent=1, sort_keys=True))


@app.command()
def sif(
    to: Annotated[Path, typer.Argument(callback=a_file, help="The .sif to write.")],
    out: Record = OUT,
    log: Log = LOG,
) -> None:
    """Make a .sif of the image that was built, for machines that have apptainer alone."""
    from apexbench.image import record as module
    from apexbench.image import sif as sifs

    print(sifs.convert(module.read(out), to, log))


@app.command()
def native(
    log: Log = Path("results/logs/apex.log"),
    legacy: Annotated[bool, typer.Option(help="Also the last Apex with apex.amp.")] = True,
) -> None:
    """Compile the pinned Apex into this Python, with the image's flags and proof."""
    from apexbench.image import native as module

    image, capabilities = _settings()
    module.install(image, capabilities, log, legacy)


def check_present(record: dict[str, Any]) -> None:
    """Raise UserError, with the remedy, if the engine has the image no more."""
    from apexbench.image.engine import Builder

    if record["engine"] == "apptainer":
        return
    if Builder(record["engine"]).inspect(record["id"]) is None:
        raise UserError(
            f"the image {record['reference']} is not in {record['engine']} any more (pruned?): "
            "run `apexbench image build`, which builds it again."
        )


def _settings() -> tuple[dict[str, Any], list[str]]:
    """config.yaml's image, and the compute capabilities of the visible GPUs."""
    from apexbench import config
    from apexbench.machine.gpu import visible_gpus

    gpus = visible_gpus()
    image = dict(config.load(ROOT, {}, bool(gpus)).image)
    return image, [gpu.compute_capability for gpu in gpus if gpu.compute_capability]


def _builder(runtime: str) -> Builder | None:
    """The engine that builds; None is apptainer."""
    from apexbench.image.engine import Builder
    from apexbench.runtimes.choose import engine_problem

    names = ("docker", "podman", "apptainer") if runtime == "auto" else (runtime,)
    lacking = []
    for name in names:
        if name not in ("docker", "podman", "apptainer"):
            raise UserError(f"runtime: {name} builds no image: choose docker, podman or apptainer.")
        found = engine_problem(name)
        if found is None:
            return None if name == "apptainer" else Builder(name)
        lacking.append(f"{name}: {found[0]} (remedy: {found[1]})")
    raise UserError(f"no engine can build the image: {'; '.join(lacking)}.")


def _command(recipe: Recipe, builder: Builder | None) -> list[str]:
    from apexbench.image import sif as sifs

    if builder is None:
        return sifs.build_argv(recipe, ROOT, Path("apexbench.sif"))
    labels = recipe.labels("", {})
    return builder.build_argv(recipe, ROOT, "apexbench", labels, {})
