"""The gate of the update rules other than AdamW: twelve steps on small tensors against float64.

The error is :func:`apexbench.measuring.parity.error` over the elements of all tensors, relative
where a parameter is large and in units of their root mean square where it is small. Allowed are 16
unit roundoffs of the dtype a step (a handful of stored results a step, and a factor of 3 for their
growth), plus 4 · 2^-24 / (1 - β2) where the rule divides by 1 - β2^t (the power may be taken in
float32), plus 8 sqrt(n) eps(float32) where it takes the norm of n elements. A planted fault that
moves no element by 10 × that is declared undetectable; in float32 there is none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from apexbench.components import adamw_parity, optimizer_formulas
from apexbench.components.adamw_reference import flat
from apexbench.measuring import parity
from apexbench.records import Check, Parity

Tensors = list[torch.Tensor]

SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"betas": (0.9, 0.999), "eps": 1e-2, "weight_decay": 0.1},
    "sgd": {"momentum": 0.9, "weight_decay": 0.1},
    "adagrad": {"eps": 1e-2, "weight_decay": 0.1},
    "lamb": {"betas": (0.9, 0.999), "eps": 1e-2, "weight_decay": 0.1, "max_grad_norm": 1.0},
    "novograd": {"betas": (0.9, 0.999), "eps": 1e-2, "weight_decay": 0.1},
}
"""Made to reveal faults, not to train."""

NORMS = ("lamb", "novograd")
FORMULA = (
    "max |p - p_float64| / (|p_float64| + rms(p_float64)) <= 16 steps x 2^-p (dtype) "
    "+ 4 x 2^-24 / (1 - beta2) for bias corrections + 8 sqrt(n) eps(float32) for norms of n"
)


def tolerance(algorithm: str, dtype: torch.dtype, largest: int) -> float:
    """Largest error of a parameter accepted, where ``largest`` is the longest tensor."""
    allowed = 16 * len(adamw_parity.SETTINGS.learning_rates) * torch.finfo(dtype).eps / 2
    if "betas" in SETTINGS[algorithm]:
        allowed += 4 * 2.0**-24 / (1 - SETTINGS[algorithm]["betas"][1])
    if algorithm in NORMS:
        allowed += 8 * math.sqrt(largest) * torch.finfo(torch.float32).eps
    return allowed


@dataclass(frozen=True)
class Yardstick:
    """What one set of inputs must lead to, and the planted faults that the dtype hides."""

    start: Tensors
    gradients: list[Tensors]
    truth: torch.Tensor
    allowed: float
    undetectable: list[str]


@functools.lru_cache(maxsize=16)
def yardstick(
    algorithm: str, dtype: torch.dtype, device: str, seed: int, few: bool = False
) -> Yardstick:
    """The yardstick that all implementations of a rule share, on the CPU wherever they run."""
    start, gradients = adamw_parity.inputs(dtype, device, seed, few)
    rates, settings = adamw_parity.SETTINGS.learning_rates, SETTINGS[algorithm]

    def ends(fault: str | None = None) -> torch.Tensor:
        return flat(optimizer_formulas.run(algorithm, start, gradients, rates, settings, fault))

    truth = ends()
    allowed = tolerance(algorithm, dtype, max(p.numel() for p in start))
    hidden = []
    for fault in optimizer_formulas.FAULTS[algorithm]:
        if (parity.error(ends(fault), truth) or 0.0) < 10 * allowed:
            hidden.append(fault)
    return Yardstick(start, gradients, truth, allowed, hidden)


def check(
    algorithm: str,
    build: Callable[[list[torch.nn.Parameter]], Any],
    dtype: torch.dtype,
    device: str,
    seed: int,
    scale: float = 1.0,
    few: bool = False,
) -> Parity:
    """Run ``build(params)(lr)`` on fresh gradients times ``scale`` and compare with the formula."""
    right = yardstick(algorithm, dtype, device, seed, few)
    ends, _ = adamw_parity.drive(build, right.start, right.gradients, device, scale)
    result = Check("p", parity.error(ends, right.truth), right.allowed)
    return Parity(result.passed, FORMULA, [result], right.undetectable)
