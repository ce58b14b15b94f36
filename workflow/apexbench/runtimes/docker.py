"""Docker 20.10 and newer; the GPU through the NVIDIA Container Toolkit."""

from __future__ import annotations

from apexbench.runtimes.environment import inside
from apexbench.runtimes.runtime import Job, mount_field


class Docker:
    """A container as the caller's user, without network, over a read-only root."""

    name = "docker"
    contained = True
    # Docker brings an init; without one a Python as process 1 ignores SIGTERM.
    init = True

    def argv(self, job: Job) -> list[str]:
        """``docker run`` in the foreground; a missing image is never pulled."""
        argv = [self.name, "run", "--rm", f"--name={job.name}", "--pull=never", "--network=none"]
        argv += ["--init"] if self.init else []
        argv += ["--read-only", "--tmpfs=/tmp:rw,exec,mode=1777", "--shm-size=2g"]
        argv += ["--cap-drop=all", "--security-opt=no-new-privileges"]
        # With SELinux on, a container may read no folder of the user's otherwise.
        argv += ["--security-opt=label=disable"]
        argv += [*self.user(job), *self.gpu(job)]
        for path, writable in job.mounts:
            place = [mount_field(f"src={path}"), mount_field(f"dst={path}")]
            mount = ",".join(["type=bind", *place] + ([] if writable else ["readonly"]))
            argv.append(f"--mount={mount}")
        argv.append(f"--workdir={job.start}")
        argv += [f"--env={key}={value}" for key, value in sorted(inside(job, self.name).items())]
        argv.append("--entrypoint=python3")
        return [*argv, job.image or "", "-P", "-m", "apexbench", *job.command]

    def user(self, job: Job) -> list[str]:
        """The caller's ids, so that results belong to the caller."""
        return [f"--user={job.uid}:{job.gid}"]

    def gpu(self, job: Job) -> list[str]:
        """``--gpus``, whose value is CSV too: several UUIDs need quotes inside the argument."""
        if job.gpus:
            return ["--gpus", '"device=' + ",".join(job.gpus) + '"']
        return ["--gpus", "all"] if job.all_gpus else []

    def environment(self, job: Job) -> dict[str, str]:
        """The caller's: the client finds its daemon and credentials there."""
        return dict(job.environment)

    def removal(self, job: Job) -> list[str] | None:
        """Kills and removes; harmless when it is gone."""
        return [self.name, "rm", "--force", job.name]

    def inspection(self, image: str) -> list[str] | None:
        """Asks the daemon for the image's id."""
        return [self.name, "image", "inspect", "--format", "{{.Id}}", image]
