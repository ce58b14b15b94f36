"""Which piece buys what: Shapley values of the log step time of a recipe (method, point 11).

The three pieces are precision, norm and optimizer. A piece's value is the mean, over the orders in
which the pieces can be switched on, of the log step time it saves; the exponentials of the three
values multiply to the whole speed-up. Shapley, A value for n-person games, 1953.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from apexbench.report.cases import Arm, Case
from apexbench.report.names import FLAGS
from apexbench.report.pair import estimate, factor, log_medians
from apexbench.report.repeats import Estimate

PIECES = ("precision", "norm", "optimizer")
_WEIGHTS = {0: 1 / 3, 1: 1 / 6, 2: 1 / 3}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Attribution:
    """Speed-up of the Apex recipe over a baseline recipe, and the factor each piece adds."""

    case: str
    baseline: str
    target: str
    parts: dict[str, Estimate]
    total: Estimate
    apex: Estimate
    """The factor that norm and optimizer add together: what Apex itself brings."""


def recipe(
    case: Case,
    precision: str,
    norm: str,
    optimizer: str,
    *,
    compiled: bool = False,
    cudagraph: bool = False,
) -> Arm | None:
    """The measured arm of a recipe with these fields and no other flag; None if it is not there."""
    wanted = {"compile"} if compiled else set()
    wanted |= {"cudagraph"} if cudagraph else set()
    for arm in case.arms:
        own = arm.details
        fields = tuple(own.get(name) for name in PIECES)
        if fields == (precision, norm, optimizer) and set(flags(arm)) == wanted:
            return arm if case.quantity in arm.times else None
    return None


def flags(arm: Arm) -> list[str]:
    """A recipe's flags, from its label."""
    return arm.implementation.split("+")[3:]


def attribute(case: Case, precision: str, optimizer: str) -> Attribution | None:
    """Shapley values against ``<precision>+torch+<optimizer>``; None if a cell is missing."""
    switches = ((precision, "fp16"), ("torch", "apex"), (optimizer, "apex"))
    corners = list(product((0, 1), repeat=3))
    arms = [recipe(case, *(switches[i][on] for i, on in enumerate(c))) for c in corners]
    if any(arm is None for arm in arms):
        return None
    cells = [arm for arm in arms if arm is not None]
    place = {corner: i for i, corner in enumerate(corners)}

    def shapley(piece: int) -> Callable[[Array], float]:
        def value(log_times: Array) -> float:
            total = 0.0
            for corner in corners:
                if corner[piece] == 0:
                    on = tuple(1 if i == piece else state for i, state in enumerate(corner))
                    saved = log_times[place[corner]] - log_times[place[on]]
                    total += _WEIGHTS[sum(corner)] * saved
            return float(total)

        return value

    times = log_medians(case, cells)
    parts = {name: estimate(case, times, shapley(i)) for i, name in enumerate(PIECES)}
    first, last = cells[0], cells[-1]
    value = estimate(case, times, lambda log_times: float(log_times[0] - log_times[-1])).value
    whole = factor(case, first, last)  # the pair has one interval in all of a report
    total = Estimate(value, min(whole.low, value), max(whole.high, value), whole.processes)
    norm, update = shapley(PIECES.index("norm")), shapley(PIECES.index("optimizer"))
    apex = estimate(case, times, lambda log_times: norm(log_times) + update(log_times))
    return Attribution(case.name, first.implementation, last.implementation, parts, total, apex)


def missing_cells(case: Case, precision: str, optimizer: str) -> list[str]:
    """Labels of the factorial's cells that this case does not hold."""
    corners = product((precision, "fp16"), ("torch", "apex"), (optimizer, "apex"))
    return ["+".join(corner) for corner in corners if recipe(case, *corner) is None]


BARS = {**FLAGS, "compile": "compile"}


def extras(case: Case) -> dict[str, Estimate]:
    """What a flag (torch.compile, CUDA graph, …) adds to the same recipe without it, if timed."""
    timed = {arm.implementation: arm for arm in case.arms if case.time(arm) is not None}
    result: dict[str, Estimate] = {}
    for label, arm in timed.items():
        own = flags(arm) if "precision" in arm.details else []
        for flag in reversed(own):
            rest = [name for name in own if name != flag]
            plain = timed.get("+".join([*label.split("+")[:3], *rest]))
            if plain is not None:
                result[f"{BARS.get(flag, flag)} ({label})"] = factor(case, plain, arm)
    return result
