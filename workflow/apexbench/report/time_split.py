"""Where a run's wall time went: measuring, the rest of the cases, and everything outside them.

Wall time runs from the first job's start to the last job's end, over the jobs of one run. It
therefore ends before the table, the figures and this report are written: a report cannot time
itself and still be the same bytes for the same records.
"""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.report import numbers
from apexbench.report.evidence import Evidence, Job

Rows = list[tuple[str, str]]
MEASURED = ("compile", "parity", "evidence", "sampling")
_IN_WORDS = {
    "starting": "starting processes, imports",
    "setup": "making inputs",
    "compile": "compiling and autotuning",
    "parity": "parity with the float64 reference",
    "evidence": "profiling which kernels ran",
    "sampling": "sampling, pauses included",
    "windows": "of that, inside the timed windows",
    "cases": "all of the cases",
    "total": "all of the jobs",
}
UNKNOWN = "The indexes do not say when the jobs ran, so the split of the time is unknown."


def time_split(evidence: Evidence) -> tuple[Rows, str]:
    """Seconds per stage, and the sentence that gives the shares of the wall time."""
    jobs, run = _latest(evidence.jobs)
    wall = max((job.finished for job in jobs), default=0) - min(
        (job.started for job in jobs), default=0
    )
    if wall <= 0:
        return [], UNKNOWN
    stages: dict[str, float] = {}
    for job in jobs:
        for name, value in job.seconds.items():
            stages[name] = stages.get(name, 0.0) + value
    measured = min(wall, sum(stages.get(name, 0.0) for name in MEASURED))
    cases = min(wall, max(stages.get("cases", measured), measured))
    rows = [
        (f"{name} ({_IN_WORDS[name]})" if name in _IN_WORDS else name, numbers.seconds(value))
        for name, value in stages.items()
    ]
    rows.append(("wall time of the jobs", numbers.seconds(wall)))
    return rows, " ".join(
        [
            f"The {numbers.plural(len(jobs), 'job')}{f' of run {run}' if run else ''} took "
            f"{numbers.seconds(wall)} from the first start to the last end.",
            f"{_part(measured, wall)} was measuring (compilation, parity, evidence and sampling; "
            f"{_part(stages.get('windows', 0.0), wall)} inside the timed windows),",
            f"{_part(cases - measured, wall)} the rest of the cases (inputs, training to the "
            "held-out loss, peak memory, waiting for the clocks to settle),",
            f"and {_part(wall - cases, wall)} lay outside the cases (process starts, imports, "
            "Snakemake between jobs). The table, the figures and this report came after.",
            *_others(evidence.jobs, jobs),
        ]
    )


def _latest(jobs: Sequence[Job]) -> tuple[list[Job], str]:
    """The jobs of the run that ended last, and its id: a resumed run holds jobs of several."""
    if not jobs:
        return [], ""
    run = max(jobs, key=lambda job: job.finished).run
    return [job for job in jobs if job.run == run], run


def _others(every: Sequence[Job], jobs: Sequence[Job]) -> list[str]:
    more = len(every) - len(jobs)
    if not more:
        return []
    verb = "is" if more == 1 else "are"
    return [f"{numbers.plural(more, 'job')} of earlier runs {verb} not counted here."]


def _part(value: float, wall: float) -> str:
    return f"{numbers.seconds(value)} ({numbers.share(value / wall)})"
