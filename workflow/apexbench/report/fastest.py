"""Without Apex there is still an answer: which of PyTorch's own implementations is fastest here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from apexbench.report import names, numbers, vocabulary
from apexbench.report.cases import Arm, Case, Versus


@dataclass(frozen=True)
class Winner:
    """The torch implementation with the lowest median in most cases of a component."""

    component: str
    part: str
    name: str
    line: str


def winners(cases: Sequence[Case]) -> list[Winner]:
    """One per component in which at least two torch implementations were timed."""
    result = []
    for component in sorted({case.component for case in cases}, key=vocabulary.order):
        if component in ("ceiling", "selfcheck", *vocabulary.NO_TILE):
            continue
        own = [case for case in cases if case.component == component]
        best = [(case, arm) for case in own if (arm := _best(case)) is not None]
        if best:
            result.append(_winner(component, best))
    return result


def _best(case: Case) -> Arm | None:
    timed = [(time.value, arm) for arm in _torch(case) if (time := case.time(arm)) is not None]
    return min(timed, key=lambda entry: entry[0])[1] if len(timed) > 1 else None


def _torch(case: Case) -> list[Arm]:
    return [
        arm
        for arm in case.arms
        if arm.package == "torch" and not arm.is_apex and arm.details.get("gpus", 1) == 1
    ]


def _winner(component: str, best: list[tuple[Case, Arm]]) -> Winner:
    counts = Counter(names.says(case, arm) for case, arm in best)
    name, most = max(sorted(counts.items()), key=lambda entry: entry[1])
    found = [
        versus
        for case, arm in best
        if names.says(case, arm) == name
        and (versus := case.versus(arm, "torch_default")) is not None
        and versus.verdict == "faster"
    ]
    line = f"Lowest median time in {most} of {numbers.plural(len(best), 'case')}"
    default = all(_is_default(case, arm) for case, arm in best if names.says(case, arm) == name)
    line += "; it is torch's default." if default else f"{_gain(found)}."
    others = [f"{other} in {count}" for other, count in sorted(counts.items()) if other != name]
    if others:
        line += f" Otherwise {numbers.listing(others)}."
    return Winner(component, vocabulary.title(component), name, line)


def _is_default(case: Case, arm: Arm) -> bool:
    members = case.baselines.get("torch_default", {}).get("members", [])
    return arm.implementation in members


def _gain(found: list[Versus]) -> str:
    """How much faster than torch's default it is, where the verdict says so."""
    if not found:
        return "; in none is it shown to be faster than torch's default"
    if len(found) == 1:
        ratio = found[0].ratio
        span = numbers.ratio(ratio.value, ratio.low, ratio.high)
    else:
        span = numbers.span([versus.ratio.value for versus in found])
    return f"; against torch's default it is faster in {len(found)} ({span})"
