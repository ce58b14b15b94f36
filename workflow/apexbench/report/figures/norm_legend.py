"""What the figures of the norms share: colours, the key under them, hover text, the finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from matplotlib.lines import Line2D

from apexbench.report import names, numbers, vocabulary
from apexbench.report.cases import Arm, Case, Versus
from apexbench.report.figures import style
from apexbench.report.verdicts import against, tally

BASELINES: dict[str, tuple[Literal["-", "--"], bool]] = {
    "torch_eager_best": ("-", True),
    "torch_best": ("--", False),
}
COLOURS = (style.ORANGE, style.PINK, style.AMBER)
KEY = "the bars are {level} intervals and the grey band is the 1 % margin."
COMPILED = "against everything torch ships, torch.compile included"


def level(cases: Sequence[Case]) -> str:
    """The intervals' confidence in words."""
    return numbers.confidence(cases[0].confidence)


def apex_arms(cases: Sequence[Case]) -> list[str]:
    """The implementations of Apex that occur, as many as there are colours."""
    found = dict.fromkeys(a.implementation for c in cases for a in c.arms if a.is_apex)
    return list(found)[: len(COLOURS)]


def mark(name: str, case: Case, versus: Versus) -> str:
    """Hover text of an implementation's mark: who against whom, value, interval, verdict, n."""
    ratio, arm = versus.ratio, case.arm(name)
    return (
        f"{names.name(case, arm) if arm else name}, {case.name}, "
        f"against {vocabulary.BASELINE_NAMES[versus.baseline]}: "
        f"{numbers.ratio(ratio.value, ratio.low, ratio.high)} {versus.verdict}, "
        f"n = {versus.rounds}"
    )


def legend(
    sheet: style.Sheet, cases: Sequence[Case], arms: Sequence[str], lines: bool = True
) -> None:
    """One legend above the axes: a colour per arm, a line or marker per baseline."""
    shown = {
        arm: next((c, a) for c in cases for a in c.arms if a.implementation == arm) for arm in arms
    }
    handles = [
        Line2D([], [], color=colour, marker="D", markersize=4, linestyle="", label=label)
        for (name, found), colour in zip(shown.items(), COLOURS, strict=False)
        if (label := numbers.short(names.name(*found), 40))
    ]
    for text, (line, filled) in zip(
        ("against best eager", "against best, compiled too"), BASELINES.values(), strict=True
    ):
        face = style.MUTED if filled else "white"
        handles.append(
            Line2D(
                [],
                [],
                color=style.MUTED,
                marker="D",
                markersize=4,
                markerfacecolor=face,
                linestyle=line if lines else "",
                label=text,
            )
        )
    sheet.canvas.legend(
        handles=handles,
        loc="outside upper right",
        ncols=len(handles) if len(handles) < 4 else 2,
        labelcolor=style.INK,
        columnspacing=1.2,
        handletextpad=0.5,
        handlelength=2 if lines else 1,
    )


def result(part: str, cases: Sequence[Case]) -> str:
    """The figure in a sentence: how the verdicts against torch's best eager norm fell."""

    def select(arm: Arm) -> bool:
        return arm.is_apex

    found = list(against(cases, "torch_eager_best", select))
    return f"{part} against torch's best eager norm: {tally(found)}."
