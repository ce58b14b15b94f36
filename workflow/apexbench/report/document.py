"""The report as data: every sentence, table and number, before HTML or PDF give it a shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from apexbench.report import (
    answer,
    attribution,
    ceilings,
    claims,
    counts,
    fastest,
    figures,
    gpus,
    methods,
    names,
    numbers,
    probes,
    provenance,
    selfcheck,
    tables,
    tutorial,
    validity,
    vocabulary,
    work,
)
from apexbench.report.cases import Case, compared, merge
from apexbench.report.evidence import Evidence
from apexbench.report.figures import Figure
from apexbench.report.placement import of_one_model
from apexbench.report.time_split import time_split

MOST_ROWS = 1000


@dataclass
class Document:
    """``content`` holds only JSON values; ``figures`` are drawn once for both shapes."""

    content: dict[str, Any]
    figures: list[Figure]


def build(evidence: Evidence) -> Document:
    """The report of a run. Claims and figures speak of one GPU model; a note names the others."""
    evidence, model, notes = of_one_model(evidence)
    cases = sorted(merge(evidence.records), key=_size)
    limits = ceilings.measured(cases)
    drawn = figures.draw_all(cases)
    evaluated = claims.evaluate(cases)
    name = model or "this machine"
    tiles = answer.tiles(cases, name)
    tested = any(tile.answer != answer.UNTESTED for tile in tiles)
    rows, split = time_split(evidence)
    room = MOST_ROWS
    sections = []
    for component in sorted(_components(evidence), key=vocabulary.order):
        own = [case for case in cases if case.component == component]
        section = _section(component, own, evidence, tiles, limits, drawn, room)
        room = max(0, room - len(section["table"]["rows"]))
        sections.append(section)
    proven = selfcheck.load(evidence.folder, model)
    sections += selfcheck.section(proven)
    content = {
        "title": _title(evidence, name),
        "device": name,
        "date": provenance.date(evidence),
        "run": next((str(run) for run in evidence.provenance("run")), "n/a"),
        "abstract": _abstract(evidence, cases, name, tiles, evaluated),
        "notes": notes,
        "tiles": [asdict(tile) for tile in tiles],
        "untested": "" if tested else " ".join(_answers(tiles)),
        "fastest": [] if tested else [asdict(winner) for winner in fastest.winners(cases)],
        "claims": [asdict(claim) | {"text": claim.text} for claim in evaluated],
        "claims_note": "From the tutorial that recommends building Apex; each is judged from the "
        "records of this run alone.",
        "verdicts": validity.verdict_sentences([*cases, *selfcheck.cases(proven)]),
        "sections": sections,
        "missing": tables.missing(evidence, cases, MOST_ROWS).plain(),
        "methods": methods.sections(cases),
        "threats": validity.threats(evidence, cases),
        "machine": provenance.machine(evidence, limits),
        "run_rows": provenance.run(evidence),
        "config": provenance.config(evidence),
        "time": rows,
        "time_sentence": split,
        "references": methods.references(),
        "marks": [
            [mark, vocabulary.status(name)] for name, mark in vocabulary.STATUS_MARKS.items()
        ],
    }
    return Document(content, drawn)


def _size(case: Case) -> float:
    """A model's parameters, so that models stand in order of size; other cases keep theirs."""
    sizes = [arm.details.get("parameters") for arm in case.arms]
    return max((float(size) for size in sizes if isinstance(size, int | float)), default=0.0)


def _components(evidence: Evidence) -> list[str]:
    names = [*evidence.components, *(record.component for record in evidence.records)]
    return list(dict.fromkeys(names))


def _title(evidence: Evidence, name: str) -> str:
    if "cuda" in evidence.provenance("device"):
        return f"What NVIDIA Apex buys on one {name}"
    return f"What NVIDIA Apex buys: a run without an NVIDIA GPU ({name})"


