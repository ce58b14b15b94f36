"""The learning rate of a step."""

from __future__ import annotations

import math

WARMUP_STEPS = 20


def learning_rate(step: int, peak: float) -> float:
    """Linear warm-up, then inverse square root: it changes at every step and needs no horizon.

    Vaswani et al., arXiv:1706.03762, section 5.3.
    """
    done = step + 1
    return peak * min(done / WARMUP_STEPS, math.sqrt(WARMUP_STEPS / done))
