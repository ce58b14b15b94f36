"""docker and podman as builders: what they are asked, and what their answers mean."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.image import log as logs
from apexbench.image.recipe import Base, Recipe, qualified, untagged
from apexbench.runtimes.runtime import mount_field

TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Builder:
    """One OCI engine, ``docker`` or ``podman``."""

    name: str

    def environment(self) -> dict[str, str]:
        """The caller's; BuildKit brings docker the cache mounts."""
        return {**os.environ, "DOCKER_BUILDKIT": "1"}

    def build_argv(
        self,
        recipe: Recipe,
        root: Path,
        tag: str,
        labels: Mapping[str, str],
        jobs: Mapping[str, str],
    ) -> list[str]:
        """The command that builds ``recipe`` from the repository at ``root``."""
        argv = [self.name, "build", "--file", str(recipe.dockerfile(root))]
        argv += ["--progress=plain"] if self.name == "docker" else []
        argv += ["--target", recipe.target, "--tag", tag]
        for name, value in {**recipe.build_arguments(), **jobs}.items():
            argv += ["--build-arg", f"{name}={value}"]
        for name, value in labels.items():
            argv += ["--label", f"{name}={value}"]
        return [*argv, str(root)]

    def run_argv(self, image: str, words: Sequence[str], package: Path | None = None) -> list[str]:
        """The command that runs ``python3 <words>`` in ``image``, without network or rights.

        ``package`` is a folder that Python finds modules in, mounted read-only.
        """
        argv = [self.name, "run", "--rm", "--network=none", "--read-only", "--cap-drop=all"]
        argv += ["--security-opt=no-new-privileges", "--tmpfs=/tmp", "--entrypoint=python3"]
        argv += ["--env=PYTHONDONTWRITEBYTECODE=1", "--env=PYTHONNOUSERSITE=1"]
        if package is not None:
            source = mount_field(f"src={package}")
            argv += [f"--mount=type=bind,{source},dst=/package,readonly"]
            argv += ["--env=PYTHONPATH=/package"]
        return [*argv, image, "-P", *words]

    def python(
        self, image: str, words: Sequence[str], package: Path | None = None, what: str = ""
    ) -> str:
        """What ``python3 <words>`` prints in ``image``.

        Raises:
            UserError: it failed.
        """
        done = self._ask(self.run_argv(image, words, package))
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            if "unsupported" in lines[-1].lower() or "unknown option" in lines[0].lower():
                lines = [f"its Python is older than 3.11 ({lines[0]})"]
            raise UserError(
                f"{what or image} cannot be asked what it holds: "
                f"{logs.explain(lines)} ({lines[-1]})"
            )
        return done.stdout

    def inspect(self, reference: str) -> dict[str, Any] | None:
        """What the engine knows of an image; None when it has none of that name.

        Raises:
            UserError: the engine itself does not answer.
        """
        done = self._ask([self.name, "image", "inspect", reference])
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)[0]
            found["Id"] = "sha256:" + found["Id"].removeprefix("sha256:")
            return found
        said = done.stderr or done.stdout
        if any(word in said.lower() for word in ("no such", "not known", "not found")):
            return None
        from apexbench.runtimes.choose import image_problem

        raise image_problem(reference, self.name, said)

    def obtain(self, base: Base, log: Path) -> dict[str, Any]:
        """The base's description, pulled if it is not here.

        Raises:
            UserError: it cannot be pulled.
        """
        found = self.inspect(base.reference)
        if found is None:
            self.pull(base, log)
            found = self.inspect(base.reference)
        if found is None:
            raise UserError(f"{base.reference} was pulled but {self.name} does not show it.")
        return found

    def pull(self, base: Base, log: Path) -> None:
        """Ask the registry for ``base``; UserError says why it is not to be had."""
        if qualified(base.name).startswith("localhost/"):
            raise UserError(
                f"the base image {base.reference} is not in {self.name}, and localhost/ is no "
                "registry: build or load it, or correct image.base."
            )
        argv = [self.name, "pull", base.reference]
        logs.run(argv, log, f"pulling {base.reference}", self.environment(), echo=True)

    def digest(self, base: Base, found: Mapping[str, Any]) -> str | None:
        """The registry's digest of a base that is here; None for one that no registry knows."""
        wanted = untagged(qualified(base.name))
        for entry in found.get("RepoDigests") or []:
            name, _, digest = entry.partition("@")
            if qualified(name) == wanted and digest.startswith("sha256:"):
                return str(digest)
        return None

    def storage(self) -> Path | None:
        """Where the engine keeps images, if that is a folder of this machine."""
        field = "{{.DockerRootDir}}" if self.name == "docker" else "{{.Store.GraphRoot}}"
        done = self._ask([self.name, "info", "--format", field])
        place = Path(done.stdout.strip() or "/nowhere")
        return place if done.returncode == 0 and place.is_dir() else None

    def _ask(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                list(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT_S,
                check=False,
                env=self.environment(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(
                f"{self.name} does not answer ({error}): check `{argv[0]} info`."
            ) from error
