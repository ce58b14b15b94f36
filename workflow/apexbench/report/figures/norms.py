"""Speed of Apex's norms relative to torch's, over width, by dtype and direction."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from apexbench.report import numbers, vocabulary
from apexbench.report.cases import Arm, Case, Versus
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure
from apexbench.report.verdicts import against, tally

BASELINES = {"torch_eager_best": ("-", True), "torch_best": ("--", False)}
COLOURS = (style.ORANGE, style.PINK, style.AMBER)
DIRECTIONS = ("forward", "backward", "forward_backward")
COLUMNS = 3
MOST_COLUMNS = 9
MOST_CASES = 300
_KEYS = {"width", "dtype", "direction"}


def draw(component: str, cases: Sequence[Case]) -> list[Figure]:
    """A panel per direction and dtype that has cases; no figure where no arm was measured."""
    cases = [case for case in cases if _placed(case)]
    if not any(arm.is_apex and arm.versus for case in cases for arm in case.arms):
        return []
    columns = list(dict.fromkeys(_column(case) for case in cases))
    parts = [columns[i : i + MOST_COLUMNS] for i in range(0, len(columns), MOST_COLUMNS)]
    return [_sheet(component, cases, part, index) for index, part in enumerate(parts)]


def _placed(case: Case) -> bool:
    """Whether the case has a width, dtype and direction to be drawn at."""
    return case.config.keys() >= _KEYS and isinstance(case.config["width"], int)


def _sheet(component: str, every: Sequence[Case], columns: list[str], index: int) -> Figure:
    placed = [case for case in every if _column(case) in columns]
    cases = placed[:MOST_CASES]
    arms = list(dict.fromkeys(a.implementation for c in cases for a in c.arms if a.is_apex))[:3]
    panels = [
        (f"{column}, {vocabulary.DIRECTIONS.get(direction, direction)}", own)
        for direction in sorted({str(case.config["direction"]) for case in cases}, key=_direction)
        for column in columns
        if (
            own := [
                case
                for case in cases
                if str(case.config["direction"]) == direction and _column(case) == column
            ]
        )
    ]
    across = min(COLUMNS, len(panels))
    down = -(-len(panels) // across)
    sheet = style.sheet(7.2, 0.7 + 1.9 * down)
    grid = style.axes(sheet, down, across, sharex=True, sharey=True)
    axes = [grid[index // across][index % across] for index in range(down * across)]
    for ax, (heading, panel) in zip(axes, panels, strict=False):
        ax.set_xscale("log", base=2)
        for arm, colour in zip(arms, COLOURS, strict=False):
            _series(sheet, ax, panel, arm, colour)
        ax.set_title(style.short(heading, 40), fontsize=7 if len(heading) > 26 else 8)
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
    _legend(sheet, arms)
    part = vocabulary.APEX_PART.get(component, "Apex")
    finding = _finding(part, placed)
    if len(placed) > len(cases):
        finding += f" The first {len(cases)} of {len(placed)} cases are drawn."
    return Figure(
        f"{component}-ratio" + (f"-{index + 1}" if index else ""),
        component,
        f"{part}: speed relative to torch, by width ({numbers.listing(columns)})",
        "Above the line at 1× Apex is faster, below it torch is; the bars are "
        f"{numbers.confidence(cases[0].confidence)} intervals and the grey band is the 1 % margin. "
        "Solid: against torch's best eager norm; dashed: against everything torch ships, "
        f"torch.compile included. {finding}",
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
        found: list[tuple[int, int, Case, Versus]] = []
        for case in cases:
            arm = case.arm(name)
            versus = case.versus(arm, baseline) if arm else None
            if versus is not None:
                rows = case.config.get("rows")
                size = rows if isinstance(rows, int) else 0
                found.append((case.config["width"], size, case, versus))
        if not found:
            continue
        found.sort(key=lambda entry: entry[:2])
        widest = {width: versus.ratio.value for width, _, _, versus in found}
        sns.lineplot(
            x=list(widest),
            y=list(widest.values()),
            ax=ax,
            color=colour,
            linestyle=line,
            linewidth=1,
            errorbar=None,
            legend=False,
        )
        for width, _, case, versus in found:
            ratio = versus.ratio
            text = (
                f"{name}, {case.name}, against {vocabulary.BASELINE_NAMES[baseline]}: "
                f"{numbers.ratio(ratio.value, ratio.low, ratio.high)} {versus.verdict}, "
                f"n = {versus.rounds}"
            )
            ax.plot([width, width], [ratio.low, ratio.high], color=colour, linewidth=1.2)
            ax.plot(
                width,
                ratio.value,
                "D",
                color=colour,
                markersize=4.2,
                markerfacecolor=colour if filled else "white",
                gid=sheet.title(text),
            )


def _lost(ax: Axes, cases: list[Case]) -> None:
    """Marks of Apex cells without a measurement, on the panel's lower edge."""
    reasons = {}
    for case in cases:
        for arm in case.arms:
            if arm.is_apex and arm.status != "ok":
                mark = vocabulary.STATUS_MARKS.get(arm.status, "✕")
                ax.text(
                    case.config["width"],
                    0.04,
                    mark,
                    transform=ax.get_xaxis_transform(),
                    ha="center",
                    color=style.MUTED,
                    fontsize=8,
                )
                reasons[mark] = vocabulary.status(arm.status)
    if reasons:
        text = ", ".join(f"{mark} {name}" for mark, name in reasons.items())
        ax.text(0.01, 0.15, text, transform=ax.transAxes, color=style.MUTED, fontsize=7)


def _widths(ax: Axes, widths: list[int]) -> None:
    shown = widths if len(widths) <= 6 else widths[:: -(-len(widths) // 6)]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _legend(sheet: style.Sheet, arms: list[str]) -> None:
    handles = [
        Line2D([], [], color=colour, marker="D", markersize=4, label=style.short(name, 30))
        for name, colour in zip(arms, COLOURS, strict=False)
    ]
    handles += [
        Line2D([], [], color=style.MUTED, linestyle="-", label="against best eager"),
        Line2D([], [], color=style.MUTED, linestyle="--", label="against best, compiled too"),
    ]
    sheet.canvas.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), labelcolor=style.INK
    )


def _finding(part: str, cases: Sequence[Case]) -> str:
    def select(arm: Arm) -> bool:
        return arm.is_apex

    found = list(against(cases, "torch_eager_best", select))
    return f"{part} against torch's best eager norm: {tally(found)}."
