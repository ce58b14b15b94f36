"""Slurm as the login node sees it: whether it can work, and what an earlier run left in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apexbench.errors import UserError

LONGEST_LOOK = 180
"""Seconds between two looks at a job, at most: the executor plugin's own limit."""
_RUN_ID = re.compile(r"(\S+_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def ask(*command: str) -> str:
    """What a Slurm command answers, exit status 0; UserError with its complaint otherwise."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} does not answer ({error}).") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise UserError(f"{command[0]} does not answer: {said[-1]}")
    return done.stdout


def check() -> list[str]:
    """Sentences about this cluster that whoever starts a run should know.

    Raises:
        UserError: no job can be sent from here.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch is not a command here: start the run on the cluster's login node, or without "
            "the profile to measure this machine."
        )
    if shlex.quote(sys.executable) != sys.executable:
        raise UserError(
            f"Snakemake cannot start {sys.executable} in a Slurm job, because of the spaces or "
            "signs in its path: move this folder to a path of letters, digits and _.-/ only."
        )
    lines = ask("scontrol", "show", "config").splitlines()
    parts = [line.partition("=") for line in lines]
    settings = {name.strip(): value.strip() for name, _, value in parts}
    return [sentence for sentence in (forgetful(settings), _no_sacct()) if sentence]


def _no_sacct() -> str | None:
    """The executor asks sacct for an account where the profile names none, and fails without."""
    if shutil.which("sacct") is not None:
        return None
    return (
        "sacct is not a command here: set slurm_account under default-resources in the profile "
        "(none where accounts do not matter), or no job can be sent."
    )


def forgetful(settings: dict[str, str]) -> str | None:
    """Whether the ends of jobs may go unnoticed: Slurm forgets them sooner than anyone looks."""
    kept = re.match(r"\d+", settings.get("MinJobAge", ""))
    accounting = settings.get("AccountingStorageType", "")
    if kept is None or not 0 < int(kept.group()) <= LONGEST_LOOK:  # 0: never
        return None
    remedy = (
        "ask its administrators for MinJobAge=300"
        if accounting.endswith(("none", "(null)")) or not accounting
        else "set slurm-status-command: sacct in the profile"
    )
    return (
        f"this Slurm forgets a finished job after {kept.group()} s (MinJobAge), so that squeue may "
        f"miss its end and the run never goes on: {remedy}."
    )


def left_over(folder: Path) -> list[str]:
    """Ids of this user's waiting or running jobs that an earlier Snakemake in ``folder`` sent.

    Whoever calls this holds the results folder, so that no other run can own them.
    """
    listed = ask("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%j|%k|%Z")
    found = []
    for line in listed.splitlines():
        job, name, comment, place = (part.strip() for part in line.split("|", 3))
        of_snakemake = _RUN_ID.fullmatch(name) and comment.startswith(("rule_", "group_"))
        if of_snakemake and Path(place) == folder:
            found.append(job)
    return found


def cancel(jobs: Sequence[str]) -> None:
    """End these jobs and wait until Slurm has."""
    ask("scancel", *jobs)
    end = time.monotonic() + LONGEST_LOOK
    while time.monotonic() < end:
        try:
            if not ask("squeue", "--noheader", f"--jobs={','.join(jobs)}").strip():
                return
        except UserError:
            return  # squeue knows none of them any more
        time.sleep(1)
