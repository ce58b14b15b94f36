"""The host's own Python: the embedded default, no container."""

from __future__ import annotations

import sys

from apexbench.runtimes.environment import caches, devices, python, writable_folder
from apexbench.runtimes.runtime import Job


class Native:
    """Runs in this interpreter's environment, as the caller, with the caller's variables."""

    name = "native"
    contained = False

    def argv(self, job: Job) -> list[str]:
        """This Python; ``-P`` keeps the working folder off its module path."""
        return [sys.executable, "-P", "-m", "apexbench", *job.command]

    def environment(self, job: Job) -> dict[str, str]:
        """The caller's, less what would change which modules Python finds."""
        env = {key: value for key, value in job.environment.items() if not key.startswith("PYTHON")}
        base = job.scratch / self.name
        for key, folder in (("HOME", "home"), ("TMPDIR", "tmp")):
            if not writable_folder(env.get(key)):
                env[key] = str(base / folder)
        return {
            **env,
            **caches(job, self.name),
            **devices(job),
            **python(job),
            "APEXBENCH_RUNTIME": self.name,
        }

    def removal(self, job: Job) -> list[str] | None:
        """Nothing outlives the process group."""
        return None

    def inspection(self, image: str) -> list[str] | None:
        """No image."""
        return None
