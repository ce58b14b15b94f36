"""Dot-and-interval plots: the time of every implementation, a panel per case."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from apexbench.report import leading, names, numbers, vocabulary
from apexbench.report.cases import Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure

MOST_CASES = 6
SHORT_REASON = 24
STRETCHED = 8.0
"""Longest over shortest time from which an axis from zero would hide what the short ones do."""
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def draw(component: str, cases: Sequence[Case]) -> Figure | None:
    """Times of up to six cases of a component, from zero; None if it has no case."""
    shown = list(cases)[:MOST_CASES]
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    tallest = max(len(case.arms) for case in shown)
    sheet = style.sheet(7.2, 0.75 + rows * (0.55 + 0.2 * tallest))
    grid = style.axes(sheet, rows, columns)
    flat = [ax for row in grid for ax in row]
    for ax, case in zip(flat, shown, strict=False):
        _panel(sheet, ax, case)
    for ax in flat[len(shown) :]:
        ax.set_axis_off()
    style.legend(sheet, [style.kind(a) for case in shown for a in case.arms if case.time(a)])
    name = vocabulary.title(component)
    more = ""
    if len(cases) > len(shown):
        more = f" The first {len(shown)} of {len(cases)} cases are drawn."
    return Figure(
        f"{component}-times",
        component,
        f"{name}: time per implementation",
        f"Median time per call with its {numbers.confidence(shown[0].confidence)} interval; left "
        "is faster. An axis starts at zero, or is logarithmic where it says so. "
        + " ".join(_finding(case) for case in shown[:2])
        + more,
        f"{name}. " + " ".join(_finding(case) for case in shown),
        sheet.svg(),
    )


def _panel(sheet: style.Sheet, ax: Axes, case: Case) -> None:
    times = [time for arm in case.arms if (time := case.time(arm))]
    longest = max((time.high for time in times), default=1.0)
    size, unit = next((step for step in _UNITS if longest >= step[0]), _UNITS[-1])
    for y, arm in enumerate(case.arms):
        time = case.time(arm)
        if time is None:
            reason = arm.reason or ""
            style.lost_mark(ax, 0.02, y, arm.status, reason if len(reason) <= SHORT_REASON else "")
            continue
        kind = style.kind(arm)
        text = (
            f"{names.name(case, arm)}, {case.name}: "
            f"{numbers.time(time.value, time.low, time.high)}, n = {arm.samples[case.quantity]}"
        )
        ax.plot([time.low / size, time.high / size], [y, y], color=style.KINDS[kind], linewidth=1.6)
        ax.plot(
            time.value / size,
            y,
            style.MARKERS[kind],
            color=style.KINDS[kind],
            markersize=5,
            gid=sheet.title(text),
        )
    ax.set_yticks(
        range(len(case.arms)), [numbers.short(names.label(case, arm), 38) for arm in case.arms]
    )
    ax.set_ylim(len(case.arms) - 0.4, -0.6)
    shortest = min((time.low for time in times), default=longest)
    scale = ""
    if longest > STRETCHED * shortest:
        ax.set_xscale("log")
        ax.set_xlim(shortest / size / 1.25, longest / size * 1.25)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if longest < 60 * shortest else (1,)))
        ax.xaxis.set_minor_formatter(NullFormatter())
        scale = ", log scale"
    else:
        ax.set_xlim(0, longest / size * 1.06)
    ax.set_title(numbers.short(case.name), loc="right")
    ax.set_xlabel(f"{case.quantity.replace('_', ' ')} ({unit}){scale}")
    ax.xaxis.set_major_formatter(FuncFormatter(style.plain))
    ax.grid(axis="y", visible=False)


def _finding(case: Case) -> str:
    found = leading.leaders(case, case.arms)
    if found is None:
        return f"{case.name}: nothing could be measured."
    times = [time for arm in found.arms if (time := case.time(arm))]
    texts = [numbers.time(time.value, time.low, time.high) for time in times]
    shown = [names.name(case, arm) for arm in found.arms]
    if found.sole is not None:
        return f"{case.name}: {shown[0]} is fastest, {texts[0]}."
    both = [f"{name} ({text})" for name, text in zip(shown, texts, strict=True)]
    return f"{case.name}: no arm is fastest: {numbers.listing(both)} are not separated."
