"""Dot-and-interval plots: the time of every implementation, a panel per case."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from apexbench.report import leading, names, numbers, vocabulary
from apexbench.report.cases import Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure
from apexbench.report.repeats import Estimate

MOST_CASES = 6
SHORT_REASON = 24
WRAP = 22
STRETCHED = 8.0
"""Longest over shortest time from which an axis from zero would hide what the short ones do."""
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def draw(component: str, cases: Sequence[Case]) -> Figure | None:
    """Times of up to six cases of a component, from zero; None if it has no case."""
    shown = list(cases)[:MOST_CASES]
    if not shown:
        return None
    labels = _labels(shown)
    columns = min(3 if len(shown) > 4 else 2, len(shown))
    rows = -(-len(shown) // columns)
    sheet = style.sheet(7.2, 0.75 + rows * (0.7 + 0.19 * len(labels)))
    grid = style.axes(sheet, rows, columns, sharey=True)
    flat = [ax for row in grid for ax in row]
    for ax, case in zip(flat, shown, strict=False):
        _panel(sheet, ax, case, labels)
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


def _scale(times: Sequence[Estimate]) -> bool:
    """Whether an axis from zero would press the short times together, so that it is logarithmic."""
    longest = max((time.high for time in times), default=1.0)
    return longest > STRETCHED * min((time.low for time in times), default=longest)


def _labels(cases: Sequence[Case]) -> dict[str, str]:
    """Every implementation of these cases in one order, with its label: a row in every panel."""
    found = {arm.implementation: (case, arm) for case in cases for arm in case.arms}
    order = [arm.implementation for arm in max(cases, key=lambda case: len(case.arms)).arms]
    names_ = [*order, *(name for name in found if name not in order)]
    return {name: numbers.short(names.label(*found[name]), 38) for name in names_}


def _panel(sheet: style.Sheet, ax: Axes, case: Case, labels: dict[str, str]) -> None:
    times = [time for arm in case.arms if (time := case.time(arm))]
    longest = max((time.high for time in times), default=1.0)
    size, unit = next((step for step in _UNITS if longest >= step[0]), _UNITS[-1])
    for y, name in enumerate(labels):
        arm = case.arm(name)
        if arm is None:
            style.lost_mark(ax, 0.02, y, "", "not in this case")
            continue
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
    ax.set_yticks(range(len(labels)), list(labels.values()))
    ax.set_ylim(len(labels) - 0.4, -0.6)
    shortest = min((time.low for time in times), default=longest)
    scale = ""
    if _scale(times):
        ax.set_xscale("log")
        ax.set_xlim(shortest / size / 1.25, longest / size * 1.25)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if longest < 60 * shortest else (1,)))
        ax.xaxis.set_minor_locator(NullLocator())
        scale = ", log scale"
    else:
        ax.set_xlim(0, longest / size * 1.06)
    title = textwrap.wrap(numbers.short(case.name, 40), WRAP)
    ax.set_title("\n".join(title), loc="right", fontsize=8)
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
