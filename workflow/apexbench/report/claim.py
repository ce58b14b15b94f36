"""A claim of the tutorial, its status on this machine, and the sentences that say why."""

from __future__ import annotations

from dataclasses import dataclass, field

from apexbench.report.cases import Arm
from apexbench.report.verdicts import Tally

SUPPORTED, REFUTED, MIXED = "supported", "refuted", "mixed"
NOT_TESTED = "not tested on this machine"
TEXTS = {
    "C1": "Apex must be built from source with the C++ and CUDA extensions; a Python-only install "
    "lacks the fast kernels.",
    "C2": "FusedAdam updates weights faster than PyTorch's AdamW.",
    "C3": "FusedLayerNorm and FusedRMSNorm outperform PyTorch's standard layers.",
    "C4": "apex.amp is obsolete; torch.amp (autocast + GradScaler) is as fast and as stable.",
    "C5": "Apex + AMP gives a considerable throughput gain over FP32.",
    "C6": "The gain grows with model scale and parameter count.",
}


@dataclass
class Claim:
    """One claim, its status on this machine, and the sentences that say why."""

    id: str
    status: str
    evidence: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The claim as the tutorial makes it."""
        return TEXTS[self.id]


def is_apex(arm: Arm) -> bool:
    """Whether an arm is Apex's."""
    return arm.is_apex


def is_adam(arm: Arm) -> bool:
    """Whether an arm is Apex's FusedAdam, in any of its modes."""
    name = f"{arm.implementation} {arm.description}".lower()
    others = ("lamb", "sgd", "novograd", "adagrad")
    return arm.is_apex and not any(other in name for other in others)


def status(counts: Tally) -> str:
    """All decided verdicts faster: supported; none: refuted; half or more unclear: mixed."""
    if counts.total == 0:
        return NOT_TESTED
    if counts.unclear >= counts.decided:
        return MIXED
    if counts.faster == counts.decided:
        return SUPPORTED
    return REFUTED if counts.faster == 0 else MIXED
