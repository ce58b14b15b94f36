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

from apexbench.records import Record
from apexbench.report.cases import Arm, Case
from apexbench.report.names import FLAGS
from apexbench.report.repeats import Estimate, combine, exp, relative, student

PIECES = ("precision", "norm", "optimizer")
BLOCKS = 20
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


def factor(case: Case, slow: Arm, fast: Arm) -> Estimate:
    """How many times faster ``fast`` is than ``slow``, from paired samples where there are any."""

    def log_ratio(log_times: Array) -> float:
        return float(log_times[0] - log_times[1])

    paired = _log_medians(case, [slow, fast])
    if not paired:  # timed in different processes only
        one, two = case.time(slow), case.time(fast)
        assert one is not None
        assert two is not None
        return relative(one, two)
    return _estimate(case, paired, log_ratio)


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

    times = _log_medians(case, cells)
    parts = {name: _estimate(case, times, shapley(i)) for i, name in enumerate(PIECES)}
    first, last = cells[0], cells[-1]
    total = _estimate(case, times, lambda log_times: float(log_times[0] - log_times[-1]))
    norm, update = shapley(PIECES.index("norm")), shapley(PIECES.index("optimizer"))
    apex = _estimate(case, times, lambda log_times: norm(log_times) + update(log_times))
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


def _block_medians(samples: list[Array], sampling: object) -> Array:
    """Median time by arm and block: the record's blocks, or equal ones where it names none."""
    named = sampling.get("block_of_round") if isinstance(sampling, dict) else None
    if len({len(entry) for entry in samples}) > 1:
        blocks = min(BLOCKS, *(len(entry) for entry in samples))
        parts = [np.array_split(entry, blocks) for entry in samples]
        return np.array([[np.median(part) for part in row] for row in parts])
    together = np.array(samples)
    rounds = together.shape[1]
    if isinstance(named, list) and len(named) == rounds:
        labels = np.asarray(named)
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    else:
        groups = np.array_split(np.arange(rounds), min(BLOCKS, rounds))
    return np.stack([np.median(together[:, group], axis=1) for group in groups], axis=1)


def _per_call(record: Record, arm: Arm, quantity: str) -> Array | None:
    """Nanoseconds a call of every window of an arm in one record, if it was timed there."""
    cell = next((c for c in record.cells if c.implementation == arm.implementation), None)
    if cell is None or quantity not in cell.quantities:
        return None
    found = cell.quantities[quantity]
    return np.asarray(found.samples, dtype=np.float64) / found.calls_per_sample


def _log_medians(case: Case, arms: list[Arm]) -> list[Array]:
    """Log median time by arm and block, of every record that timed all arms, so that they pair.

    Where none did (a large model's recipes are divided among records), of every process, from the
    records that hold them: blocks that were not taken in turn are independent of each other.
    """
    timed = [
        (record, [_per_call(record, arm, case.quantity) for arm in arms]) for record in case.records
    ]
    paired = []
    for record, samples in timed:
        if len(known := [entry for entry in samples if entry is not None]) == len(arms):
            paired.append(np.log(_block_medians(known, record.sampling.get(case.quantity))))
    if paired:
        return paired
    apart: dict[int, dict[str, Array]] = {}
    for record, samples in timed:
        for arm, entry in zip(arms, samples, strict=True):
            if entry is not None:
                medians = np.log(_block_medians([entry], record.sampling.get(case.quantity))[0])
                apart.setdefault(record.process, {}).setdefault(arm.implementation, medians)
    whole = [
        found for found in apart.values() if len(found) == len({a.implementation for a in arms})
    ]
    return [
        np.array([found[arm.implementation][: min(map(len, found.values()))] for arm in arms])
        for found in whole
    ]


def _estimate(case: Case, log_times: list[Array], value: Callable[[Array], float]) -> Estimate:
    """exp of a linear function of log step times, with its interval.

    Within a process: Student-t over blocks of rounds, as buffers are allocated anew per block.
    Over processes: as every other estimate of this report.
    """
    estimates = []
    for blocks in log_times:
        values = [value(blocks[:, block]) for block in range(blocks.shape[1])]
        if len(values) < 2:
            estimates.append(Estimate(*(exp(values[0]),) * 3))
        else:
            middle, low, high = student(values, case.confidence)
            estimates.append(Estimate(exp(middle), exp(low), exp(high)))
    return combine(estimates, case.confidence)
