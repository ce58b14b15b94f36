"""The tables of the report as plain cells: text, a key to sort by, a tone for the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apexbench.records import BASELINES
from apexbench.report import ceilings, loss_gate, names, numbers, probes, remedies, vocabulary
from apexbench.report.cases import Arm, Case
from apexbench.report.cells import Entry, Table
from apexbench.report.evidence import Evidence
from apexbench.report.figures.transformer import throughput
from apexbench.report.repeats import Estimate

SHORT = 18
TRAINED = [
    "tokens/s",
    "MFU (PaLM count)",
    "skipped steps",
    "held-out loss",
    "loss vs FP32",
]


def component(name: str, cases: Sequence[Case], limits: ceilings.Ceilings, most: int) -> Table:
    """A component's arms, one row each: time, ratios with verdicts, share, memory, parity."""
    if name == "ceiling":
        return _ceilings(cases, most)
    if name == "compatibility":
        return probes.table(cases, most)
    trained = name == "transformer"
    columns = ["case", "implementation", *(TRAINED if trained else ["time"])]
    columns += [vocabulary.BASELINE_COLUMNS[base] for base in BASELINES]
    columns += [] if trained else ["share of ceiling", "parity error"]
    columns += ["peak memory", "n"]
    pairs = [(case, arm) for case in cases for arm in case.arms]
    marks = _marks(pairs[:most], limits)
    rows = [_row(case, arm, limits, trained, marks) for case, arm in pairs[:most]]
    single = len(cases) == 1
    hidden = {"parity error", "n", *(["case"] if single else [])}
    paper = [index for index, column in enumerate(columns) if column not in hidden]
    title = f"{vocabulary.title(name)}{f', {cases[0].name}' if single else ''}: every cell"
    footnotes = [f"{mark} {flag}" for flag, mark in marks.items()]
    footnotes += ["losses are in nats/token"] if trained else []
    return Table(title, columns, rows, len(pairs), paper, footnotes)


def _marks(pairs: Sequence[tuple[Case, Arm]], limits: ceilings.Ceilings) -> dict[str, str]:
    """A footnote mark for every flag of a comparison and every long reason of an ``n/a``."""
    notes = [flag for _, arm in pairs for versus in arm.versus.values() for flag in versus.flags]
    reasons = [text for pair in pairs for text in (_no_share(*pair, limits), _no_gate(*pair))]
    notes += [reason for reason in reasons if len(reason) > SHORT]
    return {
        note: "†‡§¶"[i] if i < 4 else f"({i + 1})" for i, note in enumerate(dict.fromkeys(notes))
    }


def _ceilings(cases: Sequence[Case], most: int) -> Table:
    rows = []
    for case in cases:
        for ceiling in ceilings.measured([case]).values():
            arm = case.arm(ceiling.name)
            time = case.time(arm) if arm else None
            if arm is None or time is None:
                continue
            rows.append(
                [
                    Entry(case.name),
                    Entry(ceiling.name, note=arm.description),
                    Entry(numbers.time(time.value, time.low, time.high), time.value),
                    Entry(
                        numbers.rate(ceiling.per_second, ceiling.unit, ceiling.low, ceiling.high),
                        ceiling.per_second,
                    ),
                    Entry(str(arm.samples[case.quantity]), arm.samples[case.quantity]),
                ]
            )
    columns = ["case", "implementation", "time", "rate", "n"]
    return Table("Ceilings measured in this run", columns, rows[:most], len(rows))


def _row(
    case: Case, arm: Arm, limits: ceilings.Ceilings, trained: bool, marks: dict[str, str]
) -> list[Entry]:
    row = [Entry(case.name), Entry(names.name(case, arm)), _measured(case, arm, trained)]
    row += _training(case, arm, limits, marks) if trained else []
    row += [_versus(case, arm, base, marks) for base in BASELINES]
    if not trained:
        row += [_share(case, arm, limits, marks), _parity(arm)]
    memory, samples = arm.peak_memory_bytes, arm.samples.get(case.quantity)
    row.append(Entry(numbers.memory(memory), memory) if memory is not None else Entry("n/a"))
    row.append(Entry(str(samples), samples) if samples else Entry("0", 0))
    return row


def _measured(case: Case, arm: Arm, trained: bool) -> Entry:
    """Time, or throughput of a trained recipe; without a measurement its status and reason."""
    time = case.time(arm)
    if time is None and arm.status == "ok":
        why = str(arm.details.get(f"no_{case.quantity}", arm.reason or ""))
        return Entry("not timed", tone="quiet", note=why)
    if time is None:
        mark = vocabulary.STATUS_MARKS.get(arm.status, "✕")
        text = f"{mark} {vocabulary.status(arm.status)}"
        return Entry(text, tone="lost", note=arm.reason or "")
    note = arm.reason or ""
    if case.processes > 1:
        note = f"{numbers.plural(case.processes, 'process', 'processes')}. {note}".strip()
    rate = throughput(case, arm) if trained else None
    if rate is not None:
        text = numbers.rate(rate.value, "", rate.low, rate.high)
        return Entry(text, rate.value, note=note)
    return Entry(numbers.time(time.value, time.low, time.high), time.value, note=note)


