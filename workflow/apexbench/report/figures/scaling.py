"""Claim C6: the speed-up against the number of parameters, points and fitted slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from apexbench.report import numbers, scaling
from apexbench.report.cases import Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure
from apexbench.report.scaling import Point, Slope

# One mark and colour a line.
PANELS = (
    (
        "Whole recipes over FP32",
        scaling.WHOLE,
        ((style.ORANGE, "D"), (style.BLUE, "o"), (style.SKY, "s")),
    ),
    (
        "What Apex adds to fp16",
        scaling.PIECES,
        ((style.AMBER, "v"), (style.ORANGE, "D"), (style.PINK, "^"), (style.GREEN, "o")),
    ),
)
MOST_POINTS = 60
"""Drawn of a line, smallest sizes first; its slope is fitted to all of them."""
ASIDE = 1.07
"""Factor on the number of parameters between two lines' marks."""


def draw(cases: Sequence[Case]) -> Figure | None:
    """Points, and a line within their range where there are four sizes; None below two sizes."""
    found = [
        (
            title,
            [
                (followed.name, *look, scaling.points(cases, followed))
                for followed, look in zip(comparisons, looks, strict=True)
            ],
        )
        for title, comparisons, looks in PANELS
    ]
    shown = [(title, [line for line in lines if line[-1]]) for title, lines in found]
    shown = [(title, lines) for title, lines in shown if lines]
    if max((len(line[-1]) for _, lines in shown for line in lines), default=0) < 2:
        return None
    confidence = cases[0].confidence
    sheet = style.sheet(7.2, 3.5)
    sentences = []
    axes = style.axes(sheet, columns=len(shown))[0]
    axes[0].set_ylabel("speed-up")
    for ax, (title, lines) in zip(axes, shown, strict=True):
        ax.set_title(title)
        ax.set_xscale("log")
        for number, (name, colour, marker, points) in enumerate(lines):
            # Beside one another: pieces that bring the same would hide each other.
            aside = ASIDE ** (number - (len(lines) - 1) / 2)
            _marks(sheet, ax, name, colour, marker, points[:MOST_POINTS], aside)
            if (slope := scaling.fit(points, confidence)) is not None:
                _line(ax, colour, slope)
                step = slope.per_doubling
                told = numbers.ratio(step.value, step.low, step.high)
                sentences.append(numbers.sentence(f"{name}: {told} per doubling"))
        style.ratio_axis(ax)
        ax.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: numbers.count(value, plain=True))
        )
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("parameters")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), labelcolor=style.INK, fontsize=8)
    finding = " ".join(sentences) or (
        f"A slope needs {scaling.FEWEST_SIZES} sizes; this run has fewer, so none is fitted."
    )
    most = max(len(line[-1]) for _, lines in shown for line in lines)
    if most > MOST_POINTS:
        finding += f" The first {MOST_POINTS} of {most} points of a line are drawn."
    return Figure(
        "transformer-scaling",
        "transformer",
        "Transformer: speed-up against model size",
        "Speed-up of each piece against the number of parameters, with "
        f"{numbers.confidence(confidence)} intervals; the lines are least-squares "
        "fits within the measured range, and marks of one size stand beside one another. "
        f"{finding}",
        finding,
        sheet.svg(),
    )


def _marks(
    sheet: style.Sheet,
    ax: Axes,
    name: str,
    colour: str,
    marker: str,
    points: Sequence[Point],
    aside: float,
) -> None:
    for point in points:
        ratio = point.ratio
        text = (
            f"{name}, {point.case}, {numbers.count(point.parameters)} parameters: "
            f"{numbers.ratio(ratio.value, ratio.low, ratio.high)}"
        )
        place = point.parameters * aside
        ax.plot([place] * 2, [ratio.low, ratio.high], color=colour, linewidth=1.4)
        ax.plot(place, ratio.value, marker, color=colour, markersize=5, gid=sheet.title(text))
    ax.plot([], [], marker, color=colour, label=name)


def _line(ax: Axes, colour: str, slope: Slope) -> None:
    ends = [slope.points[0].parameters, slope.points[-1].parameters]
    line = [
        math.exp(slope.intercept + math.log(slope.per_doubling.value) * math.log2(x)) for x in ends
    ]
    ax.plot(ends, line, color=colour, linewidth=0.9)
