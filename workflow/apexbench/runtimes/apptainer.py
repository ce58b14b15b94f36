"""Apptainer 1.0 and newer, the engine of clusters; the image is a .sif file."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.runtimes.environment import inside
from apexbench.runtimes.runtime import Job, mount_field


class Apptainer:
    """A contained, clean environment as the caller; the kernel ends it with its process group.

    ``extra`` are further options of ``apptainer exec``, such as ``--unsquash`` where there is no
    usable /dev/fuse.
    """

    name = "apptainer"
    contained = False

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self.extra = tuple(extra)

    def argv(self, job: Job) -> list[str]:
        """``apptainer exec``; HOME is set inside, where Apptainer lets nobody set it by option."""
        argv = [self.name, "exec", "--containall", "--cleanenv", "--no-home"]
        # "none" is the one network every user may ask for; ranks of several nodes need the host's.
        argv += [] if job.network else ["--net", "--network=none"]
        argv += ["--no-privs"] if job.uid == 0 else []
        argv += ["--nv"] if job.uses_gpu else []
        for path, writable in job.mounts:
            place = [mount_field(f"src={path}"), mount_field(f"dst={path}")]
            mount = ",".join(["type=bind", *place] + ([] if writable else ["ro"]))
            argv.append(f"--mount={mount}")
        argv += [f"--pwd={job.start}", *self.extra, job.image or ""]
        home = inside(job, self.name)["HOME"]
        return [*argv, "env", f"HOME={home}", "python3", "-P", "-m", "apexbench", *job.command]

    def environment(self, job: Job) -> dict[str, str]:
        """The caller's, with the job's own behind ``APPTAINERENV_``.

        ``--env`` would cut values at commas, such as a list of GPUs.
        """
        host = {
            key: value
            for key, value in job.environment.items()
            if not key.startswith(("APPTAINERENV_", "SINGULARITYENV_"))
        }
        job_env = inside(job, self.name)
        del job_env["HOME"]
        return host | {f"APPTAINERENV_{key}": value for key, value in job_env.items()}

    def removal(self, job: Job) -> list[str] | None:
        """No daemon keeps the container."""
        return None

    def inspection(self, image: str) -> list[str] | None:
        """The image is a file."""
        return None
