"""What the Snakefile knows of the image: whether there is one, and what its rule depends on."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apexbench import config as configs
from apexbench.config import Config
from apexbench.image import record as records
from apexbench.image.recipe import Base, Recipe
from apexbench.machine.apex_source import CORE
from apexbench.machine.gpu import visible_gpus
from apexbench.machine.install import find_apex, torch_build
from apexbench.runtimes.decide import Decision, decide

RECORD = "results/image.json"
BILL = "results/image.cdx.json"


def decision(root: Path, overrides: Mapping[str, Any]) -> Decision:
    """Which runtime the run of that configuration uses on this machine.

    Asked before torch is: in an image it is the image's torch that counts.

    Raises:
        UserError: the configuration is wrong, or the engine it asks for does not work.
    """
    config = configs.load(root, overrides, bool(visible_gpus()))
    if config.cluster != "none":
        # The login node and every job's node must come to the same: nothing of either counts.
        return decide(config.runtime, False, config.image["sif"], bool, works, works)
    return decide(config.runtime, config.device == "cuda", config.image["sif"], compiled_apex)


def works(engine: str) -> None:
    """No problem: whether the nodes of a cluster have ``engine`` is seen in the jobs."""


def compiled_apex() -> bool:
    """Whether this Python has Apex's core modules beside a CUDA build of torch, by their files."""
    build, found = torch_build(), find_apex()
    there = found.kind == "nvidia" and set(CORE) <= found.extensions.keys()
    return there and build is not None and build.cuda is not None


@dataclasses.dataclass(frozen=True)
class ImagePlan:
    """The image of a run, or that it has none (``contained`` False)."""

    config: Config
    decision: Decision
    root: Path

    @property
    def contained(self) -> bool:
        """Whether measurements run in an image."""
        return self.decision.contained

    @property
    def record(self) -> list[str]:
        """The input that every measuring rule has."""
        return [RECORD] if self.contained else []

    @property
    def bill(self) -> list[str]:
        """The bill of materials beside the record; a .sif comes without one."""
        return [] if self.decision.name == "apptainer" else [BILL]

    @functools.cached_property
    def recipe(self) -> Recipe | None:
        """What is built; None for a .sif that is given.

        Raises:
            UserError: no base or no architecture is known.
        """
        if not self.contained or self.config.image["sif"] is not None:
            return None
        capabilities = [gpu.compute_capability or "" for gpu in visible_gpus()]
        return Recipe.from_settings(self.config.image, [one for one in capabilities if one])

    @property
    def sources(self) -> list[str]:
        """Files that the image depends on."""
        if self.recipe is None:
            return [self.config.image["sif"]] if self.config.image["sif"] else []
        folder = self.root / "docker"
        files = [self.recipe.dockerfile(self.root), folder / "requirements.lock"]
        if self.decision.name == "apptainer":
            files[0] = folder / "apptainer.def"
        here = Path.cwd()
        return [str(f.relative_to(here) if f.is_relative_to(here) else f) for f in files]

    def arguments(self) -> str:
        """Options of ``apexbench image build``, and the param by which Snakemake builds again.

        A digest that the first build saw and wrote to config.yaml is not a change of what to
        build, so it is left out as long as it is the one of the image that is recorded.
        """
        if self.recipe is None:
            return shlex.join(["--sif", self.config.image["sif"]])
        seen = self._recorded()
        bases = {
            key: dataclasses.replace(base, digest=None)
            for key, base in self.recipe.bases.items()
            if base.digest is not None and seen.get(key) == base
        }
        recipe = self.recipe.on(bases).text()
        return shlex.join(["--runtime", self.decision.name, "--recipe", recipe])

    def pins(self) -> str:
        """Further options: the digests of config.yaml, which are not in the param."""
        words = []
        for key, base in self.recipe.bases.items() if self.recipe else ():
            if base.digest is not None:
                words += ["--pin", f"{key}={base.digest}"]
        return shlex.join(words)

    def _recorded(self) -> dict[str, Base]:
        try:
            value = json.loads(Path(RECORD).read_text(encoding="utf-8"))["bases"]
            return {key: Base(base["name"], base["digest"]) for key, base in value.items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def check_recipe(self) -> None:
        """Raise UserError where it is not known what to build, or a .sif to use is not there."""
        if self.contained:
            self.arguments()
            if self.recipe is None:
                records.given_file(self.config.image["sif"])

    def check(self) -> None:
        """What was built before must still be here; UserError with the remedy if not."""
        if not self.contained or not Path(RECORD).exists():
            return
        from apexbench.image.cli import check_present

        record = records.read(Path(RECORD))
        if record["engine"] == self.decision.name:
            check_present(record)
