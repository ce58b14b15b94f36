"""Claim C4: torch.amp against apex.amp, in speed and in what became of scale and loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apexbench.report import names, numbers
from apexbench.report.cases import Arm, Case
from apexbench.report.claim import MIXED, NOT_TESTED, REFUTED, SUPPORTED, Claim, is_apex
from apexbench.report.pair import pair
from apexbench.report.verdicts import missing_reason
from apexbench.report.vocabulary import RELATION

TOLERANCE = 0.02
"""How far a loss may lie above FP32's, as a part of it, and at least so many units of it."""
HOLDS, FAILS, OPEN = "holds", "fails", "open"
UNITS = {"mlp": "nats", "transformer_block": "of mean squared error"}
MOST_SENTENCES = 8


def amp_obsolete(cases: Sequence[Case]) -> Claim:
    """C4: apex.amp's arms against torch's, in speed and in stability, case by case."""
    evidence: list[str] = []
    found: list[str] = []
    for case in cases:
        outcomes, said = _case(case)
        found += outcomes
        evidence += said
    evidence += [line for case in cases for line in _endings(case)][:MOST_SENTENCES]
    if not found:
        evidence.insert(0, _untested(cases))
        return Claim("C4", NOT_TESTED, evidence)
    decided = len(found) - found.count(OPEN)
    status = MIXED
    if found.count(OPEN) < decided:
        if found.count(HOLDS) == decided:
            status = SUPPORTED
        elif found.count(FAILS) == decided:
            status = REFUTED
    return Claim("C4", status, evidence)


def _case(case: Case) -> tuple[list[str], list[str]]:
    """Of each arm of apex.amp: whether torch's is as fast and as stable, and the sentences."""
    apex = [arm for arm in case.arms if _scales(arm) and case.time(arm) is not None]
    rival = torch_fp16(case)
    if not apex or rival is None:
        absent = rival is None and apex
        return [], [f"{case.name}: no arm of torch.amp in float16 is in this run."] * bool(absent)
    if case.time(rival) is None:
        what = f"{names.name(case, rival)} {names.predicate(rival.status)}: {rival.reason}"
        if rival.status != "diverged":
            return [], [f"{case.name}: {what}; apex.amp has no rival there."]
        steady = [arm for arm in apex if unstable(case, arm) is None]
        shown = numbers.listing([names.name(case, arm) for arm in steady or apex])
        also = "did not" if steady else "is not stable either"
        return [FAILS if steady else OPEN], [f"{case.name}: {what}; {shown} {also}."]
    outcomes, said = [], []
    shaken = unstable(case, rival)
    if shaken:
        said.append(f"{case.name}: {names.name(case, rival)} is not stable: {shaken}.")
    for arm in apex:
        result = pair(case, rival, arm)
        speed = (
            f"{case.name}: {names.name(case, arm)} is {RELATION[result.verdict]} "
            f"{names.name(case, rival)}, "
            f"{numbers.ratio(result.ratio.value, result.ratio.low, result.ratio.high)}"
        )
        own = unstable(case, arm)
        said.append(f"{speed}, but it is not stable: {own}." if own else f"{speed}.")
        if own or result.verdict == "unclear":
            outcomes.append(FAILS if shaken and not own else OPEN)
        else:
            outcomes.append(FAILS if shaken or result.verdict == "faster" else HOLDS)
    return outcomes, said


def torch_fp16(case: Case) -> Arm | None:
    """torch.amp's arm: float16 autocast with GradScaler, timed or not."""
    found = [
        arm
        for name in ("gradscaler", "fp16", "float16")
        for arm in case.arms
        if not arm.is_apex and name in arm.implementation.lower()
    ]
    return next((arm for arm in found if case.time(arm)), found[0] if found else None)


def unstable(case: Case, arm: Arm) -> str | None:
    """Why a run of training with this arm cannot be called stable; None where nothing says so.

    Its loss did not fall, or ended above FP32's by more than the tolerance (the least loss of the
    case where there is no FP32 arm); or the loss scaler skipped half of its steps or more.
    """
    details = arm.details
    if arm.status == "diverged":
        return f"it diverged: {arm.reason}"
    loss, first = number(details, "loss"), number(details, "first_loss")
    unit = UNITS.get(str(case.config.get("model")), "")
    if "loss" in details and loss is None:
        return "its loss is not finite"
    if loss is not None:
        text = f"{numbers.significant(loss)} {unit}".strip()
        if first is not None and loss > first:
            return f"its loss rose from {numbers.significant(first)} to {text}"
        best = _reference(case)
        allowed = TOLERANCE * max(1.0, abs(best or 0.0))
        if best is not None and loss > best + allowed:
            return (
                f"its loss ended at {text}, more than {numbers.significant(allowed)} above the "
                f"{numbers.significant(best)} without mixed precision"
            )
    skipped, steps = number(details, "skipped_steps"), number(details, "steps")
    if skipped is not None and steps is not None and 2 * skipped >= steps > 0:
        return f"the loss scaler skipped {int(skipped)} of {numbers.plural(int(steps), 'step')}"
    return None


def number(details: dict[str, object], key: str) -> float | None:
    """A finite number among an arm's details; None where it is anything else."""
    value = details.get(key)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None  # type: ignore[arg-type]


def _reference(case: Case) -> float | None:
    """FP32's loss."""
    arms = [arm for arm in case.arms if "fp32" in arm.implementation or _is_o0(arm)]
    found = [loss for arm in arms if (loss := number(arm.details, "loss")) is not None]
    return min(found, default=None)


def _is_o0(arm: Arm) -> bool:
    return arm.is_apex and arm.implementation.lower().endswith("o0")


def _scales(arm: Arm) -> bool:
    """Whether an arm is apex.amp in the modes that torch.amp replaces (O1, O2)."""
    return arm.is_apex and not arm.implementation.lower().endswith(("o0", "o3"))


def _untested(cases: Sequence[Case]) -> str:
    """Why nothing could be judged: apex.amp's own reason, or that its rival is what is missing."""
    timed = [case for case in cases for arm in case.arms if _scales(arm) and case.time(arm)]
    if timed:
        return "apex.amp was measured, but there is no measured torch.amp to compare it with."
    reason = missing_reason(cases, is_apex)
    if reason:
        return f"apex.amp's speed was not measured ({reason})."
    return "apex.amp's speed was not measured: no arm of this run uses it."


def _endings(case: Case) -> list[str]:
    """Each arm's last loss, with its unit, and the steps that its loss scaler skipped."""
    lines = []
    unit = UNITS.get(str(case.config.get("model")), "")
    for arm in case.arms:
        if arm.status != "ok":
            continue
        loss, skipped = number(arm.details, "loss"), number(arm.details, "skipped_steps")
        parts = []
        if loss is not None:
            parts.append(f"a loss of {numbers.significant(loss)} {unit}".strip())
        if skipped is not None:
            parts.append(numbers.plural(int(skipped), "skipped step"))
        if parts:
            lines.append(f"{case.name}: {names.name(case, arm)} ended with {' and '.join(parts)}.")
    return lines
