"""The command: measure every proof within the time given, print one table, say whether it held."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from apexbench import plan as plans
from apexbench import records
from apexbench.config import Config
from apexbench.errors import UserError
from apexbench.jobs import supervisor
from apexbench.jobs.request import Request
from apexbench.selfcheck import cases, proofs, repeating

ROOT = Path(__file__).parents[3]
PARTS = ("faults", "waits", "do_bench", "pairs", "slowdowns", "repeat")
SECONDS = {"cuda": 480, "cpu": 300}
"""Default time; no case begins after it. What does not fit is counted as missing."""
CASE_SECONDS = {"cuda": 1.5, "cpu": 0.8}
SHORT_SECONDS = 0.4
TONES = {
    "passed": "green",
    "failed": "bold red",
    "incomplete": "yellow",
    "unavailable": "yellow",
    "noted": "dim",
}


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for; ``seconds`` None is the device's default."""

    results: Path
    device: str = "auto"
    seconds: float | None = None
    only: tuple[str, ...] = PARTS
    fresh: bool = False
    as_json: bool = False


def outside(wanted: Wanted) -> int:
    """Run the command where measurements run: in the configured runtime, alone on its device."""
    unknown = [part for part in wanted.only if part not in PARTS]
    if unknown:
        raise UserError(f"selfcheck has no part '{unknown[0]}': use {', '.join(PARTS)}.")
    if wanted.seconds is not None and wanted.seconds <= 0:
        raise UserError(f"--time is {wanted.seconds:g} but must be more than 0 seconds.")
    plan = _plan(wanted)
    inner = ["selfcheck", "--inside", "--results", str(wanted.results.absolute())]
    inner += ["--device", plan.config.device, "--only", ",".join(wanted.only)]
    inner += ["--time", str(wanted.seconds)] if wanted.seconds is not None else []
    inner += ["--fresh"] if wanted.fresh else []
    inner += ["--json"] if wanted.as_json else []
    return subprocess.run(
        [*shlex.split(plan.command(measuring=True)), *inner], check=False
    ).returncode


def inside(wanted: Wanted, console: Console) -> int:
    """Measure what is missing and judge; 0 unless a proof failed.

    Records that are valid are kept, so that a run that was cut short goes on where it stopped.
    """
    plan = _plan(wanted)
    seconds = wanted.seconds or SECONDS[plan.config.device]
    begin = time.time()
    folder = wanted.results / "selfcheck"
    if wanted.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    # A repeat of the component stage is the longest proof: it gets at least half of the time.
    early = begin + seconds * (0.5 if "repeat" in wanted.only else 1.0)
    for name, own, measuring in jobs(plan, wanted.only):
        supervisor.run(
            _request(plan, own, measuring),
            folder / "records" / "selfcheck" / name / "index.json",
            folder / "logs" / f"{name}.log",
            until=early,
        )
    if "repeat" in wanted.only:
        repeating.measure(plan, wanted.results, folder, begin + seconds)
    found = proofs.judge(proofs.load(folder, wanted.results))
    if wanted.as_json:
        text = json.dumps([asdict(proof) for proof in found], indent=1, ensure_ascii=False)
        console.file.write(text + "\n")
    else:
        show(console, found, f"{plan.config.device}, {time.time() - begin:.0f} s, {folder}")
    return 1 if any(proof.state == "failed" for proof in found) else 0


def jobs(
    plan: plans.Plan, only: Sequence[str]
) -> list[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """(name, cases, settings) of the two jobs: short proofs first, then the many comparisons."""
    device = plan.config.device
    measuring = {
        name: value for name, value in plan.config.measuring.items() if name != "processes"
    }
    short = [
        *(cases.faults(device) if "faults" in only else []),
        *(cases.waits() if "waits" in only else []),
        *(cases.do_bench() if "do_bench" in only else []),
    ]
    many = [
        *(cases.slowdowns(device) if "slowdowns" in only else []),
        *(cases.pairs(device, device_memory(device)) if "pairs" in only else []),
    ]
    found = [
        ("short", short, {**measuring, "case_seconds": SHORT_SECONDS}),
        ("comparisons", many, {**measuring, "case_seconds": CASE_SECONDS[device]}),
    ]
    return [job for job in found if job[1]]


def device_memory(device: str) -> int:
    """Bytes of the device's memory, as its driver tells."""
    if device != "cuda":
        return 0
    from apexbench.machine.gpu import visible_gpus

    return min((gpu.memory_bytes or 0 for gpu in visible_gpus()[:1]), default=0) or 8 * 2**30


def show(console: Console, found: Sequence[proofs.Proof], title: str) -> None:
    """One table."""
    table = Table(title=f"selfcheck: {title}", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("proof", "must hold", "", "found"):
        table.add_column(column, overflow="fold")
    for proof in found:
        state = f"[{TONES[proof.state]}]{proof.state}[/]"
        table.add_row(proof.name, proof.target, state, proof.found)
    console.print(table, highlight=False)


def _plan(wanted: Wanted) -> plans.Plan:
    """The run in ``results`` as it was configured, or what config.yaml says now."""
    plan = plans.load(ROOT, {"device": wanted.device})
    path = wanted.results / "config.json"
    if not path.exists():
        return plan
    values = records.read_mapping(path)
    known = {entry.name for entry in fields(Config)} - {"warnings"}
    if values.get("device") != plan.config.device or not known <= set(values):
        return plan
    return replace(plan, config=Config(**{name: values[name] for name in known}))


def _request(plan: plans.Plan, own: list[dict[str, Any]], measuring: dict[str, Any]) -> Request:
    return Request(
        component="selfcheck",
        device=plan.config.device,
        seed=plan.config.seed,
        measuring=measuring,
        environment=plan.slice("selfcheck"),
        cases=own,
        gpu_model=plan.config.gpu_model,
    )


def main(wanted: Wanted, is_inside: bool) -> int:
    """The command's exit status: 0, or 1 where a proof failed."""
    if not is_inside:
        return outside(wanted)
    width = None if sys.stdout.isatty() else 120
    return inside(wanted, Console(width=width))
