"""The answer in ten seconds: for each part of Apex, whether it is worth building here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from apexbench.report import names, numbers, vocabulary
from apexbench.report.cases import Arm, Case
from apexbench.report.claims import is_adam, is_apex
from apexbench.report.leading import TIED, leaders, leading
from apexbench.report.verdicts import Entry, against, missing_reason, strongest, tally

YES, NO, ONLY, UNTESTED, UNCLEAR = "yes", "no", "only for", "not tested", "unclear"
MOST_NAMED = 2
EAGER = "without torch.compile or a CUDA graph"
OTHER_OPTIMIZERS = {
    "apex_sgd": "FusedSGD",
    "apex_adagrad": "FusedAdagrad",
    "apex_lamb": "FusedLAMB",
    "apex_novograd": "FusedNovoGrad",
}


@dataclass(frozen=True)
class Tile:
    """``Build Apex for <label>: <answer> <where>``, and the sentence that backs it."""

    component: str
    label: str
    part: str
    answer: str
    where: str
    line: str
    reason: str = ""


def tiles(cases: Sequence[Case], device: str) -> list[Tile]:
    """One tile per component that has, or should have, an Apex arm."""
    result = []
    for component in sorted({case.component for case in cases}, key=vocabulary.order):
        if component in vocabulary.NO_TILE:
            continue
        own = [case for case in cases if case.component == component]
        select = is_adam if component == "optimizer" else is_apex
        if any(select(arm) for case in own for arm in case.arms):
            result.append(decide(component, own, select, device))
    return result


def _named(name: str) -> Callable[[Arm], bool]:
    return lambda arm: arm.implementation == name


def other_optimizers(cases: Sequence[Case], device: str) -> list[str]:
    """A line for each of Apex's optimizers other than FusedAdam, from the cases of its rule."""
    lines = []
    for name, part in OTHER_OPTIMIZERS.items():
        own = [case for case in cases if case.component == "optimizer" and case.arm(name)]
        if not own:
            continue
        counterparts = [arm for case in own for arm in case.arms if not arm.is_apex]
        measured = [case for case in own if case.time(case.arm(name))]  # type: ignore[arg-type]
        if counterparts or not measured:
            lines.append(decide("optimizer", own, _named(name), device, part).line)
        else:
            times = []
            for case in measured:
                time = case.time(case.arm(name))  # type: ignore[arg-type]
                assert time is not None
                times.append(f"{numbers.time(time.value, time.low, time.high)} on {case.name}")
            lines.append(
                f"{part} has no counterpart in PyTorch to be compared with: it takes "
                f"{numbers.listing(times)}."
            )
    return lines


def decide(
    component: str,
    cases: Sequence[Case],
    select: Callable[[Arm], bool],
    device: str,
    part: str | None = None,
) -> Tile:
    """Yes: an Apex arm beats all that torch ships in every case; only for: in some; no: in none."""
    part = part or vocabulary.APEX_PART.get(component, f"Apex's {vocabulary.title(component)}")

    def tile(answer: str, where: str, line: str, reason: str = "") -> Tile:
        label = vocabulary.BUILD_FOR.get(component, part)
        return Tile(component, label, part, answer, where, line, reason)

    words = vocabulary.distinct(cases)
    tested = [
        (case, arm, versus)
        for case in cases
        for arm in case.arms
        if select(arm) and (versus := strongest(case, arm)) is not None
    ]
    if not tested:
        reason = missing_reason(cases, select) or "no Apex arm was compared"
        line = f"{part} was not tested ({reason})."
        return tile(UNTESTED, "on this machine", line, reason)
    total = len(dict.fromkeys(case.name for case, _, _ in tested))
    wins = [
        entry
        for entry in tested
        if entry[2].verdict == "faster" and entry[2].baseline == "torch_best"
    ]
    won = {case.name for case, _, _ in wins}
    if len(won) == total:
        line = (
            f"{part} is faster than everything PyTorch ships in {total} of "
            f"{numbers.plural(total, 'case')} on this {device}{_with(part, wins)}{_span(wins)}."
        )
        return tile(YES, "", line)
    eager = [
        entry
        for entry in against(cases, "torch_eager_best", select)
        if entry[2].verdict == "faster" and entry[0].name not in won
    ]
    if wins or eager:
        line = f"{part} {_gains(part, wins, eager, tested, words, device)}"
        places = [_where(wins, total, words)] if wins else []
        places += [f"{_where(eager, total, words)}, {EAGER}"] if eager else []
        return tile(ONLY, "; ".join(places), line)
    if tally(tested).unclear > tally(tested).decided:
        line = f"{part} on this {device}: {tally(tested)} against {_best(tested)}."
        return tile(UNCLEAR, "", line)
    return tile(NO, "", _not_worth(part, tested, cases, device))


