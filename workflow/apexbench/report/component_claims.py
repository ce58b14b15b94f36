"""Claims C1 to C3: what has to be built, and whether the optimizer and the norms are faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from apexbench.records import BASELINES
from apexbench.report import names, numbers, vocabulary
from apexbench.report.attribution import factor
from apexbench.report.cases import Arm, Case
from apexbench.report.claim import MIXED, NOT_TESTED, SUPPORTED, Claim, is_apex, status
from apexbench.report.verdicts import Entry, against, all_of, missing_reason, tally

CLAIMED = ("torch_default", "torch_forloop", "torch_fused", "torch_compiled")
"""The forms of torch's AdamW that C2 is about."""


def built_from_source(cases: Sequence[Case]) -> Claim:
    """C1, from what Apex is here and from what its arms said."""
    states = {}
    for case in cases:
        if case.config.get("legacy", "none") != "none":
            continue  # measured with another Apex, whose build this claim is not about
        entry = case.provenance.get("apex")
        if isinstance(entry, dict):
            states[str(entry.get("state", "unknown"))] = entry
    arms = [(case, arm) for case in cases for arm in case.arms if arm.is_apex]
    good = [arm for _, arm in arms if arm.status == "ok"]
    evidence = [str(entry["sentence"]) for entry in states.values() if entry.get("sentence")]
    pythonic = [name for name in states if "python" in name.lower()]
    if pythonic:
        lost = [arm for _, arm in arms if arm.status != "ok"]
        evidence.append(
            f"With the Python-only install, {len(lost)} of "
            f"{numbers.plural(len(arms), 'Apex cell')} could not be measured."
        )
        return Claim("C1", SUPPORTED if lost and not good else MIXED, evidence)
    if good:
        seen = [arm for arm in good if arm.kernels]
        evidence.append(
            f"{numbers.plural(len(good), 'Apex cell')} ran; the records name the CUDA kernels of "
            f"{len(seen)} of them. A Python-only install was not measured in this run, so the "
            "contrast itself is untested."
        )
    elif reason := missing_reason(cases, is_apex):
        evidence.append(f"No Apex cell could be measured ({reason}).")
    return Claim("C1", NOT_TESTED, evidence or ["No record says what Apex is on this machine."])


def faster_everywhere(
    id: str,
    cases: Sequence[Case],
    select: Callable[[Arm], bool],
    detail: Callable[[list[Entry]], list[str]],
) -> Claim:
    """C2 and C3: every verdict against every baseline, counted."""
    entries = all_of(cases, select)
    if not entries:
        reason = missing_reason(cases, select)
        return Claim(
            id, NOT_TESTED, [numbers.sentence(reason) if reason else "No case measured it."]
        )
    evidence = []
    for baseline in BASELINES:
        found = list(against(cases, baseline, select))
        if found:
            name = vocabulary.BASELINE_NAMES[baseline]
            evidence.append(f"Against {name}: {tally(found)}{_range(found)}.")
    return Claim(id, status(tally(entries)), evidence + detail(entries))


def _range(entries: list[Entry]) -> str:
    ratios = sorted(versus.ratio.value for _, _, versus in entries)
    if len(ratios) == 1:
        ratio = entries[0][2].ratio
        return f" ({numbers.ratio(ratio.value, ratio.low, ratio.high)})"
    return f" (speed {numbers.span(ratios)})"


def by_case(entries: list[Entry]) -> list[str]:
    """C2: FusedAdam as it comes against each of torch's that the claim names, case by case."""
    sentences = []
    for case in {id(case): case for case, _, _ in entries}.values():
        apex = case.arm("apex")
        if apex is None or case.time(apex) is None:
            continue
        rivals = [(key, case.arm(key)) for key in CLAIMED]
        found = [
            f"{numbers.ratio(speed.value, speed.low, speed.high)} that of {names.name(case, arm)}"
            for _, arm in rivals
            if arm is not None and case.time(arm) is not None
            for speed in [factor(case, arm, apex)]
        ]
        lost = [
            names.NAMES["optimizer"][key]
            for key, arm in rivals
            if arm is None or case.time(arm) is None
        ]
        if found:
            text = f"{case.name}: the speed of {names.name(case, apex)} is "
            text += numbers.listing(found, most=len(found))
            text += f" (not measured: {numbers.listing(lost)})" if lost else ""
            sentences.append(f"{text}.")
    return sentences


def by_axis(entries: list[Entry]) -> list[str]:
    """C3: verdicts against torch's best eager norm by component, dtype and direction."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        case, _, versus = entry
        if versus.baseline != "torch_eager_best":
            continue
        config = case.config
        direction = str(config.get("direction", "n/a"))
        key = (
            vocabulary.APEX_PART[case.component],
            str(config.get("dtype", "n/a")) + (" autocast" if config.get("autocast") else ""),
            vocabulary.DIRECTIONS.get(direction, direction),
        )
        groups.setdefault(key, []).append(entry)
    return [
        f"{' '.join(key)}, {_widths(found)}, against torch's best eager: "
        f"{tally(found)}{_range(found)}."
        for key, found in groups.items()
    ]


def _widths(entries: list[Entry]) -> str:
    widths = sorted({case.config.get("width", 0) for case, _, _ in entries})
    return f"width {widths[0]}" + (f" to {widths[-1]}" if len(widths) > 1 else "")
