"""The tutorial's parts with its timer and with ours, and which fault of it changed the answer."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.report import numbers
from apexbench.report.cases import Arm, Case

NO_INTERVAL = "one run of 50 iterations, without repeats or an interval"
FAULTS = {
    "A": "its baseline is AdamW as it comes, which is foreach already; AdamW(fused=True) is left "
    "out, and the weight decays differ",
    "B_layer_norm": "it adds gradients up over iterations, and the gradient of y.sum() is "
    "expanded, so that Apex must copy it",
    "B_rms_norm": "it has no torch RMSNorm to compare with, and it adds expanded gradients up",
}


def lines(cases: Sequence[Case]) -> list[str]:
    """A part's answer by its timer and by ours, and the faults where the two differ."""
    found = []
    for case in cases:
        apex = next((arm for arm in case.arms if arm.is_apex), None)
        base = case.arm("torch_default")
        if apex is None or base is None:
            continue
        theirs = _ratio(apex, base)
        if theirs is None:
            found.append(f"{case.name}: not compared ({apex.status}: {apex.reason}).")
            continue
        text = f"{case.name}: the tutorial's timer has Apex at {theirs:.2f}× torch ({NO_INTERVAL})"
        ours = case.versus(apex, "torch_default")
        if ours is None:
            found.append(f"{text}; ours has no comparison.")
            continue
        ratio = numbers.ratio(ours.ratio.value, ours.ratio.low, ours.ratio.high)
        text += f"; ours has it at {ratio}, {ours.verdict}"
        best = case.versus(apex, "torch_eager_best")
        if best is not None and best.members != ours.members:
            versus = numbers.ratio(best.ratio.value, best.ratio.low, best.ratio.high)
            text += f", and {versus}, {best.verdict}, against torch's best"
        verdicts = {ours.verdict, *([best.verdict] if best is not None else [])}
        said = "faster" if theirs > 1 else "slower"
        if verdicts != {said}:
            text += f". The answer changes: {FAULTS[str(case.config.get('part'))]}"
        found.append(f"{text}.")
    return found


def _ratio(apex: Arm, base: Arm) -> float | None:
    """How fast Apex is by the tutorial's timer, torch being 1."""
    mine, theirs = base.details.get("tutorial_ns"), apex.details.get("tutorial_ns")
    if not isinstance(mine, int | float) or not isinstance(theirs, int | float):
        return None
    return float(mine) / float(theirs) if mine > 0 and theirs > 0 else None
