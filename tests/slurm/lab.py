"""A real Slurm on this machine, for tests: ``lab.py up DIR [accounting]``, ``lab.py down DIR``.

One controller, two nodes, munge; no systemd, GPUs declared over plain device files. Both nodes are
this machine: partition gpu has the first alone, partition pair has both.
It installs Debian's packages where they are missing, refuses a machine that has a slurm.conf, and
leaves nothing behind. Runs only when asked for: APEXBENCH_SLURM=1 or APEXBENCH_CI=1.
``accounting`` adds slurmdbd with a MariaDB of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import debian
from debian import LabError

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
# The path that Slurm's commands were compiled with: the plugin's job step drops SLURM_CONF.
ETC = Path("/etc/slurm")
MARK = "# Written by apexbench's tests/slurm/lab.py"
NODES = ("node1", "node2")
DAEMONS = (*(f"slurmd.{node}" for node in NODES), "slurmctld", "munged")
ACCOUNTING_DAEMONS = ("slurmdbd", "mariadbd")
NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none\n"
# MariaDB's package makes it, and leaves it when it is purged without a person to ask.
DATABASE = Path("/var/lib/mysql")
BESIDE = ("gres.conf", "slurmdbd.conf", "cgroup.conf")
DEVICES = ("null", "zero", "full", "random")
MINUTES_KEPT = 60
TEMPLATE = Path(__file__).with_name("slurm.conf.in")


def asked_for() -> bool:
    """Whether whoever runs this wants daemons and packages on their machine."""
    return "1" in (os.environ.get("APEXBENCH_SLURM"), os.environ.get("APEXBENCH_CI"))


def up(folder: Path, etc: Path = ETC, accounted: bool = False) -> None:
    """Start Slurm with its files in ``folder``; return once its node takes jobs.

    Raises LabError where it was not asked for, on a machine with a slurm.conf, or when a daemon
    does not start; what was begun is taken down again.
    """
    if not asked_for():
        raise LabError("set APEXBENCH_SLURM=1: this installs packages and starts daemons.")
    if os.geteuid() != 0:
        raise LabError("only root can start Slurm's daemons: run it with sudo.")
    import accounting

    _refuse_a_cluster(etc)
    made = [place for place in (etc, *etc.parents) if not place.exists()]
    for name in ("run", "log", "spool/ctld", *(f"spool/{node}" for node in NODES), "etc"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # Whoever submits jobs must reach munge's socket.
    folder.chmod(0o755)
    (folder / "run").chmod(0o755)
    try:
        if accounted:
            made += [] if DATABASE.exists() else [DATABASE]
        debian.install(folder, (*PACKAGES, *accounting.PACKAGES) if accounted else PACKAGES)
        etc.mkdir(parents=True, exist_ok=True)
        (folder / "made").write_text("\n".join(map(str, made)))
        if accounted and accounting.keeps_limits():
            accounting.limit_memory(folder, etc)
        _configure(folder, etc, accounting.slurm_conf(folder) if accounted else NO_ACCOUNTING)
        _start(folder, etc, accounting.start if accounted else None)
    except BaseException:
        down(folder, etc)
        raise


def down(folder: Path, etc: Path = ETC) -> None:
    """End the daemons and their jobs, and remove everything that ``up`` made."""
    import accounting

    conf = etc / "slurm.conf"
    own = _ours(conf) and _folder(conf) == folder.absolute()
    if own:
        _quiet("scancel", "--state=RUNNING", "--state=PENDING", "--user=root")
        for partition in ("gpu", "pair"):
            _quiet("scancel", f"--partition={partition}")
    for name in (*DAEMONS[:-1], *ACCOUNTING_DAEMONS, DAEMONS[-1]):
        _end(folder / "run" / f"{name}.pid")
    for stray in _strays(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(stray, signal.SIGKILL)
    if own:
        conf.unlink()
        accounting.forget_limits()
        for path in filter(_ours, (etc / name for name in BESIDE)):
            path.unlink()
    installed = _lines(folder / "installed")
    if installed:
        with contextlib.suppress(LabError):
            debian.apt("purge", "-y", "-q", "-o", "DPkg::Lock::Timeout=120", *installed)
    for place in map(Path, _lines(folder / "made")):
        if place == DATABASE:
            shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            place.rmdir()
    if (folder / "made").exists() or (folder / "run").is_dir():
        shutil.rmtree(folder, ignore_errors=True)


def _folder(conf: Path) -> Path:
    """Where the lab of this slurm.conf has its files."""
    return Path(conf.read_text().splitlines()[0].removeprefix(f"{MARK} in "))


def _refuse_a_cluster(etc: Path) -> None:
    conf = etc / "slurm.conf"
    for path in (conf, *(etc / name for name in BESIDE)):
        if path.exists() and not _ours(path):
            why = "this machine belongs to a cluster, which is left alone"
            raise LabError(f"{path} is there: {why}.")
    if not conf.exists():
        return
    earlier = _folder(conf)
    if any(_alive(earlier / "run" / f"{name}.pid") for name in DAEMONS[:-1]):
        raise LabError(f"another lab runs in {earlier}: lab.py down {earlier} ends it.")
    down(earlier, etc)


def _configure(folder: Path, etc: Path, accounted: str) -> None:
    text = TEMPLATE.read_text().format(
        mark=MARK,
        folder=folder,
        cluster=cluster_name(folder),
        kept=MINUTES_KEPT * 60,
        gpus=len(DEVICES),
        accounting=accounted,
        tasks="task/cgroup" if (etc / "cgroup.conf").exists() else "task/none",
    )
    (etc / "slurm.conf").write_text(text)
    nodes = ",".join(NODES)
    lines = [f"NodeName={nodes} Name=gpu Type=fake File=/dev/{name}" for name in DEVICES]
    (etc / "gres.conf").write_text(f"{MARK} in {folder}\n" + "\n".join(lines) + "\n")


def _start(folder: Path, etc: Path, beside: Callable[[Path, Path], None] | None) -> None:
    key = folder / "etc/munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    run = folder / "run"
    daemon(
        "munged",
        "--force",
        f"--key-file={key}",
        f"--socket={run}/munge.socket",
        f"--pid-file={run}/munged.pid",
        f"--log-file={folder}/log/munged.log",
        f"--seed-file={run}/munged.seed",
    )
    if beside is not None:
        beside(folder, etc)
    conf = str(etc / "slurm.conf")
    daemon("slurmctld", "-c", "-f", conf)
    for node in NODES:
        daemon("slurmd", "-N", node, "-f", conf)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if _quiet("sinfo", "--noheader", "--Node", "--partition=pair", "--format=%T").split() == [
            "idle"
        ] * len(NODES):
            return
        time.sleep(0.1)
    said = "; ".join(_lines(folder / "log/slurmctld.log")[-2:])
    raise LabError(f"Slurm's node takes no jobs after 30 s: {said}")


def daemon(*command: str) -> None:
    # Daemons must not hold the caller's pipes open.
    done = subprocess.run(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"{command[0]} does not start (exit status {done.returncode}).")


def _quiet(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _ours(conf: Path) -> bool:
    try:
        return conf.read_text().startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line]
    except OSError:
        return []


def _pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _alive(path: Path) -> bool:
    pid = _pid(path)
    if pid is None:
        return False
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return False
    return name.startswith(("slurm", "munge", "mariadb"))


def _end(path: Path) -> None:
    """SIGTERM to the daemon of a pid file, SIGKILL after 10 s."""
    pid = _pid(path)
    end = time.monotonic() + 10
    while pid is not None and _alive(path):
        late = time.monotonic() > end
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)


def cluster_name(folder: Path) -> str:
    """The cluster's name, by which the jobs of this lab are told from another's."""
    return f"lab{zlib.crc32(str(folder).encode()):08x}"


def _strays(folder: Path) -> list[int]:
    """What outlives the daemons: step managers in the spool, and orphans of jobs.

    Without cgroups Slurm loses sight of a process whose parent ended.
    """
    mark = f"\0SLURM_CLUSTER_NAME={cluster_name(folder)}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            in_spool = Path(os.readlink(process / "cwd")).is_relative_to(folder)
            if in_spool or mark in b"\0" + (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def main(arguments: list[str]) -> int:
    """``up DIR`` or ``down DIR``; the exit status."""
    command, *rest = arguments or [""]
    accounted = command == "up" and rest[1:] == ["accounting"]
    if command not in ("up", "down") or len(rest) != 1 + accounted:
        print("usage: lab.py up DIR [accounting] | lab.py down DIR", file=sys.stderr)
        return 2
    folder = Path(rest[0]).absolute()
    try:
        up(folder, accounted=accounted) if command == "up" else down(folder)
    except LabError as error:
        print(f"lab.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    import lab  # under the name that accounting.py knows, so that both mean one LabError

    sys.exit(lab.main(sys.argv[1:]))
