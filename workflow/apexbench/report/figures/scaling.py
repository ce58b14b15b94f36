"""Claim C6: the speed-up against the number of parameters, points and fitted slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.ticker import FuncFormatter, NullLocator

from apexbench.report import numbers, scaling
from apexbench.report.cases import Case
from apexbench.report.figures import style
from apexbench.report.figures.style import Figure

SERIES = (
    ("tutorial recipe over FP32", scaling.BASELINE, scaling.TUTORIAL, style.BLUE, "o"),
    ("AMP alone over FP32", scaling.BASELINE, scaling.TORCH_AMP, style.SKY, "s"),
    (
        "Apex's part, over torch's fp16 recipe",
        scaling.TORCH_AMP,
        scaling.TUTORIAL,
        style.ORANGE,
        "D",
    ),
)


def draw(cases: Sequence[Case]) -> Figure | None:
    """Points, and a line within their range where there are four sizes; None below two sizes."""
    found = [(*entry, scaling.points(cases, entry[1], entry[2])) for entry in SERIES]
    if max((len(points) for *_, points in found), default=0) < 2:
        return None
    confidence = cases[0].confidence
    sheet = style.sheet(6.4, 3.0)
    ax = style.axes(sheet)[0][0]
    sentences = []
    ax.set_xscale("log")
    for name, _, _, colour, marker, points in found:
        for point in points:
            ratio = point.ratio
            text = (
                f"{name}, {point.case}, {numbers.count(point.parameters)} parameters: "
                f"{numbers.ratio(ratio.value, ratio.low, ratio.high)}"
            )
            ax.plot([point.parameters] * 2, [ratio.low, ratio.high], color=colour, linewidth=1.4)
            ax.plot(
                point.parameters,
                ratio.value,
                marker,
                color=colour,
                markersize=5,
                gid=sheet.title(text),
            )
        slope = scaling.fit(points, confidence)
        if slope is not None:
            ends = [points[0].parameters, points[-1].parameters]
            line = [
                math.exp(slope.intercept + math.log(slope.per_doubling.value) * math.log2(x))
                for x in ends
            ]
            ax.plot(ends, line, color=colour, linewidth=0.9)
            step = slope.per_doubling
            sentences.append(
                f"{name}: {numbers.ratio(step.value, step.low, step.high)} per doubling."
            )
        ax.plot([], [], marker, color=colour, label=name)
    style.ratio_axis(ax)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.count(value, plain=True)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("parameters")
    ax.set_ylabel("speed-up")
    sheet.canvas.legend(loc="outside upper right", ncols=3, labelcolor=style.INK, fontsize=8)
    finding = " ".join(sentences) or (
        f"A slope needs {scaling.FEWEST_SIZES} sizes; this run has fewer, so none is fitted."
    )
    return Figure(
        "transformer-scaling",
        "transformer",
        "Transformer: speed-up against model size",
        "Speed-up of each piece against the number of parameters, with "
        f"{numbers.confidence(confidence)} intervals; the lines are least-squares "
        f"fits within the measured range. {finding}",
        finding,
        sheet.svg(),
    )
