"""Without Apex there is still an answer: which of PyTorch's own implementations is fastest here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from apexbench.report import names, numbers, vocabulary
from apexbench.report.cases import NOT_COMPARED, Arm, Case, Versus
from apexbench.report.leading import Leaders, leaders

TIE = "no single one"


@dataclass(frozen=True)
class Winner:
    """The torch implementation that beats all others in most cases of a component, if one does."""

    component: str
    part: str
    name: str
    line: str


def winners(cases: Sequence[Case]) -> list[Winner]:
    """One per component in which at least two torch implementations were timed."""
    result = []
    for component in sorted({case.component for case in cases}, key=vocabulary.order):
        if component in (*NOT_COMPARED, *vocabulary.NO_TILE):
            continue
        own = [case for case in cases if case.component == component]
        found = [entry for case in own if (entry := _leaders(case)) is not None]
        if found:
            result.append(_winner(component, found))
    return result


def _leaders(case: Case) -> Leaders | None:
    timed = [arm for arm in _torch(case) if case.time(arm) is not None]
    return leaders(case, timed) if len(timed) > 1 else None


def _torch(case: Case) -> list[Arm]:
    return [
        arm
        for arm in case.arms
        if arm.package == "torch" and not arm.is_apex and arm.details.get("gpus", 1) == 1
    ]


def _winner(component: str, found: Sequence[Leaders]) -> Winner:
    """The tile of a component: a name only where the intervals give one."""
    sole = [(entry.case, entry.sole) for entry in found if entry.sole is not None]
    ties = [entry for entry in found if entry.sole is None]
    title, total = vocabulary.title(component), numbers.plural(len(found), "case")
    if not sole:
        where = "In the one case" if len(found) == 1 else f"In each of {total}"
        line = f"{where} the fastest are not separated from each other: {_tied(ties)}."
        return Winner(component, title, TIE, line)
    counts = Counter(names.says(case, arm) for case, arm in sole)
    most = max(counts.values())
    first = sorted(name for name, count in counts.items() if count == most)
    name = numbers.listing(first)
    each = "each " if len(first) > 1 else ""
    line = f"{each}fastest in {most} of {total}".capitalize()
    line += _default(sole, first)
    others = [f"{other} in {count}" for other, count in sorted(counts.items()) if count < most]
    if others:
        line += f" Otherwise {numbers.listing(others)}."
    if ties:
        line += f" In {len(ties)} the fastest are not separated: {_tied(ties)}."
    return Winner(component, title, name, line)


def _tied(ties: Sequence[Leaders]) -> str:
    """Who shares the lead: the arms, most frequent first, and in how many of several cases."""
    counts = Counter(names.says(entry.case, arm) for entry in ties for arm in entry.arms)
    shown = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return numbers.listing([n if len(ties) == 1 else f"{n} ({count})" for n, count in shown])


def _default(sole: Sequence[tuple[Case, Arm]], first: Sequence[str]) -> str:
    """What the winner is against torch's default: it itself, or faster by so much."""
    own = [(case, arm) for case, arm in sole if names.says(case, arm) in first]
    if all(_is_default(case, arm) for case, arm in own):
        return "; it is torch's default."
    found = [v for case, arm in own if (v := case.versus(arm, "torch_default")) is not None]
    return f"{_gain([versus for versus in found if versus.verdict == 'faster'])}."


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
