"""What a runtime is: a way to run ``python -m apexbench …`` on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """One command and all it may touch. Paths are absolute and the same inside and outside.

    ``gpus`` are the UUIDs of the GPUs it may use; empty hides every GPU, unless ``all_gpus``: the
    driver could not be asked which they are. ``reads`` are further paths, read-only. The command
    starts in ``folder``, by default the repository. With ``network`` a container has the host's,
    else none. ``environment`` is the caller's own: a runtime passes on what
    ``environment.passed_on`` lets through, a native run passes on nearly all of it.
    """

    command: tuple[str, ...]
    repository: Path
    results: Path
    scratch: Path
    name: str
    image: str | None = None
    gpus: tuple[str, ...] = ()
    all_gpus: bool = False
    reads: tuple[Path, ...] = ()
    folder: Path | None = None
    network: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int = field(default_factory=os.getuid)
    gid: int = field(default_factory=os.getgid)

    @property
    def uses_gpu(self) -> bool:
        """Whether any GPU must be reachable."""
        return bool(self.gpus) or self.all_gpus

    @property
    def mounts(self) -> list[tuple[Path, bool]]:
        """(path, writable), outer before inner: the results may lie inside the repository."""
        reads = [(path, False) for path in self.reads if not path.is_relative_to(self.repository)]
        return [(self.repository, False), *reads, (self.results, True), (self.scratch, True)]

    @property
    def start(self) -> Path:
        """The folder that the command starts in."""
        return self.folder or self.repository


class Runtime(Protocol):
    """How one engine runs a job. All methods are pure: they build, they start nothing."""

    name: str
    contained: bool
    """Whether the job runs in a container that outlives its client, so that ``removal`` is due."""

    def argv(self, job: Job) -> list[str]:
        """The host command that runs the job in the foreground."""
        ...

    def environment(self, job: Job) -> dict[str, str]:
        """The whole environment of that host command."""
        ...

    def removal(self, job: Job) -> list[str] | None:
        """The host command that ends the job's container at once; None if nothing can be left."""
        ...

    def inspection(self, image: str) -> list[str] | None:
        """The host command that exits 0 if ``image`` is here; None if it is a file."""
        ...


def container_name(run: str, job: str) -> str:
    """A name every engine takes: letters, digits, ``_.-``, 120 characters at most."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{run}-{job}").strip("-.")
    return f"apexbench-{plain}"[:120]


def mount_field(text: str) -> str:
    """One field of a ``--mount`` option, which engines read as a line of CSV."""
    if any(c in text for c in ',"\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
