"""How a command enters the image: docker, podman, apptainer, or the host's own Python."""

from apexbench.runtimes.choose import RUNTIMES, choose
from apexbench.runtimes.runtime import Job, Runtime, container_name

__all__ = ["RUNTIMES", "Job", "Runtime", "choose", "container_name"]