def _not_worth(part: str, tested: list[Entry], cases: Sequence[Case], device: str) -> str:
    """``FusedAdam is slower than torch AdamW(fused=True) on …: no reason to build Apex for it.``"""
    best = _fastest_per_case(tested)
    counts = tally(best)
    rival = _rival(best)
    if counts.same == counts.total:
        return (
            f"{part} is as fast as {rival} on this {device}{_span(best)}: "
            "no reason to build Apex for it."
        )
    if counts.slower == counts.total:
        every = f" in all {counts.total} cases" if counts.total > 1 else ""
        return (
            f"{part} is slower than {rival}{every} on this {device}{_span(best)}: "
            "no reason to build Apex for it."
        )
    return (
        f"{part} was never shown to be faster than {_best(best)} on this {device}: "
        f"{counts}{_span(best)}; no reason to build Apex for it."
    )


def _with(part: str, entries: list[Entry]) -> str:
    """Which of Apex's arms win, where it is not the one that the part is called after."""
    won = list(dict.fromkeys(names.name(case, arm) for case, arm, _ in entries))
    if part in won or not won or any("+" in name for name in won):
        return ""
    return f" with {numbers.listing(won)}"


def _gains(
    part: str,
    wins: list[Entry],
    eager: list[Entry],
    tested: list[Entry],
    words: Mapping[str, str],
    device: str,
) -> str:
    """Where it beats everything, where eager torch only, and what was not compared or not clear.

    ``build Apex only for those`` stands there only where no other case leaves a question open.
    """
    total = len({case.name for case, _, _ in tested})
    of = f"of {numbers.plural(total, 'case')} on this {device}"
    won = {case.name for case, _, _ in wins}
    parts = []
    if wins:
        parts.append(f"is faster than everything PyTorch ships in {len(won)} {of}")
        parts[-1] += _with(part, wins) + _span(wins, words)
    if eager:
        count = len({case.name for case, _, _ in eager})
        more = f"{count} more" if wins else f"{count} {of}"
        parts.append(f"is faster than torch's best eager arm in {more}")
        parts[-1] += _with(part, eager) + _span(eager, words)
    text = ", and ".join(parts)
    compiled = {case.name for case, _, versus in tested if versus.baseline == "torch_best"}
    missing = total - len(compiled)
    if eager and not wins:
        text += _compiled(len(compiled), missing)
    elif missing:
        text += f"; torch.compile or a CUDA graph was not measured in {missing} of the {total}"
    clear = {case.name for case, _, versus in tested if versus.verdict not in ("unclear", "faster")}
    open_ = total - len(clear | won | {case.name for case, _, _ in eager})
    if wins and open_:
        text += f"; {open_} {'is' if open_ == 1 else 'are'} unclear"
    if wins and not eager and not missing and not open_:
        text += f": build Apex only for {'that' if len(won) == 1 else 'those'}"
    return f"{text}."


def _best(entries: list[Entry]) -> str:
    """What the verdicts are against: torch's best, or its best eager where no case has another."""
    compiled = any(versus.baseline == "torch_best" for _, _, versus in entries)
    return "the best that PyTorch ships" if compiled else "torch's best eager arm"


def _compiled(compared: int, missing: int) -> str:
    """What is known of torch.compile and CUDA graphs where Apex beats eager torch alone."""
    if not compared:
        return "; torch.compile or a CUDA graph was measured in none, so it was not compared there"
    if not missing:
        return ", and in none against torch.compile or a CUDA graph"
    return (
        f"; against torch.compile or a CUDA graph, measured in {compared} of the "
        f"{compared + missing}, it is shown to be faster in none"
    )


def _fastest_per_case(entries: list[Entry]) -> list[Entry]:
    best: dict[str, Entry] = {}
    for entry in entries:
        name = entry[0].name
        if name not in best or entry[2].ratio.value > best[name][2].ratio.value:
            best[name] = entry
    return list(best.values())


def _rival(entries: list[Entry]) -> str:
    """The torch arm that leads every case, else the best of torch and which arms that mostly is."""
    winners = []
    for case, _, versus in entries:
        members = [arm for name in versus.members if (arm := case.arm(name))]
        found = leaders(case, members)
        if found is not None:
            winners.append(leading([names.says(case, arm) for arm in found.arms]))
    most = max(sorted(set(winners)), key=winners.count, default="torch")
    if len(set(winners)) <= 1 and TIED not in most:
        return most
    often = "most often " if len(set(winners)) > 1 else ""
    return f"{_best(entries)} ({often}{most})"


def _span(entries: list[Entry], words: Mapping[str, str] | None = None) -> str:
    """The range of the ratios, or the one ratio with its interval; in ``words``, of which cases."""
    ratios = sorted((versus.ratio for _, _, versus in entries), key=lambda ratio: ratio.value)
    text = numbers.ratio(ratios[0].value, ratios[0].low, ratios[0].high)
    if len(ratios) > 1:
        text = numbers.span([ratio.value for ratio in ratios])
    named = list(dict.fromkeys(words[case.name] for case, _, _ in entries)) if words else []
    if not named:
        return f" ({text})"
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED + 1 else []
    shown = named[:MOST_NAMED] if more else named
    return f" ({text}: {'; '.join([*shown, *more])})"


def _where(wins: list[Entry], total: int, words: Mapping[str, str]) -> str:
    """The one case that won by name, several by their number; how many of how many."""
    won = list(dict.fromkeys(case.name for case, _, _ in wins))
    if len(won) == 1:
        return words[won[0]]
    return f"{len(won)} of {numbers.plural(total, 'case')}"
