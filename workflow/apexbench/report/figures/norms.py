"""Speed of Apex's norms relative to torch's, over width, by dtype and direction."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from apexbench.records import digest
from apexbench.report import numbers, vocabulary
from apexbench.report.cases import Case, Versus
from apexbench.report.figures import norm_rows, style
from apexbench.report.figures.norm_legend import (
    BASELINES,
    COLOURS,
    COMPILED,
    KEY,
    apex_arms,
    legend,
    level,
    mark,
    result,
)
from apexbench.report.figures.style import Figure

DIRECTIONS = ("forward", "backward", "forward_backward")
COLUMNS = 3
MOST_PANELS = 9
MOST_CASES = 200
_KEYS = {"width", "dtype", "direction"}


def draw(component: str, cases: Sequence[Case]) -> list[Figure]:
    """Lines over width where a panel has several widths, rows of dots for the cases between."""
    cases = [case for case in cases if _placed(case)]
    if not any(arm.is_apex and arm.versus for case in cases for arm in case.arms):
        return []
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((_column(case), str(case.config["direction"])), []).append(case)
    panels = [
        key
        for key in sorted(groups, key=lambda key: _direction(key[1]))
        if len({case.config["width"] for case in groups[key]}) > 1
    ]
    parts = [panels[i : i + MOST_PANELS] for i in range(0, len(panels), MOST_PANELS)]
    found = [
        _sheet(component, {key: groups[key] for key in part}, index)
        for index, part in enumerate(parts)
    ]
    single = [case for key, group in groups.items() if key not in panels for case in group]
    return [*found, *norm_rows.draw(component, single)]


def _placed(case: Case) -> bool:
    """Whether the case has a width, dtype and direction to be drawn at."""
    return case.config.keys() >= _KEYS and isinstance(case.config["width"], int)


def _sheet(component: str, groups: dict[tuple[str, str], list[Case]], index: int) -> Figure:
    placed = [case for group in groups.values() for case in group]
    room, panels = MOST_CASES, []
    for (column, direction), group in groups.items():
        heading = f"{column}, {vocabulary.DIRECTIONS.get(direction, direction)}"
        panels.append((heading, group[:room]))
        room -= len(panels[-1][1])
    panels = [(heading, group) for heading, group in panels if group]
    cases = [case for _, group in panels for case in group]
    arms = apex_arms(cases)
    across = min(COLUMNS, len(panels))
    down = -(-len(panels) // across)
    sheet = style.sheet(7.2, 1.0 + 1.8 * down)
    grid = style.axes(sheet, down, across, sharex=True, sharey=True)
    axes = [grid[index // across][index % across] for index in range(down * across)]
    for ax, (heading, panel) in zip(axes, panels, strict=False):
        ax.set_xscale("log", base=2)
        for arm, colour in zip(arms, COLOURS, strict=False):
            _series(sheet, ax, panel, arm, colour)
        ax.set_title(_wrapped(heading), fontsize=8)
    if any(arm.status != "ok" for case in cases for arm in case.arms if arm.is_apex):
        low, high = axes[0].get_ylim()
        axes[0].set_ylim(low * (low / high) ** 0.3, high)
    widths = sorted({case.config["width"] for case in cases})
    for place, (ax, (_, panel)) in enumerate(zip(axes, panels, strict=False)):
        ax.set_xlim(widths[0] / 1.25, widths[-1] * 1.25)
        style.ratio_axis(ax)
        ax.axhspan(1 / 1.01, 1.01, color=style.GRID, alpha=0.6, linewidth=0)
        _widths(ax, widths)
        _lost(ax, panel)
        ax.set_ylabel("speed against torch" if place % across == 0 else "")
        below = place + across < len(panels)
        ax.set_xlabel("" if below else "width")
        ax.tick_params(labelbottom=not below)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    legend(sheet, cases, arms)
    part = vocabulary.APEX_PART.get(component, "Apex")
    finding = result(part, placed)
    if len(placed) > len(cases):
        finding += f" The first {len(cases)} of {len(placed)} cases are drawn."
    columns = list(dict.fromkeys(column for column, _ in groups))
    return Figure(
        f"{component}-ratio" + (f"-{index + 1}" if index else ""),
        component,
        f"{part}: speed relative to torch, by width ({numbers.listing(columns)})",
        f"Above the line at 1× Apex is faster, below it torch is; {KEY.format(level=level(cases))} "
        f"Solid lines: against torch's best eager norm; dashed: {COMPILED}. A line joins "
        f"cases that differ in width alone. {finding}",
        finding,
        sheet.svg(),
    )


def _direction(name: str) -> int:
    return DIRECTIONS.index(name) if name in DIRECTIONS else len(DIRECTIONS)


def _column(case: Case) -> str:
    name = str(case.config["dtype"]) + (" autocast" if case.config.get("autocast") else "")
    return name + ("" if case.config.get("affine", True) else " no affine")


def _series(sheet: style.Sheet, ax: Axes, cases: list[Case], name: str, colour: str) -> None:
    for baseline, (line, filled) in BASELINES.items():
        found: list[tuple[int, Case, Versus]] = []
        for case in cases:
            arm = case.arm(name)
            versus = case.versus(arm, baseline) if arm else None
            if versus is not None:
                found.append((case.config["width"], case, versus))
        found.sort(key=lambda entry: entry[0])
        for points in _joined(found):
            sns.lineplot(
                x=list(points),
                y=list(points.values()),
                ax=ax,
                color=colour,
                linestyle=line,
                linewidth=1,
                errorbar=None,
                legend=False,
            )
        for width, case, versus in found:
            ratio, gid = versus.ratio, sheet.title(mark(name, case, versus))
            ax.plot([width, width], [ratio.low, ratio.high], color=colour, linewidth=1.2)
            face = colour if filled else "white"
            ax.plot(width, ratio.value, "D", color=colour, ms=4.2, markerfacecolor=face, gid=gid)


def _joined(found: Sequence[tuple[int, Case, Versus]]) -> list[dict[int, float]]:
    """Ratio by width of the cases that differ in width alone: only those are one line."""
    lines: dict[str, dict[int, float]] = {}
    for width, case, versus in found:
        rest = {key: value for key, value in case.config.items() if key not in ("width", "process")}
        same = f"{case.device} {digest(rest)}"
        lines.setdefault(same, {})[width] = versus.ratio.value
    return [points for points in lines.values() if len(points) > 1]


def _lost(ax: Axes, cases: list[Case]) -> None:
    """Marks of Apex cells without a measurement, on the panel's lower edge."""
    reasons = {}
    for case in cases:
        for arm in case.arms:
            if arm.is_apex and arm.status != "ok":
                sign = vocabulary.STATUS_MARKS.get(arm.status, "✕")
                ax.text(
                    case.config["width"],
                    0.04,
                    sign,
                    transform=ax.get_xaxis_transform(),
                    ha="center",
                    color=style.MUTED,
                    fontsize=8,
                )
                reasons[sign] = vocabulary.status(arm.status)
    if reasons:
        text = ", ".join(f"{sign} {name}" for sign, name in reasons.items())
        ax.text(0.01, 0.15, text, transform=ax.transAxes, color=style.MUTED, fontsize=8)


def _widths(ax: Axes, widths: list[int]) -> None:
    """A tick per width, except those too close to the one before for both labels to fit."""
    shown: list[int] = []
    span = widths[-1] / widths[0]
    for width in widths:
        if not shown or width / shown[-1] >= max(1.4, span ** (1 / 6)):
            shown.append(width)
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _wrapped(heading: str) -> str:
    """A heading on two lines where one would be cut: column, then direction."""
    if len(heading) <= 30:
        return heading
    column, _, direction = heading.rpartition(", ")
    return f"{numbers.short(column, 34)},\n{direction}"
