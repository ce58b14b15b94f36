"""What the Snakemake process itself does: owns the results folder, speaks first and last."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apexbench import broken_pipe
from apexbench.cluster import lost
from apexbench.errors import UserError
from apexbench.machine.install import torch_build
from apexbench.plan import Plan
from apexbench.records import load_json, read_text, sweep

RESULTS = Path("results")
PARTIAL = RESULTS / "partial"
_held: list[Any] = []


def say(sentence: str) -> None:
    """One line for the person at the terminal."""
    broken_pipe.say(f"apexbench: {sentence}")


def begin(plan: Plan, elsewhere: bool = False, gpus: int | None = None) -> None:
    """Take the results folder, become the owner of every child, say what will be measured where.

    ``elsewhere`` says that Snakemake sends jobs to other machines, at most ``gpus`` GPUs' at once.
    Ends the program with one
    sentence where they cannot be sent, or that names the holder if another run has the folder.
    """
    from apexbench import disk, locks, processes, termination
    from apexbench.machine.source import source_version

    try:
        _held.append(locks.run_lock(RESULTS.absolute()))
        disk.check_space(Path.cwd(), RESULTS.absolute())
        disk.check_outputs(RESULTS)
        sweep(RESULTS)
    except UserError as error:
        sys.exit(f"apexbench: {error}")
    # On a full disk Snakemake's own log cannot be written: one sentence, not pages of tracebacks.
    logging.raiseExceptions = False
    atexit.register(_say_if_full)
    processes.announce_owner()
    termination.handle_beside_main()
    if source := source_version():
        os.environ["APEXBENCH_SOURCE"] = source
    try:
        plan.image.check()
    except UserError as error:
        sys.exit(f"apexbench: {error}")
    say(f"preset {plan.config.preset} on {plan.config.device}: {plan.why_device}")
    if plan.runtime.contained or plan.config.device == "cuda":
        say(f"runtime: {plan.runtime.why}")
    lost.forget(RESULTS)
    if elsewhere:
        try:
            _begin_on_cluster(plan, gpus)
        except UserError as error:
            sys.exit(f"apexbench: {error}")
    for warning in plan.config.warnings:
        say(warning)


def _begin_on_cluster(plan: Plan, gpus: int | None = None) -> None:
    """Refuse what cannot work, warn, and end what a killed run left in Slurm's queue."""
    from apexbench.cluster import queue

    if plan.config.cluster == "none":
        raise UserError(
            "Snakemake sends jobs to other machines, but cluster is 'none': --config replaces the "
            "profile's whole `config:` list, so repeat cluster=slurm, device and gpu_model with "
            "it, or edit the list in the profile."
        )
    for model in plan.models:  # Snakemake would ask Slurm for as many as the limit, and not say so
        if gpus is not None and plan.gpus(model) > gpus:
            raise UserError(
                f"{model} trains on {plan.gpus(model)} GPUs, but the profile's resources allow "
                f"{gpus} at once: set gpu: {plan.gpus(model)} there, or lower transformer.gpus."
            )
    build = torch_build()
    cpu_only = build is not None and build.cuda is None and not plan.runtime.contained
    if build is not None and cpu_only and plan.config.device == "cuda":
        raise UserError(
            f"torch {build.version} cannot use a GPU: remove .venv and run `make slurm` again, "
            "which installs torch's CUDA build, or state device=cpu in the profile."
        )
    for sentence in queue.check():
        say(sentence)
    _end_jobs("that an earlier run left here")


def end_left_over() -> None:
    """End the jobs that Slurm took while this run was interrupted: its executor never knew them."""
    with contextlib.suppress(UserError):
        _end_jobs("of this run")


def _end_jobs(whose: str) -> None:
    from apexbench.cluster import queue

    if jobs := queue.left_over(Path.cwd()):
        say(f"ending the Slurm jobs {whose}: {', '.join(jobs)}")
        queue.cancel(jobs)


def _say_if_full() -> None:
    """The last word where the disk ran full: Snakemake's own asks for permissions."""
    from apexbench import disk

    with contextlib.suppress(OSError):
        try:
            disk.check_space(Path.cwd(), RESULTS.absolute())
        except UserError as error:
            say(str(error))


def succeed(report: Path, references: Iterable[str] = ()) -> None:
    """Say where the reports are and what is missing for more; a lost run's partial one goes.

    ``references`` are the rebuilt reports of the runs in results/reference/.
    """
    if not PARTIAL.is_symlink():
        shutil.rmtree(PARTIAL, ignore_errors=True)
    say_apex()
    for page in filter(Path.exists, map(Path, references)):
        say(f"report of the reference run {page.parent.name}: {page.absolute()}")
    if report.exists():
        say(f"report: {report.absolute()}")


def say_apex() -> None:
    """Apex's state with the remedy, from the machine's description."""
    try:
        apex = load_json(read_text(RESULTS / "machine.json"))["apex"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UserError):
        return
    if apex.get("gpu") and apex.get("state") != "compiled":
        say(" ".join(part for part in (apex.get("sentence"), apex.get("remedy")) if part))


def fail(plan: Plan, log: Any) -> None:
    """After a lost job: a partial report whose missing cells say which job and log."""
    logs = [log] if isinstance(log, str) else list(log)
    say(
        "some jobs were lost; what is measured stays, and the same command resumes. "
        f"Snakemake's log: {', '.join(map(str, logs))}"
    )
    if plan.config.cluster != "none":
        gone = lost.find(map(Path, logs))
        lost.write(gone, RESULTS)
        for job in gone:
            say(f"{job.rule}: {job.reason}" + (f"; log: {job.log}" if job.log else ""))
        end_left_over()
    if not any(Path(index).exists() for index in plan.indexes):
        return
    out = PARTIAL
    command = [
        sys.executable,
        "-P",
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
