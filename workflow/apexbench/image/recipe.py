"""What is built: base, Apex, architectures and flags, and the key that an image is reused by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.image.problem import Problem

TARGETS = ("runtime", "measuring", "legacy")
FILES = {"runtime": "Dockerfile", "measuring": "Dockerfile", "legacy": "legacy-amp.Dockerfile"}
SHARED_FILES = ("requirements.lock",)


@dataclass(frozen=True)
class Base:
    """An image by name and, once it has been seen, by digest."""

    name: str
    digest: str | None = None

    @property
    def reference(self) -> str:
        """What an engine is asked for: the digest decides where it is known.

        Name with digest but without tag, because podman 4 takes no reference with both; with the
        registry, because podman has none to fall back on.
        """
        name = qualified(self.name)
        return f"{untagged(name)}@{self.digest}" if self.digest else name


@dataclass(frozen=True)
class Recipe:
    """One image. ``target``: ``runtime`` (with Apex), ``measuring`` (without), ``legacy``
    (apex.amp with its kernels). ``architectures`` are entries of a TORCH_CUDA_ARCH_LIST.
    """

    target: str
    base: Base
    runtime_base: Base | None
    apex_repository: str
    apex_commit: str
    legacy_commit: str
    architectures: tuple[str, ...]
    contrib: tuple[str, ...]

    @classmethod
    def from_settings(cls, image: Mapping[str, Any], capabilities: Sequence[str]) -> Recipe:
        """The recipe of config.yaml's ``image``; ``capabilities`` are those of the visible GPUs.

        Raises:
            UserError: no base, or no architecture to compile for.
        """
        target = (
            "legacy" if image["legacy_kernels"] else "runtime" if image["apex"] else "measuring"
        )
        key = "legacy_base" if target == "legacy" else "base"
        if not image.get(key):
            raise UserError(f"image.{key} is not set: name a PyTorch CUDA devel image.")
        # Only image.base and image.runtime_base are pinned: legacy_base is an option for few.
        base = Base(image[key], image["digest"] if key == "base" else None)
        runtime_base = None
        if target == "runtime" and image.get("runtime_base"):
            runtime_base = Base(image["runtime_base"], image["runtime_digest"])
        wanted = tuple(image["architectures"]) or tuple(sorted(set(capabilities)))
        if target == "measuring":
            wanted = ()
        elif not wanted:
            raise UserError(
                str(
                    Problem(
                        "no GPU is visible, so the architecture to compile Apex for is unknown",
                        "set image.architectures, such as ['9.0'], or image.apex: false",
                    )
                )
            )
        return cls(
            target=target,
            base=base,
            runtime_base=runtime_base,
            apex_repository=image.get("apex_repository", ""),
            apex_commit=image.get("apex_commit", ""),
            legacy_commit=image.get("legacy_commit", ""),
            architectures=wanted,
            contrib=tuple(image["contrib"]) if target == "runtime" else (),
        )

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """A recipe from :meth:`text`."""
        value = json.loads(text)
        for key in ("base", "runtime_base"):
            value[key] = Base(**value[key]) if value[key] else None
        for key in ("architectures", "contrib"):
            value[key] = tuple(value[key])
        return cls(**value)

    def text(self) -> str:
        """Canonical JSON: a Snakemake param, so that a change of it builds again."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def bases(self) -> dict[str, Base]:
        """The images it is built from, by config.yaml's key."""
        found = {"legacy_base" if self.target == "legacy" else "base": self.base}
        return found | ({"runtime_base": self.runtime_base} if self.runtime_base else {})

    def pinned(self, digests: Mapping[str, str | None]) -> Recipe:
        """With the digest of each base that has none yet."""
        return self.on(
            {
                key: replace(base, digest=base.digest or digests.get(key))
                for key, base in self.bases.items()
            }
        )

    def on(self, bases: Mapping[str, Base]) -> Recipe:
        """The same on other bases, by config.yaml's key."""
        base = bases.get("base") or bases.get("legacy_base") or self.base
        return replace(self, base=base, runtime_base=bases.get("runtime_base") or self.runtime_base)

    def dockerfile(self, root: Path) -> Path:
        """The Dockerfile that builds it."""
        return root / "docker" / FILES[self.target]

    def key(self, root: Path, identities: Mapping[str, str]) -> str:
        """64 hex digits: equal keys, same image.

        ``identities`` are the digests (or ids) of the bases. The lines of the Dockerfile and the
        locked requirements count too; the scripts that check and prove do not, since they change
        nothing that is in the image.
        """
        files = [self.dockerfile(root), *(root / "docker" / name for name in SHARED_FILES)]
        parts: dict[str, Any] = {
            "bases": dict(identities),
            "target": self.target,
            "files": {path.name: _instructions(path) for path in files},
        }
        if self.target != "measuring":
            parts["apex"] = [self.apex_repository, self.legacy_commit, list(self.architectures)]
        if self.target == "runtime":
            parts["flags"] = [self.apex_commit, list(self.contrib)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def build_arguments(self) -> dict[str, str]:
        """The Dockerfile's ARGs, in their order."""
        arguments = {"BASE_IMAGE": self.base.reference}
        if self.target == "measuring":
            return arguments
        if self.runtime_base:
            arguments["RUNTIME_IMAGE"] = self.runtime_base.reference
        arguments["APEX_REPOSITORY"] = self.apex_repository
        if self.target == "runtime":
            arguments["APEX_COMMIT"] = self.apex_commit
            arguments["APEX_CONTRIB"] = ",".join(self.contrib)
        arguments["LEGACY_COMMIT"] = self.legacy_commit
        arguments["TORCH_CUDA_ARCH_LIST"] = ";".join(self.architectures)
        return arguments

    def labels(self, key: str, found: Mapping[str, Any]) -> dict[str, str]:
        """OCI labels; ``found`` is what ``inside check`` said of the base."""
        what = "PyTorch for measuring" if self.target == "measuring" else "PyTorch and NVIDIA Apex"
        labels = {
            "org.opencontainers.image.title": "apexbench",
            "org.opencontainers.image.description": f"{what}: the dependencies of apexbench",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.base.name": qualified((self.runtime_base or self.base).name),
            "org.opencontainers.image.base.digest": (self.runtime_base or self.base).digest,
            "apexbench.key": key,
            "apexbench.target": self.target,
            "apexbench.torch": found.get("torch"),
            "apexbench.cuda": found.get("cuda"),
            "apexbench.cuda.architectures": ";".join(self.architectures),
            "apexbench.apex.source": self.apex_repository if self.target != "measuring" else None,
            "apexbench.apex.commit": self.apex_commit if self.target == "runtime" else None,
            "apexbench.apex.contrib": ",".join(self.contrib),
            "apexbench.apex.legacy": self.legacy_commit if self.target != "measuring" else None,
        }
        return {name: str(value) for name, value in labels.items() if value}


def qualified(name: str) -> str:
    """An image's name with its registry, which is Docker Hub where none is given."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def untagged(name: str) -> str:
    """``name`` without its tag; a port of the registry is none."""
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def _instructions(path: Path) -> str:
    """A file without comments and blank lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() and line.lstrip()[0] != "#")
