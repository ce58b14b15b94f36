"""Several GPUs against one: how much of N times the speed a data-parallel recipe reaches.

A step is of the same batch on N GPUs and on one, which takes it in N parts without DDP; both are
sampled in turn in one process, so their ratio is paired. Efficiency is that ratio over N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apexbench.report import numbers
from apexbench.report.cases import Arm, Case
from apexbench.report.pair import factor
from apexbench.report.repeats import Estimate

FLAG = "+ddp"


@dataclass(frozen=True)
class Scaling:
    """A recipe on ``gpus`` GPUs: its speed relative to one without DDP, and that over ``gpus``."""

    case: str
    recipe: str
    gpus: int
    speedup: Estimate

    @property
    def efficiency(self) -> Estimate:
        """1 where N GPUs are N times as fast as one."""
        speed = self.speedup
        return Estimate(
            speed.value / self.gpus, speed.low / self.gpus, speed.high / self.gpus, speed.processes
        )


def scalings(cases: Sequence[Case]) -> list[Scaling]:
    """Every recipe that was timed on several GPUs and on one, in the cases' order."""
    found = []
    for case in cases:
        for arm in case.arms:
            alone = _alone(case, arm)
            gpus = arm.details.get("gpus")
            if alone is not None and isinstance(gpus, int) and gpus > 1:
                ratio = factor(case, alone, arm)
                found.append(Scaling(case.name, alone.implementation, gpus, ratio))
    return found


def _alone(case: Case, arm: Arm) -> Arm | None:
    """The same recipe on one GPU, where both were timed."""
    if case.component != "transformer" or not arm.implementation.endswith(FLAG):
        return None
    other = case.arm(arm.implementation.removesuffix(FLAG))
    if other is None or case.time(other) is None or case.time(arm) is None:
        return None
    return other


def sentences(cases: Sequence[Case]) -> list[str]:
    """One a recipe: its speed on several GPUs and its efficiency, with their intervals."""
    result = []
    for found in scalings(cases):
        speed, share = found.speedup, found.efficiency
        result.append(
            f"{found.case}: {found.recipe} is "
            f"{numbers.ratio(speed.value, speed.low, speed.high)} as fast as on one GPU without "
            f"DDP, an efficiency of {numbers.share(share.value)} "
            f"[{numbers.share(share.low)}, {numbers.share(share.high)}]."
        )
    return result