def _training(
    case: Case, arm: Arm, limits: ceilings.Ceilings, marks: dict[str, str]
) -> list[Entry]:
    shares = [
        ceilings.utilization(case, arm, count, limits)
        for count in ("flops_per_token", "flops_per_token_palm")
    ]
    both = " ".join(
        text if index == 0 else f"({text})"
        for index, text in enumerate(_percent(share) for share in shares if share is not None)
    )
    row = [Entry(both or "n/a", shares[0].value if shares[0] else None)]
    skipped, loss = arm.details.get("skipped_steps"), arm.details.get("held_out_loss")
    row.append(Entry(str(skipped), float(skipped)) if isinstance(skipped, int) else Entry("n/a"))
    row.append(
        Entry(numbers.significant(loss), loss) if isinstance(loss, int | float) else Entry("n/a")
    )
    return [*row, _loss_gate(case, arm, marks)]


def _no_gate(case: Case, arm: Arm) -> str:
    """Why a trained recipe's loss is not judged; empty where it is, or is the baseline's."""
    if case.component != "transformer" or arm.status != "ok" or arm is loss_gate.baseline(case):
        return ""
    return loss_gate.UNTESTED if loss_gate.judge(case, arm) is None else ""


def _loss_gate(case: Case, arm: Arm, marks: dict[str, str]) -> Entry:
    if arm.status != "ok":
        return Entry("n/a")
    if arm is loss_gate.baseline(case):
        return Entry("baseline", tone="baseline")
    gate = loss_gate.judge(case, arm)
    if gate is None:
        return Entry(f"n/a {marks[loss_gate.UNTESTED]}", tone="quiet")
    tones = {loss_gate.NON_INFERIOR: "good", loss_gate.DIVERGED: "bad"}
    known = gate.difference if math.isfinite(gate.difference) else None
    text = "not finite" if known is None else gate.interval
    return Entry(text, known, tones.get(gate.verdict, "quiet"), verdict=gate.verdict)


def _versus(case: Case, arm: Arm, baseline: str, marks: dict[str, str]) -> Entry:
    versus = case.versus(arm, baseline)
    if versus is not None:
        ratio = versus.ratio
        text = numbers.ratio(ratio.value, ratio.low, ratio.high)
        verdict = " ".join([versus.verdict, *(marks[flag] for flag in versus.flags)])
        return Entry(text, ratio.value, versus.verdict, verdict=verdict)
    entry = case.baselines.get(baseline)
    if arm.status != "ok":
        return Entry("n/a")
    if entry is None:
        return Entry("n/a", note="the record names no such baseline")
    if arm.implementation in entry["members"]:
        return Entry("baseline", 1.0 if len(entry["members"]) == 1 else None, "baseline")
    return Entry("n/a", note=str(entry["reason"] or "no member of this baseline was measured"))


def _no_share(case: Case, arm: Arm, limits: ceilings.Ceilings) -> str:
    """Why a measured arm has no share of a ceiling; empty where it has one."""
    if arm.status != "ok" or case.component == "transformer":
        return ""
    known = ceilings.share(case, arm, case.quantity, limits) is not None
    return "" if known else ceilings.no_share(case)


def _share(case: Case, arm: Arm, limits: ceilings.Ceilings, marks: dict[str, str]) -> Entry:
    share = ceilings.share(case, arm, case.quantity, limits)
    if share is not None:
        return Entry(_percent(share), share.value)
    reason = _no_share(case, arm, limits) or "n/a"
    return Entry(f"n/a {marks[reason]}" if reason in marks else reason)


def _percent(share: Estimate) -> str:
    return numbers.share(share.value, share.low, share.high)


def _parity(arm: Arm) -> Entry:
    error = arm.parity_error
    return Entry("n/a") if error is None else Entry(numbers.small(error), error)


def missing(evidence: Evidence, cases: Sequence[Case], most: int) -> Table:
    """Cells without a measurement, equal ones together, each with reason and remedy."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for case in cases:
        for arm in case.arms:
            if arm.status != "ok":
                remedy = remedies.told(arm.remedy, case.component, evidence.folder)
                key = (case.component, arm.status, arm.reason or "", remedy)
                groups.setdefault(key, []).append(names.name(case, arm))
    for lost in evidence.missing:
        remedy = remedies.of_lost(lost.log, evidence.folder)
        key = (lost.component, lost.status, lost.reason, remedy)
        groups.setdefault(key, []).append(f"all of {lost.case}")
    rows = [
        [
            Entry(vocabulary.title(name)),
            Entry(numbers.listing(list(dict.fromkeys(found)), most=8)),
            Entry(
                f"{vocabulary.STATUS_MARKS.get(status, '✕')} {vocabulary.status(status)}",
                tone="lost",
            ),
            Entry(str(len(found)), len(found)),
            Entry(reason),
            Entry(remedy),
        ]
        for (name, status, reason, remedy), found in groups.items()
    ]
    columns = ["component", "implementation", "status", "cells", "reason", "remedy"]
    return Table("What is missing, why, and what would bring it", columns, rows[:most], len(rows))
