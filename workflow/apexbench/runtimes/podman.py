"""Podman 4 and newer, rootless or as root; the GPU through CDI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from apexbench.runtimes.docker import Docker
from apexbench.runtimes.runtime import Job


class Podman(Docker):
    """Docker's options, but for the user's ids and the GPU."""

    name = "podman"
    # Needs catatonit, which is not always installed; ``podman rm`` ends the container anyway.
    init = False

    def __init__(self, cdi_names: Callable[[], str] | None = None) -> None:
        """``cdi_names`` gives the text of the machine's CDI specifications; for tests."""
        self._cdi_names = cdi_names or cdi_specifications

    def user(self, job: Job) -> list[str]:
        """The caller's ids; rootless they must also be mapped, or files get a subordinate id."""
        ids = super().user(job)
        return ids if job.uid == 0 else ["--userns=keep-id", *ids]

    def gpu(self, job: Job) -> list[str]:
        """CDI devices by UUID where the specification has them, else all.

        Older ``nvidia-ctk`` writes indices only; CUDA_VISIBLE_DEVICES then makes the choice.
        ``--gpus`` is silently ignored by podman 4.
        """
        if not job.uses_gpu:
            return []
        known = self._cdi_names()
        if job.gpus and all(uuid in known for uuid in job.gpus):
            return [f"--device=nvidia.com/gpu={uuid}" for uuid in job.gpus]
        return ["--device=nvidia.com/gpu=all"]

    def removal(self, job: Job) -> list[str] | None:
        """Kills at once and removes; harmless when it is gone."""
        return [self.name, "rm", "--force", "--ignore", "--time=0", job.name]


def cdi_specifications() -> str:
    """The text of every CDI specification of this machine."""
    texts = []
    for folder in ("/etc/cdi", "/var/run/cdi"):
        for path in sorted(Path(folder).glob("*")):
            if path.suffix in (".yaml", ".yml", ".json"):
                texts.append(path.read_text(errors="replace"))
    return "\n".join(texts)
