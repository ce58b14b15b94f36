"""Accounting for the lab: MariaDB and slurmdbd, with their files in the lab's folder too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import lab

PACKAGES = ("slurmdbd", "mariadb-server")
PORT = 16820
ACCOUNT = "lab"
SLURM_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={folder}/run/munge.socket
AccountingStorageTRES=gres/gpu
"""
SLURMDBD_CONF = """\
{mark} in {folder}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageUser=root
StorageHost=localhost
StorageLoc=slurm_acct
"""


# A memory limit that is kept ends a job as OUT_OF_MEMORY; Slurm needs cgroups of version 1 for it
# where there is no systemd.
CGROUP = Path("/sys/fs/cgroup/memory")
CGROUP_CONF = """\
{mark} in {folder}
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""


def keeps_limits() -> bool:
    """Whether this machine's Slurm can keep a job within its memory."""
    return os.access(CGROUP, os.W_OK)


def limit_memory(folder: Path, etc: Path) -> None:
    """Write the cgroup.conf that does."""
    (etc / "cgroup.conf").write_text(CGROUP_CONF.format(mark=lab.MARK, folder=folder))


def forget_limits() -> None:
    """Remove the cgroups of the lab's nodes, which Slurm leaves."""
    for node in lab.NODES:
        for place in sorted(CGROUP.glob(f"slurm_{node}/**/"), reverse=True):
            with contextlib.suppress(OSError):
                place.rmdir()


def slurm_conf(folder: Path) -> str:
    """The lines of slurm.conf that send what becomes of jobs to slurmdbd."""
    return SLURM_CONF.format(folder=folder, port=PORT)


def start(folder: Path, etc: Path) -> None:
    """Start both daemons, with an empty database that knows the lab's cluster; munge runs."""
    data, socket = folder / "db", folder / "run/mariadb.socket"
    _done("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}")
    subprocess.Popen(
        [
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}"),
            *("--skip-networking", f"--socket={socket}", f"--pid-file={folder}/run/mariadbd.pid"),
            *("--skip-grant-tables", "--innodb-buffer-pool-size=64M"),
            f"--log-error={folder}/log/mariadbd.log",
        ],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _until("mariadb", "--no-defaults", f"--socket={socket}", "-e", "create database slurm_acct")
    conf = etc / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(SLURMDBD_CONF.format(mark=lab.MARK, folder=folder, port=PORT))
    # libmariadb has no setting of slurmdbd's for a socket but its own variable.
    lab.daemon("env", f"MYSQL_UNIX_PORT={socket}", "slurmdbd")
    _until("sacctmgr", "--immediate", "add", "cluster", lab.cluster_name(folder))
    # The executor plugin refuses an account that accounting does not know.
    _done("sacctmgr", "--immediate", "add", "account", ACCOUNT)
    user = os.environ.get("SUDO_USER", "root")
    _done("sacctmgr", "--immediate", "add", "user", user, f"account={ACCOUNT}")


def _until(*command: str, seconds: float = 30) -> None:
    """Run ``command`` again until it succeeds."""
    end = time.monotonic() + seconds
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if time.monotonic() > end:
            raise lab.LabError(
                f"{command[0]} does not work: {(done.stderr or done.stdout).strip()}"
            )
        time.sleep(0.2)


def _done(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise lab.LabError(f"{command[0]} fails: {(done.stderr or done.stdout).strip()}")
