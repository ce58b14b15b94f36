"""The attribution waterfall: from the baseline's speed to the tutorial recipe's, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from apexbench.report import numbers
from apexbench.report.attribution import Attribution, attribute, extras
from apexbench.report.cases import Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure
from apexbench.report.repeats import Estimate

BASELINES = (("fp32", "default"), ("tf32", "default"), ("fp32", "fused"))
COLOURS = {"precision": style.BLUE, "norm": style.ORANGE, "optimizer": style.AMBER}
MOST_CASES = 6


def draw(cases: Sequence[Case]) -> Figure | None:
    """A row per model, a column per baseline; None where no factorial is complete."""
    found: dict[tuple[str, tuple[str, str]], Attribution] = {}
    shown: list[Case] = []
    for case in cases:
        own = {(case.name, s): entry for s in BASELINES if (entry := attribute(case, *s))}
        if own:
            found |= own
            shown.append(case)
        if len(shown) == MOST_CASES:
            break
    if not shown:
        return None
    starts = [start for start in BASELINES if any(key[1] == start for key in found)]
    more = {case.name: extras(case) for case in shown}
    tallest = 5 + max(len(entry) for entry in more.values())
    sheet = style.sheet(7.2, 0.4 + len(shown) * (0.5 + 0.17 * tallest))
    grid = style.axes(sheet, len(shown), len(starts), sharex=True, sharey="row")
    for row, case in zip(grid, shown, strict=True):
        for ax, start in zip(row, starts, strict=True):
            entry = found.get((case.name, start))
            if entry is None:
                ax.text(0.05, 0.5, "○ cells missing", transform=ax.transAxes, color=style.MUTED)
                continue
            extra = more[case.name] if start == starts[0] else {}
            labels = _bars(sheet, ax, entry, extra)
            if start == starts[0]:
                ax.set_yticks(range(len(labels)), labels)
                ax.set_ylim(len(labels) - 0.4, -0.6)
                ax.set_ylabel(numbers.short(case.name, 24), fontweight="bold")
            ax.set_title(f"from {start[0]} + {start[1]}")
    totals = [entry.total.value for entry in found.values()]
    totals += [part.value for entry in more.values() for part in entry.values()]
    grid[0][0].set_xlim(min(0.8, *totals) * 0.95, max(1.2, *totals) * 2.2)
    for row in grid:
        for ax in row:
            style.ratio_axis(ax, "x")
            ax.grid(axis="y", visible=False)
    for ax in grid[-1]:
        ax.set_xlabel("speed, log scale")
    finding = " ".join(_finding(entry) for entry in list(found.values())[:3])
    return Figure(
        "transformer-attribution",
        "transformer",
        "Transformer: which piece buys the speed",
        "Each bar is the Shapley value of one piece and starts where the one above ends; the last "
        "of a waterfall is the whole gain. torch.compile and CUDA graphs are separate bars from "
        f"1×. The axis is logarithmic and starts at 1×. {finding}",
        finding,
        sheet.svg(),
    )


def _bars(
    sheet: style.Sheet, ax: Axes, entry: Attribution, extra: dict[str, Estimate]
) -> list[str]:
    start = 1.0
    labels: list[str] = []
    for name, part in entry.parts.items():
        end = start * part.value
        _bar(sheet, ax, len(labels), start, end, COLOURS[name], f"{name}: {_text(part)}", part)
        ax.plot([end, end], [len(labels), len(labels) + 1], color=style.MUTED, linewidth=0.6)
        labels.append(name)
        start = end
    total = f"{entry.target} over {entry.baseline}: {_text(entry.total)}"
    _bar(sheet, ax, len(labels), 1.0, entry.total.value, style.MUTED, total, entry.total)
    labels.append("all three")
    for name, part in extra.items():
        _bar(sheet, ax, len(labels), 1.0, part.value, style.SKY, f"{name}: {_text(part)}", part)
        labels.append(name.split(" (")[0])
    return labels


def _bar(
    sheet: style.Sheet,
    ax: Axes,
    y: int,
    start: float,
    end: float,
    colour: str,
    text: str,
    part: Estimate,
) -> None:
    ax.barh(y, end - start, left=start, height=0.62, color=colour, linewidth=0)
    ax.patches[-1].set_gid(sheet.title(text))
    ax.plot([start * part.low, start * part.high], [y, y], color=style.INK, linewidth=1)
    ax.annotate(
        numbers.ratio(part.value),
        (max(start, end, start * part.high), y),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=style.INK,
    )


def _text(part: Estimate) -> str:
    return numbers.ratio(part.value, part.low, part.high)


def _finding(entry: Attribution) -> str:
    parts = numbers.listing([f"{name} {_text(part)}" for name, part in entry.parts.items()])
    gain = f"{entry.case}, {entry.target} over {entry.baseline}: {_text(entry.total)}"
    return f"{gain}, of which {parts}."
