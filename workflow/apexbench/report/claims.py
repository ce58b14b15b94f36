"""The tutorial's six claims, each with a status and its evidence, computed from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from apexbench.report import vocabulary
from apexbench.report.amp_claim import amp_obsolete
from apexbench.report.cases import Case
from apexbench.report.claim import NOT_TESTED, Claim, is_adam, is_apex
from apexbench.report.component_claims import built_from_source, by_axis, by_case, faster_everywhere
from apexbench.report.training_claims import gain_over_fp32, grows_with_scale

MOST_SENTENCES = 40

__all__ = ["NOT_TESTED", "Claim", "evaluate", "is_adam", "is_apex"]


def evaluate(cases: Sequence[Case]) -> list[Claim]:
    """C1 to C6 from the cases of one machine."""
    return [_cut(claim) for claim in _evaluate(cases)]


def _cut(claim: Claim) -> Claim:
    """The claim with as many sentences as can be read, and how many more there are."""
    left = len(claim.evidence) - MOST_SENTENCES
    if left <= 0:
        return claim
    more = f"{left} more sentences are left out."
    return replace(claim, evidence=[*claim.evidence[:MOST_SENTENCES], more])


def _evaluate(cases: Sequence[Case]) -> list[Claim]:
    by = {name: [case for case in cases if case.component == name] for name in vocabulary.ORDER}
    return [
        built_from_source(cases),
        faster_everywhere("C2", by["optimizer"], is_adam, by_case),
        faster_everywhere("C3", by["layer_norm"] + by["rms_norm"], is_apex, by_axis),
        amp_obsolete(by["amp"]),
        gain_over_fp32(by["transformer"]),
        grows_with_scale(by["transformer"]),
    ]
