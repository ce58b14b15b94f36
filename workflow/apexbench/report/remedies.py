"""What would bring a missing cell: no reader is sent to a log that is not where the report is."""

from __future__ import annotations

from pathlib import Path

from apexbench.report import numbers

UNKNOWN = "none known"
SEE_LOG = "see the log of this component"
"""What a record says: it cannot know where its run's folder will lie."""
AGAIN = "run the same command again"
ELSEWHERE = "on the machine that measured, and is not kept with these records"


def told(remedy: str | None, component: str, folder: Path) -> str:
    """A cell's own remedy; a pointer to a log becomes its path, or says that it is not here."""
    if not remedy or SEE_LOG not in remedy:
        return remedy or UNKNOWN
    here = sorted(folder.glob(f"logs/{component}*.log"))
    if here:
        return remedy.replace(SEE_LOG, f"read {numbers.listing([str(path) for path in here])}")
    return remedy.replace(SEE_LOG, f"its log is results/logs/{component}*.log {ELSEWHERE}")


def of_lost(log: str | None, folder: Path) -> str:
    """What to do about a job that left no record."""
    if not log:
        return f"{AGAIN.capitalize()}."
    if Path(log).is_file() or (folder / log).is_file():
        return f"Read {log}, then {AGAIN}."
    own = Path(log).parent.name == "logs"  # of the run's folder, wherever that was; else Slurm's
    shown = f"results/logs/{Path(log).name}" if own else log
    return f"{AGAIN.capitalize()}; its log is {shown} {ELSEWHERE}."
