"""Claims C5 and C6: the gain over FP32, and whether it grows with size."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.report import numbers
from apexbench.report.attribution import attribute, missing_cells
from apexbench.report.cases import Arm, Case
from apexbench.report.claim import MIXED, NOT_TESTED, REFUTED, SUPPORTED, Claim, is_apex
from apexbench.report.pair import margin
from apexbench.report.repeats import Estimate, verdict
from apexbench.report.scaling import (
    BASELINE,
    FEWEST_SIZES,
    PIECES,
    TUTORIAL,
    WHOLE,
    Point,
    Slope,
    fit,
    points,
)
from apexbench.report.verdicts import missing_reason

CONSIDERABLE = 1.10


def gain_over_fp32(cases: Sequence[Case]) -> Claim:
    """C5: the whole gain and what each piece adds; Apex must add to it for a plain "supported"."""
    evidence: list[str] = []
    gains: list[Estimate] = []
    apex: list[str] = []
    shown: list[Estimate] = []
    for case in cases:
        found = [
            attribute(case, precision, optimizer)
            for precision, optimizer in (
                ("fp32", "default"),
                ("tf32", "default"),
                ("fp32", "fused"),
            )
        ]
        for entry in found:
            if entry is None:
                continue
            pieces = ", ".join(
                f"{name} {numbers.ratio(part.value, part.low, part.high)}"
                for name, part in entry.parts.items()
            )
            total = numbers.ratio(entry.total.value, entry.total.low, entry.total.high)
            evidence.append(
                f"{case.name}: {entry.target} over {entry.baseline} is {total} = {pieces}."
            )
        if found[0] is not None:
            gains.append(found[0].total)
            shown.append((found[2] or found[0]).apex)
            apex.append(verdict(shown[-1], margin(case)))
        elif lacking := missing_cells(case, "fp32", "default"):
            evidence.append(
                f"{case.name}: no attribution, {numbers.listing(lacking)} "
                f"{'is' if len(lacking) == 1 else 'are'} not measured."
            )
    if not gains:
        reason = missing_reason(cases, is_apex)
        if reason:
            evidence = [numbers.sentence(reason)]
        return Claim("C5", NOT_TESTED, evidence or ["No Transformer was trained."])
    evidence.append(
        f"A gain over FP32 counts as considerable where its interval lies above "
        f"{numbers.ratio(CONSIDERABLE)}, as not considerable where it lies below."
    )
    low = min(gain.low for gain in gains)
    if all(gain.high < CONSIDERABLE for gain in gains):
        return Claim("C5", REFUTED, evidence)
    evidence.append(
        "Norm and optimizer together, against torch's fused AdamW where it was measured, bring "
        f"{numbers.listing([numbers.ratio(e.value, e.low, e.high) for e in shown])}; the rest is "
        "precision."
    )
    plain = low > CONSIDERABLE and all(entry == "faster" for entry in apex)
    return Claim("C5", SUPPORTED if plain else MIXED, evidence)


def grows_with_scale(cases: Sequence[Case]) -> Claim:
    """C6: the slope of the speed-up per doubling of parameters, over at least four sizes."""
    confidence = cases[0].confidence if cases else 0.99
    whole = points(cases, WHOLE[0])
    slope = fit(whole, confidence)
    if slope is None:
        return Claim("C6", NOT_TESTED, [_too_few(cases, whole)])
    evidence = []
    for group, where in ((WHOLE, " over FP32"), (PIECES, ", in fp16")):
        for followed in group:
            if (found := fit(points(cases, followed), confidence)) is not None:
                evidence.append(_slope_sentence(f"{followed.name}{where}", found))
    step = slope.per_doubling
    status = SUPPORTED if step.low > 1 else REFUTED if step.high < 1.01 else MIXED
    return Claim("C6", status, evidence)


def _too_few(cases: Sequence[Case], found: Sequence[Point]) -> str:
    """Why there is no slope: how many sizes have both recipes, and what the others lack."""
    both = " and ".join("+".join(recipe) for recipe in (TUTORIAL, BASELINE))
    needed = f"The claim needs {both} on at least {FEWEST_SIZES} model sizes"
    if not cases:
        return f"{needed}; this run trained no Transformer."
    sizes = len({point.parameters for point in found})
    has = f"this run has {sizes or 'none'}"
    names = {point.case for point in found}
    without = [case for case in cases if case.name not in names]
    if not without:
        return f"{needed}; {has}."
    lacks = "it lacks" if len(without) == 1 else "they lack"
    reason = missing_reason(without, is_tutorial) or f"{lacks} one of the two recipes"
    trained = numbers.plural(len(without), "model")
    if sizes:
        return f"{needed}; {has}: {trained} more could not be compared ({reason})."
    return f"{needed}; {has}, although it trained {trained}: {reason}."


def is_tutorial(arm: Arm) -> bool:
    """Whether an arm is one of the two recipes that the tutorial compares."""
    return arm.implementation in ("+".join(TUTORIAL), "+".join(BASELINE))


def _slope_sentence(what: str, slope: Slope) -> str:
    step = slope.per_doubling
    return numbers.sentence(
        f"{what}: its speed-up changes by a factor of "
        f"{numbers.ratio(step.value, step.low, step.high)} per doubling of the parameters, over "
        f"{len(slope.points)} sizes"
    )
