"""Claim C6: how a speed-up changes with the number of parameters, as a fitted slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from apexbench.report.attribution import recipe
from apexbench.report.cases import Case
from apexbench.report.pair import factor
from apexbench.report.repeats import Estimate

FEWEST_SIZES = 4
Recipe = tuple[str, str, str]
TUTORIAL: Recipe = ("fp16", "apex", "apex")
BASELINE: Recipe = ("fp32", "torch", "default")
TORCH_AMP: Recipe = ("fp16", "torch", "fused")


@dataclass(frozen=True)
class Comparison:
    """Two recipes whose speed-up is followed over the sizes; ``compiled``: the fast one is."""

    name: str
    slow: Recipe
    fast: Recipe
    compiled: bool = False


WHOLE = (
    Comparison("the tutorial's recipe", BASELINE, TUTORIAL),
    Comparison("autocast to fp16 alone", BASELINE, ("fp16", "torch", "default")),
    Comparison("torch's bf16, fused and compiled", BASELINE, ("bf16", "torch", "fused"), True),
)
"""Recipes over FP32; claim C6 is judged by the first."""
PIECES = (
    Comparison("FusedAdam over AdamW", ("fp16", "torch", "default"), ("fp16", "torch", "apex")),
    Comparison("FusedAdam over AdamW(fused=True)", TORCH_AMP, ("fp16", "torch", "apex")),
    Comparison("FusedLayerNorm over LayerNorm", ("fp16", "torch", "apex"), TUTORIAL),
    Comparison("both over LayerNorm and AdamW(fused=True)", TORCH_AMP, TUTORIAL),
)
"""What Apex adds to fp16: each piece alone, and together over torch's own."""


@dataclass(frozen=True)
class Point:
    """A model's speed-up."""

    case: str
    parameters: float
    ratio: Estimate


@dataclass(frozen=True)
class Slope:
    """Factor by which the speed-up changes per doubling of the parameters, with its interval."""

    points: tuple[Point, ...]
    per_doubling: Estimate
    intercept: float


def points(cases: Sequence[Case], followed: Comparison) -> list[Point]:
    """Speed-up of the one recipe over the other for every model that measured both, by size.

    Where the ladder (one architecture, several sizes) has enough sizes, it alone is used.
    """
    found = []
    for case in cases:
        one = recipe(case, *followed.slow)
        two = recipe(case, *followed.fast, compiled=followed.compiled)
        size = next(
            (a.details["parameters"] for a in (one, two) if a and "parameters" in a.details), 0
        )
        if one is not None and two is not None and isinstance(size, int | float) and size > 0:
            found.append(Point(case.name, float(size), factor(case, one, two)))
    ladder = [point for point in found if point.case.startswith("ladder-")]
    if len({point.parameters for point in ladder}) >= FEWEST_SIZES:
        found = ladder
    return sorted(found, key=lambda point: point.parameters)


def fit(found: Sequence[Point], confidence: float) -> Slope | None:
    """Least squares of log ratio on log2 parameters; None below four sizes."""
    if len({point.parameters for point in found}) < FEWEST_SIZES:
        return None
    x = np.array([math.log2(point.parameters) for point in found])
    y = np.array([math.log(point.ratio.value) for point in found])
    line = stats.linregress(x, y)
    reach = float(stats.t.ppf(0.5 + confidence / 2, len(found) - 2)) * float(line.stderr)
    slope = float(line.slope)
    ends = (math.exp(slope), math.exp(slope - reach), math.exp(slope + reach))
    return Slope(tuple(found), Estimate(*ends, processes=len(found)), float(line.intercept))
