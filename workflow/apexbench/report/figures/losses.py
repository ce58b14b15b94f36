"""Training loss against step for every recipe: does the fast recipe still learn?"""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.lines import Line2D

from apexbench.report import loss_gate, numbers
from apexbench.report.cases import Arm, Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure

COLOURS = {"fp32": style.INK, "tf32": style.GREEN, "fp16": style.ORANGE, "bf16": style.BLUE}
MOST_CASES = 4
LABELLED = 8


def curve(arm: Arm) -> list[tuple[float, float]]:
    """(step, loss in nats/token) pairs that the recipe recorded."""
    entries = arm.details.get("losses")
    if not isinstance(entries, list):
        return []
    return [
        (float(entry[0]), float(entry[1]))
        for entry in entries
        if isinstance(entry, list)
        and len(entry) == 2
        and all(isinstance(part, int | float) for part in entry)
    ]


def draw(cases: Sequence[Case]) -> Figure | None:
    """A panel per model; None where no recipe recorded a loss."""
    shown = [case for case in cases if any(curve(arm) for arm in case.arms)][:MOST_CASES]
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    sheet = style.sheet(7.2, 0.6 + 2.2 * rows)
    flat = [ax for row in style.axes(sheet, rows, columns) for ax in row]
    for ax, case in zip(flat, shown, strict=False):
        for arm in case.arms:
            points = curve(arm)
            if not points:
                continue
            colour = COLOURS.get(str(arm.details.get("precision")), style.PINK)
            steps, losses = zip(*points, strict=True)
            before = len(ax.lines)
            sns.lineplot(
                x=list(steps),
                y=list(losses),
                ax=ax,
                color=colour,
                linewidth=0.9,
                errorbar=None,
                linestyle="--" if arm.is_apex else "-",
                legend=False,
                alpha=0.85,
            )
            held = arm.details.get("held_out_loss")
            text = f"{arm.implementation}, {case.name}: "
            text += (
                f"held-out loss {numbers.significant(held)} nats/token"
                if isinstance(held, int | float)
                else "no held-out loss"
            )
            for line in ax.lines[before:]:
                line.set_gid(sheet.title(text))
        floor = _floor(case)
        if floor is not None:
            ax.axhline(floor, color=style.MUTED, linewidth=1, linestyle=":")
            ax.text(
                0.99,
                floor,
                "corpus entropy",
                transform=ax.get_yaxis_transform(),
                ha="right",
                va="top",
                fontsize=8,
                color=style.MUTED,
            )
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.12 * (high - low), high)
        ax.set_title(numbers.short(case.name, 40))
        ax.set_xlabel("step")
        ax.set_ylabel("loss (nats/token)")
    for ax in flat[len(shown) :]:
        ax.set_axis_off()
    present = {str(arm.details.get("precision")) for case in shown for arm in case.arms}
    handles = [
        Line2D([], [], color=c, label=name) for name, c in COLOURS.items() if name in present
    ]
    handles += [
        Line2D([], [], color=style.MUTED, linestyle="-", label="torch only"),
        Line2D([], [], color=style.MUTED, linestyle="--", label="with Apex"),
    ]
    sheet.canvas.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), labelcolor=style.INK
    )
    finding = " ".join(_finding(case) for case in shown)
    return Figure(
        "transformer-loss",
        "transformer",
        "Transformer: training loss",
        "Training loss of every recipe on the same data in the same order; the dotted line is the "
        f"entropy that no model can go below. Curves that coincide learn equally well. {finding}",
        finding,
        sheet.svg(),
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float)


def _floor(case: Case) -> float | None:
    values = [arm.details.get("loss_floor") for arm in case.arms]
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def _gate(case: Case) -> str:
    """Whether the spread of the losses says anything: only the gate over seeds does."""
    judged = [gate for arm in case.arms if (gate := loss_gate.judge(case, arm))]
    if not judged:
        return "no recipe is shown to learn better or worse: that needs more seeds"
    worse = sum(gate.verdict == loss_gate.DIVERGED for gate in judged)
    return f"over seeds, {numbers.plural(worse, 'recipe')} of {len(judged)} learn worse than FP32"


def _finding(case: Case) -> str:
    held = [
        float(arm.details["held_out_loss"])
        for arm in case.arms
        if _number(arm.details.get("held_out_loss"))
    ]
    if not held:
        return f"{case.name}: no held-out loss was recorded."
    low, high = min(held), max(held)
    floor = _floor(case)
    below = f"; the floor is {numbers.significant(floor)}" if floor is not None else ""
    return (
        f"{case.name}: held-out loss between {numbers.significant(low)} and "
        f"{numbers.significant(high)} nats/token over "
        f"{numbers.plural(len(held), 'recipe')}{below}; {_gate(case)}."
    )
