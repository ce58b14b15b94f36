"""Container engines: which are here, whether they can be used, and whether they see the GPU.

Nothing is started or pulled: docker's client asks its daemon for a version, the others are asked
for their own.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apexbench.machine.toolchain import ask_program

ENGINES = ("docker", "podman", "apptainer")
INSTALL = {
    "docker": "sudo apt-get install docker.io",
    "podman": "sudo apt-get install podman",
    "apptainer": "https://apptainer.org/docs/admin/main/installation.html",
}


@dataclass(frozen=True)
class Engine:
    """One engine. ``problem`` is None when usable; ``remedy`` goes with a problem."""

    name: str
    path: str | None
    version: str | None
    problem: str | None
    remedy: str | None

    @property
    def usable(self) -> bool:
        return self.problem is None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"usable": self.usable}


def engines() -> list[Engine]:
    """docker, podman and apptainer, in that order, asked at the same time (3 s at most)."""
    with ThreadPoolExecutor(len(ENGINES)) as pool:
        return list(pool.map(engine, ENGINES))


def engine(name: str) -> Engine:
    """One of ``ENGINES``; singularity counts as apptainer, whose older name it is."""
    path = shutil.which(name)
    if path is None and name == "apptainer":
        path = shutil.which("singularity")
    if path is None:
        return Engine(name, None, None, "not installed", INSTALL[name])
    if name == "docker":
        return _docker(path)
    status, output = ask_program(path, "--version")
    version = output.split()[-1] if status == 0 and output else None
    if status != 0:
        return Engine(name, path, None, f"does not answer ({_last_line(output)})", f"{path} info")
    if name == "podman" and os.geteuid() != 0 and not _has_subordinate_ids():
        user = os.environ.get("USER", "$USER")
        remedy = f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
        problem = "this user has no subordinate ids in /etc/subuid, which rootless podman needs"
        return Engine(name, path, version, problem, remedy)
    return Engine(name, path, version, None, None)


def _docker(path: str) -> Engine:
    status, output = ask_program(path, "version", "--format", "{{.Server.Version}}")
    if status == 0 and output:
        return Engine("docker", path, output.splitlines()[-1], None, None)
    said = output.lower()
    if "permission denied" in said:
        problem = "this user is not in the docker group"
        return Engine(
            "docker", path, None, problem, "sudo usermod -aG docker $USER  # log in again"
        )
    if "cannot connect" in said or "daemon running" in said or "failed to connect" in said:
        problem = "its daemon is not running"
        return Engine("docker", path, None, problem, "sudo systemctl start docker")
    return Engine("docker", path, None, f"does not answer ({_last_line(output)})", f"{path} info")


def _last_line(output: str) -> str:
    return (output.splitlines() or ["no output"])[-1]


def _has_subordinate_ids() -> bool:
    names = {os.environ.get("USER", ""), str(os.geteuid())} - {""}
    try:
        lines = Path("/etc/subuid").read_text().splitlines()
    except OSError:
        return False
    return any(line.split(":", 1)[0] in names for line in lines)


def gpu_access() -> str | None:
    """How a container here gets the GPU: "CDI", "NVIDIA Container Toolkit", or None."""
    for folder in ("/etc/cdi", "/var/run/cdi"):
        place = Path(folder)
        if place.is_dir() and any("nvidia" in file.name for file in place.iterdir()):
            return "CDI"
    toolkit = shutil.which("nvidia-container-runtime") or shutil.which("nvidia-ctk")
    return "NVIDIA Container Toolkit" if toolkit else None
