"""Speed of Apex's norms relative to torch's, over width, by dtype and direction."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
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
_KEYS = {"width", "dtype", "direction"}


def draw(component: str, cases: Sequence[Case]) -> Figure | None:
    """A panel per direction (rows) and dtype (columns); None without a case that has both."""
    cases = [case for case in cases if case.config.keys() >= _KEYS]
    if not cases:
        return None
    directions = sorted({str(case.config["direction"]) for case in cases}, key=_direction)
    columns = list(dict.fromkeys(_column(case) for case in cases))[:4]
    arms = list(dict.fromkeys(a.implementation for c in cases for a in c.arms if a.is_apex))[:3]
    sheet = style.sheet(7.2, 0.7 + 1.75 * len(directions))
    grid = style.axes(sheet, len(directions), len(columns), sharex=True, sharey=True)
    widths = sorted({int(case.config["width"]) for case in cases})
    for row, direction in zip(grid, directions, strict=True):
        for ax, column in zip(row, columns, strict=True):
            panel = [
                c for c in cases if str(c.config["direction"]) == direction and _column(c) == column
            ]
            ax.set_xscale("log", base=2)
            for arm, colour in zip(arms, COLOURS, strict=False):
                _series(sheet, ax, panel, arm, colour)
            ax.set_title(f"{column}, {vocabulary.DIRECTIONS.get(direction, direction)}")
    if not any(
        versus for case in cases for arm in case.arms if arm.is_apex for versus in arm.versus
    ):
        grid[0][0].set_ylim(0.5, 2)
    for row in grid:
        for ax in row:
            if ax is grid[0][0] and any(
                a.status != "ok" for c in cases for a in c.arms if a.is_apex
            ):
                low, high = ax.get_ylim()
                ax.set_ylim(low * (low / high) ** 0.3, high)
            ax.set_xlim(widths[0] / 1.25, widths[-1] * 1.25)
            style.ratio_axis(ax)
            ax.axhspan(1 / 1.01, 1.01, color=style.GRID, alpha=0.6, linewidth=0)
            _widths(ax, widths)
        row[0].set_ylabel("speed against torch")
    for ax in grid[-1]:
        ax.set_xlabel("width")
    for row, direction in zip(grid, directions, strict=True):
        for ax, column in zip(row, columns, strict=True):
            _lost(
                ax,
                [
                    c
                    for c in cases
                    if str(c.config["direction"]) == direction and _column(c) == column
                ],
            )
    _legend(sheet, arms)
    part = vocabulary.APEX_PART.get(component, "Apex")
    finding = _finding(part, cases)
    return Figure(
        f"{component}-ratio",
        component,
        f"{part}: speed relative to torch, by width",
        "Above the line at 1× Apex is faster, below it torch is; the bars are "
        f"{numbers.confidence(cases[0].confidence)} intervals and the grey band is the 1 % margin. Solid: against torch's best eager norm; dashed: against "
        f"everything torch ships, torch.compile included. {finding}",
        finding,
        sheet.svg(),
    )


def _direction(name: str) -> int:
    return DIRECTIONS.index(name) if name in DIRECTIONS else len(DIRECTIONS)


def _column(case: Case) -> str:
    return str(case.config["dtype"]) + (" autocast" if case.config.get("autocast") else "")


def _series(sheet: style.Sheet, ax: style.Axes, cases: list[Case], name: str, colour: str) -> None:
    for baseline, (line, filled) in BASELINES.items():
        found: list[tuple[int, int, Case, Versus]] = []
        for case in cases:
            arm = case.arm(name)
            versus = case.versus(arm, baseline) if arm else None
            if versus is not None:
                rows = int(case.config.get("rows") or 0)
                found.append((int(case.config["width"]), rows, case, versus))
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


def _lost(ax: style.Axes, cases: list[Case]) -> None:
    """Marks of Apex cells without a measurement, on the panel's lower edge."""
    reasons = {}
    for case in cases:
        for arm in case.arms:
            if arm.is_apex and arm.status != "ok":
                mark = vocabulary.STATUS_MARKS.get(arm.status, "✕")
                ax.text(
                    int(case.config["width"]),
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


def _widths(ax: style.Axes, widths: list[int]) -> None:
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
    if not found:
        return (
            f"{part} has no measured point on this machine; its cells are marked with their status."
        )
    return f"{part} against torch's best eager norm: {tally(found)}."
