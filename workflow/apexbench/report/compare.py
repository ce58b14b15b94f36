"""``apexbench compare``: the comparison of runs in the terminal, as HTML, and as an exit status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from apexbench.errors import UserError
from apexbench.records import write_text_atomically
from apexbench.report import html, names, numbers, vocabulary
from apexbench.report.comparison import Changed, Comparison, Key, Speed, compare
from apexbench.report.numbers import short
from apexbench.report.tables import Entry, Table

MOST_ROWS, MOST_LINES, MOST_SIGNS = 1500, 40, 60
TONES = {"faster": "green", "slower": "red", "bad": "red", "good": "green"}


def run(
    folders: Sequence[Path],
    console: Console,
    out: Path | None = None,
    margin: float | None = None,
    fail: bool = False,
) -> int:
    """Print the comparison, write it to ``out`` too; 1 where ``fail`` and there is a regression.

    Cells of the first run that another of its device does not hold count too: there may be one.

    Raises UserError for fewer than two folders or one without valid records.
    """
    if len(folders) < 2:
        raise UserError(
            "compare needs at least two run folders: the first is what the others meet."
        )
    if margin is not None and not 0 < margin < 1:
        raise UserError(f"--margin {margin:g} is not between 0 and 1: write 0.05 for 5 %.")
    found = compare(folders, margin)
    if out is not None:
        write_text_atomically(Path(out), page(found))
    _print(found, console)
    return 1 if fail and (found.regressions or found.unjudged) else 0


def answer(found: Comparison) -> list[str]:
    """The answer: whether there is a regression, and which verdicts changed."""
    first = found.runs[0]
    lines = []
    if any(run.device == first.device for run in found.runs[1:]):
        lines.append(f"Regression: {_regression(found)}.")
    else:
        lines.append(
            f"Regression: not judged. No other run is of {first.device}, and a different GPU is a "
            "different result."
        )
    if not found.changed:
        held = numbers.plural(found.verdicts, "verdict")
        lines.append(f"Verdicts that changed: none of {held} that the runs share.")
    else:
        lines.append(
            f"Verdicts that changed: {len(found.changed)} of "
            f"{numbers.plural(found.verdicts, 'verdict')} that the runs share. "
            f"{numbers.listing([_change(found, entry) for entry in found.changed], most=3)}."
        )
    return lines


def _regression(found: Comparison) -> str:
    """``no``, or ``yes`` with the number of each kind; and what is not there to be judged."""
    return _found(found) + _unjudged(found)


def _unjudged(found: Comparison) -> str:
    """The cells of the first run that another lacks, by component; empty where there are none."""
    if not found.unjudged:
        return ""
    entries = [entry for entry in found.cells if entry.absent]
    parts = dict.fromkeys(vocabulary.title(entry.key[0]) for entry in entries)
    return (
        f"; not judged: {numbers.plural(found.unjudged, 'cell')} of {found.runs[0].letter} that "
        f"another run does not hold ({numbers.listing(list(parts))})"
    )


def _found(found: Comparison) -> str:
    if not found.regressions:
        return "no" + (", of what is in all runs" if found.unjudged else "")
    margins = sorted({speed.margin for speed in found.speeds if speed.regression})
    percent = numbers.listing([f"{100 * value:g} %" for value in margins], "or")
    counts = (
        (sum(entry.worse for entry in found.changed), "verdict", " that fell"),
        (sum(entry.lost for entry in found.cells), "cell", " lost"),
        (sum(s.regression for s in found.speeds), "time", f" slower by more than {percent}"),
    )
    parts = [f"{numbers.plural(count, noun)}{what}" for count, noun, what in counts if count]
    return f"yes, {found.regressions}: {numbers.listing(parts)}"


def _change(found: Comparison, entry: Changed) -> str:
    """``FusedAdam on gpt2-124M against torch's default: faster in A, same in B``."""
    component, case, _ = entry.key
    states = [
        f"{versus.verdict if versus else 'not held'} in {run.letter}"
        for run, versus in zip(found.runs, entry.versus, strict=True)
    ]
    return (
        f"{vocabulary.title(component)}, {_name(found, entry.key)} on {case} against "
        f"{vocabulary.BASELINE_NAMES[entry.baseline]}: {', '.join(states)}"
    )


def notes(found: Comparison) -> list[str]:
    """What stands behind the answer, and what it does not cover."""
    first, others = found.runs[0], found.runs[1:]
    same = [run for run in others if run.device == first.device]
    lines = [
        f"Of {numbers.plural(len(found.speeds), 'time')} measured in {first.letter} and again, "
        f"faster: {sum(speed.verdict == 'faster' for speed in found.speeds)}, "
        f"slower: {sum(speed.verdict == 'slower' for speed in found.speeds)}; "
        f"cells of {first.letter} lost: {sum(entry.lost for entry in found.cells)}.",
    ]
    if same and len(same) < len(others):
        lines.append(
            f"Runs of another device than {first.device} hold no regression: a different GPU is "
            "a different result."
        )
    few = [speed for speed in found.speeds if not speed.ratio.between_runs]
    if few:
        lines.append(
            f"{len(few)} of {numbers.plural(len(found.speeds), 'ratio')} of times "
            f"{'has' if len(few) == 1 else 'have'} no interval between runs (fewer than 5 "
            "processes): what changes from one start to the next is not covered."
        )
    for entry in found.runs:
        lines += [f"{entry.letter}: {note}" for note in entry.notes]
    return lines


