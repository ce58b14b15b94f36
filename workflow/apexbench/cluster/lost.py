"""Jobs that Slurm ended or refused: which result each was for, its state, and the remedy.

Which job belongs to which output stands in Snakemake's own log, the only place that also knows jobs
that never started; Slurm is asked for what it still remembers of them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from apexbench import records
from apexbench.cluster.queue import ask
from apexbench.errors import UserError

FILE = "lost.json"
"""Beside the records: what the report says of an index that is not there."""

# A message may hold several lines; the next event begins with its time.
_BLOCK = re.compile(
    r"^Error in (?:rule )?(?P<rule>[^\s:]+):\n(?P<body>.*?)(?=^\[|^Error in |\Z)", re.M | re.S
)
_STATE = re.compile(r"SLURM status is: '(?P<state>[A-Z_]+)")
_REFUSED = re.compile(
    r"SLURM sbatch failed\. The error message was '(?P<said>.*?)'\.?[ ]*$"
    # What the plugin asks first: sacct for an account, sacctmgr whether it is one.
    r"|Job submission failed with exception: (?P<raised>[^\n]*)",
    re.M | re.S,
)
_FIELD = "^    {}: (.*)$"

_REMEDIES = {
    "TIMEOUT": "raise runtime for {rule} under set-resources in the profile",
    "DEADLINE": "raise runtime for {rule} under set-resources in the profile",
    "OUT_OF_MEMORY": "raise mem_mb for {rule} under set-resources in the profile",
    "NODE_FAIL": "the same command starts it again, on another node with slurm-requeue: true",
    "BOOT_FAIL": "the same command starts it again, on another node with slurm-requeue: true",
    "PREEMPTED": "the same command starts it again; another qos or partition may not preempt it",
    "CANCELLED": "the same command starts it again",
    "REFUSED": "correct partition, account, GPU or limits in the profile",
}
_OTHER = "read the log, then run the same command again"


@dataclass(frozen=True)
class Lost:
    """A job without its output. ``state`` is Slurm's, or REFUSED when Slurm did not take it."""

    rule: str
    output: str
    state: str
    job: str | None
    log: str | None
    reason: str

    @property
    def status(self) -> str:
        """The record status that says the same."""
        return "out_of_memory" if self.state == "OUT_OF_MEMORY" else "failed"


def find(logs: Iterable[Path]) -> list[Lost]:
    """The lost jobs that Snakemake's log files tell of, the last attempt of each output."""
    found: dict[str, Lost] = {}
    for path in logs:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for block in _BLOCK.finditer(text):
            if lost := _lost(block["rule"], block["body"]):
                found[lost.output] = lost
    return list(found.values())


def _lost(rule: str, body: str) -> Lost | None:
    output, job = _field("output", body), _field("external_jobid", body)
    if output is None:
        return None
    first = output.split(", ")[0]
    if refused := _REFUSED.search(body):
        told = (refused["said"] or refused["raised"] or "").strip()
        said = told.splitlines() or ["no reason given, as when it is interrupted"]
        why = said[-1].removeprefix("sbatch: error: ").rstrip(".")
        reason = f"Slurm did not take its job ({why}): {_REMEDIES['REFUSED']}"
        return Lost(rule, first, "REFUSED", None, None, reason)
    state = _STATE.search(body)
    if state is None or job is None:
        return None
    log, ended = _slurm_log(body), state["state"]
    if ended == "FAILED" and _out_of_memory(job, log):
        ended = "OUT_OF_MEMORY"
    remedy = _REMEDIES.get(ended, _OTHER).format(rule=rule)
    reason = f"Slurm job {job} ended as {ended}{_details(job, ended)}: {remedy}"
    return Lost(rule, first, ended, job, log, reason)


def _out_of_memory(job: str, log: str | None) -> bool:
    """Whether memory is why a job failed: that is its step's state, which is not the job's.

    Without accounting Slurm says so in the job's log alone.
    """
    told = ""
    with contextlib.suppress(UserError):
        told = ask("sacct", "--noheader", "--parsable2", "--format=State", f"--jobs={job}")
    if "OUT_OF_MEMORY" in told.split():
        return True
    with contextlib.suppress(OSError):
        text = Path(log or "").read_text(encoding="utf-8", errors="replace")
        return re.search(r"^slurmstepd\S*: error: Detected \d+ oom", text, re.M) is not None
    return False


def _field(name: str, body: str) -> str | None:
    found = re.search(_FIELD.format(name), body, re.M)
    return found[1].strip() if found else None


def _slurm_log(body: str) -> str | None:
    """Slurm's own log of the job: the last of the files that Snakemake lists."""
    listed = (_field("log", body) or "").split(" (check log file")[0].split(", ")
    return next((path for path in reversed(listed) if "slurm_logs" in path), None) or listed[-1]


def _details(job: str, state: str) -> str:
    """What Slurm still knows: the node, and the limit that was passed."""
    try:
        told = ask("scontrol", "--oneliner", "show", "job", job)
    except UserError:
        return ""
    fields = dict(re.findall(r"(\w+)=(\S+)", told))
    where = fields.get("NodeList", "(null)")
    text = "" if where == "(null)" else f" on {where}"
    code, _, signal = fields.get("ExitCode", "").partition(":")
    ended = ("exit status", code) if signal in ("", "0") else ("signal", signal)
    limits = {
        "TIMEOUT": ("limit", fields.get("TimeLimit")),
        "OUT_OF_MEMORY": ("memory", fields.get("MinMemoryNode") or fields.get("MinMemoryCPU")),
        "FAILED": ended,
    }
    name, value = limits.get(state, ("", None))
    return f"{text} ({name} {value})" if value else text


def write(lost: Iterable[Lost], results: Path) -> None:
    """Leave for the report why an index is not there: ``lost.json`` in the run's folder."""
    entries = {
        str(Path(entry.output).relative_to(results)): {
            "status": entry.status,
            "reason": entry.reason,
            "log": entry.log,
        }
        for entry in lost
        if Path(entry.output).is_relative_to(results)
    }
    if entries:
        records.write_text_atomically(results / FILE, json.dumps(entries, indent=1) + "\n")
    else:
        forget(results)


def forget(results: Path) -> None:
    """Remove what an earlier run left."""
    (results / FILE).unlink(missing_ok=True)
