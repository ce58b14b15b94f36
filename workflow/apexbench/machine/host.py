"""The host: processor, cores and memory this process may use, disk, containers around it."""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
from pathlib import Path

from apexbench.errors import UserError

CGROUPS = Path("/sys/fs/cgroup")


def _read(path: Path | str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def cpu_model() -> str:
    """The processor's name as the kernel gives it, else its architecture."""
    lines = (_read("/proc/cpuinfo") or "").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in fields.items()}
    return names.get("model name") or names.get("Model") or platform.machine() or "unknown"


def _cgroup_values(v1_controller: str, v1_file: str, v2_file: str) -> list[str]:
    """The limit files of this process's cgroup and all above it: each level may be the tighter."""
    found = []
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            root, name = CGROUPS, v2_file
        elif v1_controller in controllers.split(","):
            root, name = CGROUPS / v1_controller, v1_file
        else:
            continue
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):
            if folder.is_relative_to(root):
                value = _read(folder / name)
                found += [value] if value else []
    return found


def cores() -> int:
    """Whole cores this process may use: the affinity mask, cut by the cgroup's CPU quota."""
    try:
        available: float = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        available = os.cpu_count() or 1
    for limit in _cgroup_values("cpu", "cpu.cfs_quota_us", "cpu.max"):
        quota, _, period = limit.partition(" ")
        if quota not in ("max", "-1") and quota.isdigit():
            # cgroup v1 keeps the period in another file; the kernel's default is 100 ms.
            available = min(available, int(quota) / int(period or 100_000))
    return max(1, math.floor(available))


def threads_asked(variable: str) -> int | None:
    """The threads that an environment variable asks for; None where it leaves them open.

    OpenMP's list is by level of nesting, and the first counts.

    Raises:
        UserError: it is no such list.
    """
    asked = os.environ.get(variable, "").strip()
    if not asked:
        return None
    levels = [level.strip() for level in asked.split(",")]
    if not all(level.isascii() and level.isdigit() and len(level) < 10 for level in levels):
        raise UserError(
            f"{variable} is {asked[:60]!r}, which is no number of threads: unset it, or set it to "
            f"one such as {cores()}."
        )
    return int(levels[0]) or None


def memory_bytes() -> int | None:
    """Memory this process may use, in bytes: the machine's, or the cgroup's limit if lower."""
    lines = (_read("/proc/meminfo") or "").splitlines()
    total = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal")), 0)
    values = _cgroup_values("memory", "memory.limit_in_bytes", "memory.max")
    limits = [int(value) for value in values if value.isdigit()]
    return min([total, *limits]) if total else None


def oom_kills() -> int | None:
    """How often the kernel has killed a process of this cgroup because memory ended; None: unknown.

    The count is of processes in the cgroup, whichever limit was hit, and rises before the signal is
    sent. Outside any cgroup it is the whole machine's.
    """
    found = _cgroup_values("memory", "memory.oom_control", "memory.events")
    for text in [*found[:1], _read("/proc/vmstat") or ""]:
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None


def existing_parent(path: Path | str) -> Path:
    """``path`` or its nearest ancestor that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def free_disk_bytes(path: Path | str) -> int | None:
    """Bytes an ordinary user may still write at ``path``, which need not exist yet."""
    try:
        return shutil.disk_usage(existing_parent(path)).free
    except OSError:
        return None


def why_not_writable(path: Path | str) -> str | None:
    """Why no file can be made in the folder ``path`` (or, if it is not there, above it)."""
    place = existing_parent(path)
    if not place.is_dir():
        return f"{place} is not a folder"
    try:
        # Only a real file tells: root passes every permission check on a read-only mount.
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return f"{place}: {error.strerror or error}"


def surroundings() -> dict[str, str]:
    """Hints of a container and of a batch system around this process; {} on a plain host."""
    found = {}
    if Path("/.dockerenv").exists():
        found["container"] = "docker"
    elif Path("/run/.containerenv").exists():
        found["container"] = "podman"
    elif os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        found["container"] = "apptainer"
    elif os.environ.get("container"):  # noqa: SIM112 (systemd's name for it)
        found["container"] = os.environ["container"]  # noqa: SIM112
    for key, variable in {
        "slurm_job_id": "SLURM_JOB_ID",
        "slurm_node": "SLURMD_NODENAME",
        "slurm_partition": "SLURM_JOB_PARTITION",
        "slurm_gpus": "SLURM_JOB_GPUS",
    }.items():
        if os.environ.get(variable):
            found[key] = os.environ[variable]
    return found


def operating_system() -> str:
    """The distribution's own name for itself, such as "Debian GNU/Linux 12 (bookworm)"."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()
