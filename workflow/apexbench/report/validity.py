"""Threats to validity, written from the data: what a reader should hold against these numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from apexbench.measuring.contention import BUSY_CPU
from apexbench.report import loss_gate, numbers, vocabulary
from apexbench.report.cases import Case, compared
from apexbench.report.evidence import Evidence
from apexbench.report.repeats import FEWEST_PROCESSES, verdict
from apexbench.report.verdicts import Tally, all_of, tally


def verdict_sentences(cases: Sequence[Case]) -> list[str]:
    """How many verdicts there are, and how often the A/A check cried wolf on this machine."""
    measured = [case for case in cases if case.component != "selfcheck"]
    counts = tally(all_of(measured))
    confidence = measured[0].confidence if measured else 0.99
    return [
        f"This report holds {counts}. Each interval is at {numbers.confidence(confidence)}: "
        f"{_by_chance(counts.total * (1 - confidence))} of them may miss the true ratio by chance."
        if counts.total
        else "This report holds no verdict: nothing was compared.",
        _self_check([case for case in cases if case.component == "selfcheck"]),
        *filter(None, [_between_runs(measured)]),
    ]


def _by_chance(expected: float) -> str:
    return f"about {round(expected)}" if expected >= 1 else "fewer than one"


def _self_check(cases: Sequence[Case]) -> str:
    counts = tally(all_of(case for case in cases if case.name.startswith("A/A")))
    if not counts.total:
        return "selfcheck was not run on this machine, so no A/A false-verdict rate is known."
    false = counts.faster + counts.slower
    return (
        f"selfcheck compared an implementation with itself {counts.total} times on this machine: "
        f"{false} false {'verdict' if false == 1 else 'verdicts'} "
        f"({numbers.share(false / counts.total)}), {counts.same} same, {counts.unclear} unclear."
    )


def threats(evidence: Evidence, cases: Sequence[Case]) -> list[str]:
    """One sentence per threat that the records show."""
    lines = [
        _between_runs(cases),
        _throttling(evidence),
        _foreign(evidence),
        _budget(evidence),
        _unclear(cases),
        _flags(cases),
        loss_gate.sentence(cases),
        _missing(evidence, cases),
    ]
    devices = evidence.provenance("device_name")
    lines.append(
        f"The numbers speak of {numbers.listing([str(name) for name in devices])} only."
        if devices
        else None
    )
    return [line for line in lines if line]


def _between_runs(cases: Sequence[Case]) -> str | None:
    processes = [case.processes for case in compared(cases)]
    if not processes:
        return None
    few = sum(1 for count in processes if count < FEWEST_PROCESSES)
    if few == 0:
        return f"Every case was repeated in at least {FEWEST_PROCESSES} fresh processes."
    single = sum(1 for count in processes if count == 1)
    return (
        f"{few} of {numbers.plural(len(processes), 'case')} {'was' if few == 1 else 'were'} "
        "measured in fewer than "
        f"{FEWEST_PROCESSES} fresh processes ({single} in one): their intervals are within a "
        "process, with no between-run interval, and do not cover what changes from one start to "
        "the next."
    )


def _reasons(evidence: Evidence, key: str) -> tuple[int, list[str]]:
    hit = [
        {str(reason) for state in record.state for reason in state.get(key) or []}
        for record in evidence.records
    ]
    return sum(1 for reasons in hit if reasons), sorted(set().union(*hit)) if hit else []


def _throttling(evidence: Evidence) -> str | None:
    hard, hard_names = _reasons(evidence, "hardware_throttle")
    soft, soft_names = _reasons(evidence, "software_throttle")
    total = numbers.plural(len(evidence.records), "record")
    parts = []
    if hard:
        parts.append(
            f"The hardware throttled in {hard} of {total} ({numbers.listing(hard_names)})."
        )
    if soft:
        parts.append(
            f"A software limit (a recorded state, not a fault) held in {soft} of {total} "
            f"({numbers.listing(soft_names)})."
        )
    seen = any(
        "hardware_throttle" in state for record in evidence.records for state in record.state
    )
    if not parts and seen:
        return f"No block of any of {total} was throttled."
    return " ".join(parts) or None


def _foreign(evidence: Evidence) -> str | None:
    hit, _ = _reasons(evidence, "foreign_processes")
    if not hit:
        return None
    return f"Other processes used the GPU during {numbers.plural(hit, 'record')}."


def _budget(evidence: Evidence) -> str | None:
    stopped = [
        record
        for record in evidence.records
        if any(
            entry.get("stop") == "budget"
            for entry in (record.sampling, *record.sampling.values())
            if isinstance(entry, dict)
        )
    ]
    if not stopped:
        return None
    return (
        f"{numbers.plural(len(stopped), 'record')} of {len(evidence.records)} ended at the time "
        "budget before the interval was as narrow as aimed for."
    )


def _unclear(cases: Sequence[Case]) -> str | None:
    counts: Tally = tally(all_of(cases))
    if not counts.unclear:
        return None
    busy = sum(
        versus.verdict == "unclear" and verdict(versus.ratio, versus.margin) != "unclear"
        for _, _, versus in all_of(cases)
    )
    crossing = counts.unclear - busy
    reasons = []
    if crossing:
        count = f"in {crossing} of them " if busy else ""
        reasons.append(
            f"{count}the interval crosses the margin, so neither a difference nor equality is shown"
        )
    if busy:
        taken = f"{busy} {'was' if busy == 1 else 'were'}" if crossing else "each was"
        reasons.append(f"{taken} taken back, since {BUSY_CPU}")
    return (
        f"{counts.unclear} of {numbers.plural(counts.total, 'verdict')} "
        f"{'is' if counts.unclear == 1 else 'are'} unclear: {'; '.join(reasons)}."
    )


def _flags(cases: Sequence[Case]) -> str | None:
    flagged = [versus for _, _, versus in all_of(cases) if versus.flags]
    if not flagged:
        return None
    counts = Counter(flag for versus in flagged for flag in set(versus.flags))
    names = sorted(counts)
    if len(names) > 1:
        names = [f"{name} ({counts[name]})" for name in names]
    total = numbers.plural(len(all_of(cases)), "verdict")
    verb = "carries" if len(flagged) == 1 else "carry"
    return f"{len(flagged)} of {total} {verb} a flag: {numbers.listing(names)}."


def _missing(evidence: Evidence, cases: Sequence[Case]) -> str | None:
    counts: dict[str, int] = {}
    for case in cases:
        for arm in case.arms:
            if arm.status != "ok":
                counts[arm.status] = counts.get(arm.status, 0) + 1
    lost = len(evidence.missing)
    if not counts and not lost:
        return "No cell is missing."
    parts = [f"{count} {vocabulary.status(name)}" for name, count in sorted(counts.items())]
    text = f"Cells without a measurement: {numbers.listing(parts)}." if parts else ""
    if lost:
        text += f" {numbers.plural(lost, 'case')} left no record."
    return text.strip()