def _section(
    component: str,
    cases: Sequence[Case],
    evidence: Evidence,
    tiles: Sequence[answer.Tile],
    limits: ceilings.Ceilings,
    drawn: Sequence[Figure],
    room: int,
) -> dict[str, Any]:
    leads = [tile.line for tile in tiles if tile.component == component]
    leads += [
        f"{lost.case} left no record ({vocabulary.status(lost.status)}): {lost.reason}."
        for lost in evidence.missing
        if lost.component == component
    ]
    if not cases and not leads:
        leads.append("No case of this component was configured, so nothing was measured.")
    if component == "transformer":
        leads += _separate_bars(cases)
        leads += gpus.sentences(cases)
    if component == "compatibility":
        leads += probes.lines(cases)
    if component == "tutorial":
        leads += tutorial.lines(cases)
    if component == "optimizer":
        leads += answer.other_optimizers(cases, cases[0].device[0] if cases else "device")
    compared = component not in ("transformer", "ceiling")
    sentences, title, rows = work.least(cases if compared else [])
    leads += sentences
    return {
        "id": component,
        "title": vocabulary.title(component),
        "leads": leads,
        "work": {"title": title, "rows": rows},
        "figures": [
            {"id": figure.id, "title": figure.title, "caption": figure.caption, "alt": figure.alt}
            for figure in drawn
            if figure.component == component
        ],
        "counts": counts.counts(cases) if compared else counts.NOTHING,
        "arms": _arms(cases) if compared else [],
        "table": tables.component(component, cases, limits, room).plain(),
    }


def _arms(cases: Sequence[Case]) -> list[list[str]]:
    """Every implementation of a component once: its name, its key in config.yaml, what it is."""
    found = {arm.implementation: (case, arm) for case in cases for arm in case.arms}
    return [
        [names.name(case, arm), f"{arm.description} In config.yaml: {arm.implementation}."]
        for case, arm in found.values()
        if arm.description
    ]


def _separate_bars(cases: Sequence[Case]) -> list[str]:
    """What torch.compile and CUDA graphs add, a sentence per recipe over all models."""
    found: dict[str, list[str]] = {}
    for case in cases:
        for name, part in attribution.extras(case).items():
            ratio = numbers.ratio(part.value, part.low, part.high)
            found.setdefault(name, []).append(f"{ratio} on {case.name}")
    return [
        f"{name} against the same recipe without it: {numbers.listing(ratios)}."
        for name, ratios in found.items()
    ]


def _answers(tiles: Sequence[answer.Tile]) -> list[str]:
    """The tiles' lines; parts that were not tested for the same reason share one sentence."""
    lines = [tile.line for tile in tiles if tile.answer != answer.UNTESTED]
    reasons: dict[str, list[str]] = {}
    for tile in tiles:
        if tile.answer == answer.UNTESTED:
            reasons.setdefault(tile.reason, []).append(tile.part)
    return lines + [
        f"{numbers.listing(parts)} {'was' if len(parts) == 1 else 'were'} not tested ({reason})."
        for reason, parts in reasons.items()
    ]


def _abstract(
    evidence: Evidence,
    cases: Sequence[Case],
    name: str,
    tiles: Sequence[answer.Tile],
    evaluated: Sequence[claims.Claim],
) -> list[str]:
    torch = numbers.listing([str(value) for value in evidence.provenance("torch")]) or "n/a"
    commits = [
        str(entry["commit"])[:12]
        for entry in evidence.provenance("apex")
        if isinstance(entry, dict) and entry.get("commit")
    ]
    used = any(arm.is_apex and arm.times for case in cases for arm in case.arms)
    apex = "Apex of an unknown commit" if used else "no usable Apex"
    apex = f"Apex at commit {numbers.listing(commits)}" if commits else apex
    measured = compared(cases)
    counts = Counter(claim.status for claim in evaluated)
    statuses = [f"{count} {status}" for status, count in sorted(counts.items())]
    lines = [
        f"A tutorial tells users to build NVIDIA Apex from source for its optimizer, its norms and "
        f"mixed precision. We measured {numbers.plural(len(measured), 'case')} on {name} with "
        f"PyTorch {torch} and {apex}, each against what PyTorch already ships.",
        *_answers(tiles),
    ]
    for case in cases:
        if case.component != "transformer":
            continue
        entry = attribution.attribute(case, "fp32", "default")
        if entry is not None:
            total = numbers.ratio(entry.total.value, entry.total.low, entry.total.high)
            parts = {key: numbers.ratio(p.value, p.low, p.high) for key, p in entry.parts.items()}
            lines.append(
                f"Training {case.name}, the tutorial's recipe is {total} as fast as FP32; mixed "
                f"precision alone accounts for {parts['precision']}, Apex's norm for "
                f"{parts['norm']} and its optimizer for {parts['optimizer']}."
            )
            break
    lines.append(f"Of the tutorial's six claims: {numbers.listing(statuses)}.")
    return lines
