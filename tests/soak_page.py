"""The page that the figures of a soak become."""

from __future__ import annotations

from typing import Any

PAGE = """\
# Soak
What `make soak` measured. It uses the tests' toy component, so that nothing but apexbench and
Snakemake is at work. {machine}, Python {python}, on a machine that had other work too.
`make soak SOAK_FLAGS='--out docs'` writes this page.

- **{runs} consecutive runs** in one folder, each of which measures again (commit `{runs_commit}`):
  after each one no process and no temporary file is left. {runs_verdict}
- **One job of {job} cases** (commit `{job_commit}`). {job_verdict}
- **{kills} runs killed at random moments** by SIGKILL, SIGTERM or SIGINT, sent to Snakemake or to
  all of its processes (commit `{kills_commit}`): the same command then ends with the records of an
  undisturbed run, keeps those that were there, and leaves no process. Half-written files left,
  which a later run sweeps: {halves}. {kills_verdict}

| part | what | first fifth | last fifth | largest |
|---|---|---|---|---|
{rows}

Memory is the most that is resident (the worker holds the buffer that empties the CPU's cache
between windows). Each number but the last of a row is a median over a fifth of the runs or of the
long job's length.
"""


def verdict(part: dict[str, Any]) -> str:
    """What was wrong with a part, and a note that somebody wrote beside it in soak.json."""
    said = "; ".join(part["faults"])
    return " ".join([f"Faults: {said}." if said else "No fault.", part.get("note", "")]).strip()


def page(result: dict[str, Any]) -> str:
    """The figures as a page of docs/."""
    parts, words = result["parts"], {}
    rows = []
    for name, part in parts.items():
        series = {key: value for key, value in part["figures"].items() if isinstance(value, list)}
        for what, value in series.items():
            rows.append(f"| {name} | {what} | {' | '.join(f'{v:g}' for v in value)} |")
        words |= {
            name: part["figures"]["count"],
            f"{name}_commit": part["commit"],
            f"{name}_verdict": verdict(part),
        }
    halves = parts["kills"]["figures"]["half-written files"]
    return PAGE.format(
        rows="\n".join(rows),
        halves=halves,
        machine=result["machine"],
        python=result["python"],
        **words,
    )
