"""Every figure of the report, a file per family."""

from __future__ import annotations

from collections.abc import Sequence

from apexbench.report import ceilings, vocabulary
from apexbench.report.cases import Case
from apexbench.report.figures import (
    attribution,
    ceiling,
    losses,
    norms,
    scaling,
    times,
    transformer,
)
from apexbench.report.figures.style import Figure

__all__ = ["Figure", "draw_all"]
_NORMS = ("layer_norm", "rms_norm")


def draw_all(cases: Sequence[Case]) -> list[Figure]:
    """The figures that these cases can fill, in the order of the story."""
    limits = ceilings.measured(cases)
    found: list[Figure | None] = []
    for component in sorted({case.component for case in cases}, key=vocabulary.order):
        own = [case for case in cases if case.component == component]
        if component == "transformer":
            found += transformer.draw(own, limits)
            found += [attribution.draw(own), losses.draw(own), scaling.draw(own)]
        elif component not in ("ceiling", "selfcheck"):
            ratios = norms.draw(component, own) if component in _NORMS else []
            found += ratios or [times.draw(component, own)]
            found.append(ceiling.draw(component, own, limits))
    return [figure for figure in found if figure is not None]
