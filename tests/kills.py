"""End a run at a random moment, run the same command again, and compare with an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass

from apexbench import records
from pipeline import Project

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
Outcome = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Undisturbed:
    """What a run comes to when nobody ends it, and how long that took."""

    outcome: Outcome
    seconds: float


def outcome(project: Project, component: str = "toy") -> Outcome:
    """The status of every cell, by key of the record; reading them checks that they are whole."""
    found = {}
    for key, path in project.records(component).items():
        found[key] = {cell.implementation: cell.status for cell in records.read(path).cells}
    return found


def undisturbed(project: Project, *target: str) -> Undisturbed:
    """Run to the end."""
    begin = time.monotonic()
    done = project.run(*target)
    assert done.returncode == 0, done.stdout
    return Undisturbed(outcome(project), time.monotonic() - begin)


def check_whole(project: Project) -> None:
    """Every record and index under its final name is whole."""
    for path in (project.folder / "results/records").rglob("[!.]*.json"):
        if path.name == "index.json":
            json.loads(path.read_text())
        else:
            records.read(path)


def kill_and_resume(
    project: Project, seed: int, expected: Undisturbed, *target: str, timeout: float = 60
) -> str:
    """One kill; returns what was done, in words. AssertionError where anything is lost or left.

    The signal goes to Snakemake alone or to all of its processes, at a moment of an undisturbed
    run's duration; all by ``seed``.
    """
    dice = random.Random(seed)
    signum = SIGNALS[seed % len(SIGNALS)]
    everyone = dice.random() < 0.5
    after = dice.uniform(0.02, 0.98) * expected.seconds
    running = project.start(*target)
    try:
        running.wait(after)
    except subprocess.TimeoutExpired:
        (os.killpg if everyone else os.kill)(running.pid, signum)
    told, _ = running.communicate(timeout=timeout)
    assert project.wait_until_gone() == []
    # Ctrl-C while Python starts is Python's own traceback, which no program can keep from it.
    assert signum == signal.SIGINT or "Traceback" not in told, told
    check_whole(project)
    kept = {
        path: path.stat().st_mtime_ns
        for path in (project.folder / "results/records/toy").glob("toy-*.json")
    }
    resumed = project.run(*target)
    assert resumed.returncode == 0, resumed.stdout
    assert outcome(project) == expected.outcome
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    assert project.wait_until_gone() == []
    whom = "all" if everyone else "Snakemake"
    return f"{signum.name} to {whom} after {after:.1f} s, {len(kept)} records kept"
