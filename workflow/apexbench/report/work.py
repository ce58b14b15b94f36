"""Least work of a call: one sentence where all cases share a formula, a small table otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence

from apexbench.report import numbers, vocabulary
from apexbench.report.cases import Case

_NORM = re.compile(r"^N × (\S+ B), N = rows × width$")


def least(cases: Sequence[Case]) -> tuple[list[str], str, list[tuple[str, str]]]:
    """Sentences, and a table's title and rows (which cases, what they must move)."""
    groups: dict[str, list[str]] = {}
    for case in cases:
        if case.work.formula not in ("", "n/a"):
            found = groups.setdefault(case.work.formula, [])
            label = _kind(case)
            if label not in found:
                found.append(label)
    if not groups:
        return [], "", []
    if len(groups) == 1:
        (formula,) = groups
        return [f"Least work of a call, the same for every arm: {formula}."], "", []
    title = "Least bytes that a call must move, the same for every arm"
    if all(_NORM.match(formula) for formula in groups):
        title += "; an element is one of rows × width"
        groups = {_NORM.sub(r"\1 per element", key): kinds for key, kinds in groups.items()}
    rows = [(numbers.listing(sorted(kinds), most=6), formula) for formula, kinds in groups.items()]
    return [], title, sorted(rows)


def _kind(case: Case) -> str:
    """What a formula depends on: direction and dtype, autocast, GradScaler; else the case."""
    config = case.config
    if "dtype" not in config:
        return case.name
    words = [str(config["dtype"])]
    if config.get("autocast"):
        words.append("autocast")
    if config.get("grad_scaler"):
        words.append("with GradScaler")
    if "direction" in config:
        direction = str(config["direction"])
        return f"{vocabulary.DIRECTIONS.get(direction, direction)}, {' '.join(words)}"
    return " ".join(words)