def tables(found: Comparison) -> list[Table]:
    """What differs, a table a kind: verdicts, speed, cells, environment; empty ones left out."""
    letters = [run.letter for run in found.runs]
    changed = [
        [
            *_names(found, entry.key),
            Entry(vocabulary.BASELINE_NAMES[entry.baseline]),
            *(
                Entry("n/a")
                if versus is None
                else Entry(
                    numbers.ratio(versus.ratio.value, versus.ratio.low, versus.ratio.high),
                    versus.ratio.value,
                    versus.verdict,
                    verdict=versus.verdict,
                )
                for versus in entry.versus
            ),
        ]
        for entry in found.changed
    ]
    cells = [
        [
            *_names(found, entry.key),
            *(Entry(vocabulary.status(status or "not in this run")) for status in entry.statuses),
            Entry(
                "lost" if entry.lost else "not judged" if entry.absent else "",
                tone="bad" if entry.lost or entry.absent else "",
            ),
        ]
        for entry in found.cells
    ]
    environment = [[Entry(name), *map(Entry, values)] for name, values in found.environment]
    head = ["component", "case", "implementation"]
    speeds = [_speed(found, entry) for entry in sorted(found.speeds, key=_slowest)]
    first = f"in {letters[0]}"
    every = [
        Table("Verdicts that differ", [*head, "against", *letters], changed, len(changed)),
        Table(
            f"Speed against {letters[0]}, slowest first",
            [*head, "run", first, "time", "speed"],
            speeds,
            len(speeds),
        ),
        Table("Cells whose status differs", [*head, *letters, "change"], cells, len(cells)),
        Table("What differs in the environment", ["key", *letters], environment, len(environment)),
    ]
    return [table for table in every if table.rows]


def _names(found: Comparison, key: Key) -> list[Entry]:
    return [Entry(vocabulary.title(key[0])), Entry(key[1]), Entry(_name(found, key))]


def _name(found: Comparison, key: Key) -> str:
    """The implementation's short name, as every other report has it."""
    pair = next(pair for run in found.runs if (pair := run.arm(key)) is not None)
    return names.name(*pair)


def _slowest(entry: Speed) -> tuple[bool, float]:
    return not entry.regression, entry.ratio.value


def _speed(found: Comparison, entry: Speed) -> list[Entry]:
    before, after = (
        Entry(numbers.time(time.value, time.low, time.high), time.value) for time in entry.times
    )
    ratio = entry.ratio
    text = numbers.ratio(ratio.value, ratio.low, ratio.high)
    speed = Entry(text, ratio.value, entry.verdict, verdict=entry.verdict)
    return [*_names(found, entry.key), Entry(entry.run.letter), before, after, speed]


def page(found: Comparison) -> str:
    """The comparison as one self-contained HTML file."""
    shown: list[dict[str, Any]] = []
    for table in tables(found):
        plain = table.plain()
        plain["rows"] = plain["rows"][:MOST_ROWS]
        shown.append(plain)
    return html.template("compare.html.j2").render(
        title=f"{len(found.runs)} runs of apexbench compared",
        runs=[
            {"letter": run.letter, "path": str(run.path), "device": run.device}
            for run in found.runs
        ],
        answer=answer(found),
        notes=notes(found),
        tables=shown,
        css=html.own("report.css"),
        js=html.own("report.js"),
    )


def _print(found: Comparison, console: Console) -> None:
    for line in answer(found):
        console.print(line, markup=False, highlight=False)
    console.print()
    for run in found.runs:
        console.print(f"{run.letter}: {run.path} ({run.device})", markup=False, highlight=False)
    for table in tables(found):
        rows = table.rows
        if table.columns[-1] == "speed":
            rows = [row for row in rows if row[-1].verdict in ("faster", "slower")]
        if not rows:
            continue
        grid = Grid(title=escape(table.title), title_justify="left", header_style="bold")
        for column in table.columns:
            grid.add_column(escape(column), overflow="fold")
        for row in rows[:MOST_LINES]:
            grid.add_row(*(_styled(entry) for entry in row))
        console.print(grid)
        if len(rows) > MOST_LINES:
            left = numbers.plural(len(rows) - MOST_LINES, "more row")
            console.print(f"… and {left} (--html shows all)")
    for line in notes(found):
        console.print(line, markup=False, highlight=False)


def _styled(entry: Entry) -> str:
    text = escape(short(" ".join(filter(None, (entry.text, entry.verdict))), MOST_SIGNS))
    colour = TONES.get(entry.tone)
    return f"[{colour}]{text}[/{colour}]" if colour else text
