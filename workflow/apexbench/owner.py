"""What the Snakemake process itself does: owns the results folder, speaks first and last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.plan import Plan

RESULTS = Path("results")
_held: list[Any] = []


def say(sentence: str) -> None:
    """One line for the person at the terminal."""
    print(f"apexbench: {sentence}", file=sys.stderr, flush=True)


def begin(plan: Plan) -> None:
    """Take the results folder, become the owner of every child, say what will be measured where.

    Ends the program with one sentence that names the holder if another run has the folder.
    """
    from apexbench import locks, processes
    from apexbench.machine.source import source_version

    try:
        RESULTS.mkdir(exist_ok=True)
        _held.append(locks.run_lock(RESULTS))
    except OSError as error:
        sys.exit(
            f"apexbench: {RESULTS.absolute()} cannot be written ({error.strerror}): "
            "make it writable."
        )
    except UserError as error:
        sys.exit(f"apexbench: {error}")
    processes.announce_owner()
    if source := source_version():
        os.environ["APEXBENCH_SOURCE"] = source
    say(f"preset {plan.config.preset} on {plan.config.device}: {plan.why_device}")
    for warning in plan.config.warnings:
        say(warning)


def succeed(report: Path) -> None:
    """Say where the report is, and what is missing for more."""
    say_apex()
    if report.exists():
        say(f"report: {report.absolute()}")


def say_apex() -> None:
    """Apex's state with the remedy, from the machine's description."""
    try:
        apex = json.loads((RESULTS / "machine.json").read_text(encoding="utf-8"))["apex"]
    except (OSError, ValueError, KeyError):
        return
    if apex.get("gpu") and apex.get("state") != "compiled":
        say(" ".join(part for part in (apex.get("sentence"), apex.get("remedy")) if part))


def fail(plan: Plan, log: Any) -> None:
    """After a lost job: a partial report whose missing cells say which job and log."""
    say(
        "some jobs were lost; what is measured stays, and the same command resumes. "
        f"Snakemake's log: {log}"
    )
    if not any(Path(index).exists() for index in plan.indexes):
        return
    out = RESULTS / "partial"
    command = [
        sys.executable,
        "-m",
        "apexbench",
        "report",
        "--records",
        str(RESULTS),
        "--out",
        str(out),
    ]
    for index in plan.indexes:
        command += ["--expect", index]
    for machine in plan.references():
        command += ["--beside", str(RESULTS / "report" / machine / "report.html")]
    if subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0:
        say(f"partial report: {(out / 'report.html').absolute()}")
