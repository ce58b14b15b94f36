"""Norm cases measured at a single width: a row of dots with intervals per case and Apex arm."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.report import numbers, vocabulary
from apexbench.report.cases import Case
from apexbench.report.figures import style
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

MOST_CASES = 24


def draw(component: str, cases: Sequence[Case]) -> list[Figure]:
    """One figure, or none where no arm of Apex was compared in any of the cases."""
    if not any(arm.is_apex and arm.versus for case in cases for arm in case.arms):
        return []
    shown = list(cases)[:MOST_CASES]
    arms = apex_arms(shown)
    step = 0.26 * (len(arms) - 1)
    sheet = style.sheet(7.2, 1.1 + len(shown) * (0.16 + 0.14 * len(arms)))
    ax = style.axes(sheet)[0][0]
    ends = [1.0]
    for row, case in enumerate(shown):
        for place, (name, colour) in enumerate(zip(arms, COLOURS, strict=False)):
            arm, y = case.arm(name), row - step / 2 + 0.26 * place
            if arm is None:
                continue
            found = [(v, look) for b, look in BASELINES.items() if (v := case.versus(arm, b))]
            if not found:
                style.lost_mark(ax, 0.01, y, arm.status)
            for versus, (_, filled) in found:
                ratio, gid = versus.ratio, sheet.title(mark(name, case, versus))
                ends += [ratio.low, ratio.high]
                ax.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=1.4)
                face = colour if filled else "white"
                ax.plot(ratio.value, y, "D", color=colour, ms=4.4, markerfacecolor=face, gid=gid)
    words = vocabulary.distinct(shown)
    ax.set_yticks(range(len(shown)), [numbers.short(words[case.name], 56) for case in shown])
    ax.set_ylim(len(shown) - 0.45, -0.55)
    ax.set_xlim(min(ends) / 1.1, max(ends) * 1.1)
    ax.axvspan(1 / 1.01, 1.01, color=style.GRID, alpha=0.6, linewidth=0)
    style.ratio_axis(ax, "x")
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("speed against torch, log scale")
    legend(sheet, shown, arms, lines=False)
    part = vocabulary.APEX_PART.get(component, "Apex")
    finding = result(part, shown)
    if len(cases) > len(shown):
        finding += f" The first {len(shown)} of {len(cases)} cases are drawn."
    return [
        Figure(
            f"{component}-ratio-rows",
            component,
            f"{part}: speed relative to torch, cases at one width",
            "Right of the line at 1× Apex is faster, left of it torch is; "
            f"{KEY.format(level=level(shown))} Filled: against torch's best eager norm; open: "
            f"{COMPILED}. {numbers.sentence(finding)}",
            finding,
            sheet.svg(),
        )
    ]
