"""A component in a few rows: how often each implementation was faster or slower, and how much."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.records import BASELINES, VERDICTS
from apexbench.report import names, numbers, vocabulary
from apexbench.report.cases import Arm, Case, Versus

Counts = dict[str, list[list[str]] | list[str] | str]
NOTHING: Counts = {"title": "", "columns": [], "rows": []}


def counts(cases: Sequence[Case]) -> Counts:
    """``columns`` and ``rows`` of text; no rows where a single case would be counted."""
    found: dict[str, list[tuple[Case, Arm]]] = {}
    for case in cases:
        for arm in case.arms:
            if arm.versus:
                found.setdefault(arm.implementation, []).append((case, arm))
    if len(cases) < 2 or not found:
        return NOTHING
    return {
        "title": f"Verdicts over {numbers.plural(len(cases), 'case')}, with the range of the speed",
        "columns": ["implementation", *(vocabulary.BASELINE_COLUMNS[name] for name in BASELINES)],
        "rows": [
            [names.name(*pairs[0]), *(_cell(pairs, baseline) for baseline in BASELINES)]
            for pairs in found.values()
        ],
    }


def _cell(pairs: Sequence[tuple[Case, Arm]], baseline: str) -> str:
    """``1 faster, 8 slower: 0.487× to 1.18×``; ``n/a`` where nothing was compared."""
    found: list[Versus] = [v for case, arm in pairs if (v := case.versus(arm, baseline))]
    if not found:
        return "n/a"
    tallied = {name: sum(versus.verdict == name for versus in found) for name in VERDICTS}
    parts = [f"{count} {name}" for name, count in tallied.items() if count]
    return f"{', '.join(parts)}: {numbers.span([versus.ratio.value for versus in found])}"
