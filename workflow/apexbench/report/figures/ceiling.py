"""Distance to the limit: the share of the measured ceiling that every implementation reaches."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from apexbench.report import ceilings, names, numbers, vocabulary
from apexbench.report.cases import Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure

MOST_CASES = 24
LEGEND_COLUMNS = 3
SHAPES = ("o", "D", "^", "s", "v", "P", "X", "<", ">", "*", "p", "h")
Shares = dict[tuple[str, str], float]
"""Share of the ceiling by case and implementation."""


def draw(component: str, cases: Sequence[Case], limits: ceilings.Ceilings) -> Figure | None:
    """Share of the ceiling, a row per case; None where no case has a share."""
    shares = {
        (case.name, arm.implementation): share
        for case in cases
        for arm in case.arms
        if (share := ceilings.share(case, arm, case.quantity, limits)) is not None
    }
    if not shares:
        return None
    shown = list(cases)[:MOST_CASES]
    marks = _marks(shown, shares)
    sheet = style.sheet(7.2, 0.75 + 0.19 * len(shown) + 0.17 * -(-len(marks) // LEGEND_COLUMNS))
    ax = style.axes(sheet)[0][0]
    for y, case in enumerate(shown):
        for arm in case.arms:
            share = shares.get((case.name, arm.implementation))
            if share is None:
                continue
            marker, colour, _ = marks[arm.implementation]
            text = f"{names.name(case, arm)}, {case.name}: {numbers.share(share)} of the ceiling"
            ax.plot(
                share,
                y,
                marker,
                color=colour,
                markersize=4.8,
                markeredgewidth=1.2,
                alpha=0.9,
                gid=sheet.title(text),
            )
        if not any(name == case.name for name, _ in shares):
            style.lost_mark(ax, 0.02, y, "unavailable", numbers.short(ceilings.no_share(case), 60))
    words = vocabulary.distinct(shown)
    ax.set_yticks(range(len(shown)), [numbers.short(words[case.name], 56) for case in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, max(1.0, *shares.values()) * 1.02)
    ax.axvline(1, color=style.INK, linewidth=0.9)
    ax.xaxis.set_major_formatter(FuncFormatter(style.percent))
    ax.set_xlabel("share of the measured ceiling")
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=5, linestyle="", label=label)
        for marker, colour, label in marks.values()
    ]
    sheet.canvas.legend(
        handles=handles,
        loc="outside upper right",
        ncols=min(LEGEND_COLUMNS, len(handles)),
        labelcolor=style.INK,
        columnspacing=1.2,
        handletextpad=0.4,
    )
    finding = _finding(cases, shares)
    more = (
        f" The first {len(shown)} of {len(cases)} cases are drawn."
        if len(cases) > len(shown)
        else ""
    )
    return Figure(
        f"{component}-ceiling",
        component,
        f"{vocabulary.title(component)}: share of the ceiling",
        "Bytes that must move, divided by the time and by the copy bandwidth measured in the same "
        f"run; the line at 100 % is the limit. {finding}{more}",
        finding,
        sheet.svg(),
    )


def _marks(cases: Sequence[Case], shares: Shares) -> dict[str, tuple[str, str, str]]:
    """Every arm's marker, its family's colour and its name: no two arms have the same mark."""
    marks: dict[str, tuple[str, str, str]] = {}
    for case in cases:
        for arm in case.arms:
            if (case.name, arm.implementation) in shares and arm.implementation not in marks:
                colour = style.KINDS[style.kind(arm)]
                taken = sum(mark[1] == colour for mark in marks.values())
                shape = SHAPES[taken % len(SHAPES)]
                label = numbers.short(names.name(case, arm), 40)
                marks[arm.implementation] = (shape, colour, label)
    return marks


def _finding(cases: Sequence[Case], shares: Shares) -> str:
    """The highest share, and every arm whose interval reaches as high."""
    spans = []
    for case in cases:
        for arm in case.arms:
            share, time = shares.get((case.name, arm.implementation)), case.time(arm)
            if share is not None and time is not None:
                ends = (share * time.value / time.high, share * time.value / time.low)
                spans.append((share, ends, f"{names.name(case, arm)}, {case.name}"))
    spans.sort(key=lambda entry: (-entry[0], entry[2]))
    highest, (least, _), first = spans[0]
    tied = [name for _, (_, high), name in spans[1:] if high >= least]
    if not tied:
        return f"The highest share is {numbers.share(highest)}: {first}."
    return (
        f"The highest share is {numbers.share(highest)}: {first}, not separated from "
        f"{numbers.listing(tied, most=2)}."
    )
