"""Distance to the limit: the ceilings measured in the same run, and each arm's share (point 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apexbench.report.cases import Arm, Case

MATMUL = {
    "fp32": "matmul_float32",
    "tf32": "matmul_tf32",
    "fp16": "matmul_float16",
    "bf16": "matmul_bfloat16",
}


@dataclass(frozen=True)
class Ceiling:
    """The best rate one ceiling reached on one device, in bytes/s or FLOP/s."""

    name: str
    per_second: float
    unit: str
    case: str


Ceilings = dict[tuple[tuple[str, str], str], Ceiling]


def measured(cases: Sequence[Case]) -> Ceilings:
    """The best rate of every ceiling, by (device, ceiling name)."""
    best: Ceilings = {}
    for case in cases:
        if case.component != "ceiling":
            continue
        for arm in case.arms:
            time = case.time(arm)
            flops = arm.details.get("flops", case.work.flops)
            moved = arm.details.get("bytes", case.work.bytes)
            unit = "B/s" if arm.implementation == "copy" else "FLOP/s"
            work = moved if arm.implementation == "copy" else flops
            if time is None or not isinstance(work, int | float) or work <= 0:
                continue
            ceiling = Ceiling(arm.implementation, work / time.value * 1e9, unit, case.name)
            key = (case.device, arm.implementation)
            if key not in best or ceiling.per_second > best[key].per_second:
                best[key] = ceiling
    return best


def share(case: Case, arm: Arm, quantity: str, ceilings: Ceilings) -> float | None:
    """The fraction of the ceiling that ``arm`` reaches in ``quantity``, or None where none holds.

    A Transformer step is bounded by the matmul ceiling of its precision; its FLOPs a token are
    ``6·N_matmul + 6·L·d·T`` (recompute never counts).
    """
    time = arm.times.get(quantity)
    if time is None or case.component == "ceiling":
        return None
    if case.component == "transformer":
        return utilization(case, arm, "flops_per_token", ceilings)
    ceiling = ceilings.get((case.device, case.work.ceiling or ""))
    work = case.work.bytes if ceiling and ceiling.unit == "B/s" else case.work.flops
    if ceiling is None or work is None or case.work.reason is not None:
        return None
    return work / time.value * 1e9 / ceiling.per_second


def utilization(case: Case, arm: Arm, count: str, ceilings: Ceilings) -> float | None:
    """Model FLOPs utilization: ``count`` FLOPs a token × tokens/s over the GPUs' matmul ceiling."""
    time, flops = arm.times.get("step_time"), arm.details.get(count)
    tokens = arm.details.get("tokens_per_step")
    name = MATMUL.get(str(arm.details.get("precision")))
    ceiling = ceilings.get((case.device, name or ""))
    if time is None or ceiling is None:
        return None
    if not isinstance(flops, int | float) or not isinstance(tokens, int | float):
        return None
    gpus = arm.details.get("gpus", 1)
    return flops * tokens / time.value * 1e9 / (ceiling.per_second * gpus)


def no_share(case: Case) -> str:
    """Why a case shows no share of a ceiling, in a few words."""
    if case.work.reason:
        return f"n/a: {case.work.reason}"
    if case.work.ceiling is None and case.component != "transformer":
        return "n/a: no ceiling applies"
    return "n/a: ceiling not measured"
