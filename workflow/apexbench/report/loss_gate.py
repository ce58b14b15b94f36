"""Does a fast recipe still learn? Held-out loss against FP32, paired over seeds (method, point 10).

Each seed gives first weights and a data order that all recipes share, so the difference of two
recipes' held-out losses is taken per seed. With ``d`` the mean of n differences and s their
standard deviation, the one-sided 99 % bounds are ``d ± t(0.99, n - 1) · s / √n``: non-inferior
where the upper bound is at most 0.02 nats/token, diverged where the lower one is above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from apexbench.report import numbers
from apexbench.report.cases import Arm, Case
from apexbench.report.scaling import BASELINE as RECIPE

BASELINE = "+".join(RECIPE)
MARGIN = 0.02
CONFIDENCE = 0.99
FEWEST_SEEDS = 5
NON_INFERIOR, DIVERGED, INCONCLUSIVE = "non-inferior", "diverged", "inconclusive"
UNTESTED = f"not tested: needs {FEWEST_SEEDS} seeds"


@dataclass(frozen=True)
class Gate:
    """A recipe's loss against FP32's: mean difference and one-sided bounds in nats/token."""

    verdict: str
    difference: float
    low: float
    high: float
    seeds: int

    @property
    def interval(self) -> str:
        """The difference with its bounds: ``+0.003 [−0.001, +0.007]``."""
        return numbers.difference(self.difference, self.low, self.high)


def losses(case: Case, implementation: str) -> dict[int, float]:
    """Held-out loss in nats/token by seed; a seed repeated by another process counts once."""
    found: dict[int, float] = {}
    for record in case.records:
        for cell in record.cells:
            entries = cell.details.get("held_out_losses")
            if cell.implementation != implementation or not isinstance(entries, list):
                continue
            for entry in entries:
                if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int):
                    value = entry[1]
                    known = isinstance(value, int | float)
                    found.setdefault(entry[0], float(value) if known else math.nan)
    return found


def baseline(case: Case) -> Arm | None:
    """The FP32 recipe that losses are compared with: torch's norm, the default AdamW, eager."""
    return case.arm(BASELINE)


def judge(case: Case, arm: Arm) -> Gate | None:
    """The gate of a recipe, or None with fewer than five seeds that both have."""
    own, theirs = losses(case, arm.implementation), losses(case, BASELINE)
    shared = sorted(own.keys() & theirs.keys())
    if len(shared) < FEWEST_SEEDS:
        return None
    differences = np.array([own[seed] - theirs[seed] for seed in shared])
    if not np.isfinite(differences).all():
        return Gate(DIVERGED, math.nan, math.nan, math.nan, len(shared))
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(shared))
    half = float(stats.t.ppf(CONFIDENCE, len(shared) - 1)) * error
    verdict = INCONCLUSIVE
    if mean + half <= MARGIN:
        verdict = NON_INFERIOR
    elif mean - half > MARGIN:
        verdict = DIVERGED
    return Gate(verdict, mean, mean - half, mean + half, len(shared))


def sentence(cases: Sequence[Case]) -> str | None:
    """The threat: what the gate found over all recipes, or that too few seeds were trained."""
    trained = [
        (case, arm)
        for case in cases
        for arm in case.arms
        if case.component == "transformer" and arm.status == "ok" and arm.implementation != BASELINE
    ]
    if not trained:
        return None
    gates = [(case, arm, judge(case, arm)) for case, arm in trained]
    tested = [(case, arm, gate) for case, arm, gate in gates if gate is not None]
    if not tested:
        seeds = {len(losses(case, arm.implementation)) for case, arm in trained}
        return (
            f"Whether the fast recipes learn as well as FP32 was not tested: the gate needs "
            f"{FEWEST_SEEDS} seeds and the FP32 recipe, this run trained "
            f"{numbers.plural(max(seeds), 'seed')}."
        )
    counts = [
        f"{sum(gate.verdict == name for *_, gate in tested)} {name}"
        for name in (NON_INFERIOR, DIVERGED, INCONCLUSIVE)
    ]
    text = (
        f"Held-out loss against FP32, paired over seeds, within {MARGIN:g} nats/token at "
        f"one-sided {numbers.confidence(CONFIDENCE)}: {numbers.listing(counts)} of "
        f"{numbers.plural(len(tested), 'recipe')}"
    )
    worse = [
        f"{arm.implementation} on {case.name}" for case, arm, g in tested if g.verdict == DIVERGED
    ]
    text += f" (diverged: {numbers.listing(worse)})" if worse else ""
    untested = len(gates) - len(tested)
    return text + (f"; {untested} not tested." if untested else ".")
