"""The gate of AdamW: small tensors, twelve steps, each with its own learning rate and gradients.

Two kinds of check. *Bound*: no element may be further from float64 than the running error bound
of :mod:`adamw_reference`; in float32 every planted fault breaks it by orders of magnitude. *Fault
share*: in 16-bit dtypes rounding hides a fault in a single element, but not along the fault's own
direction over all elements. With e the error and d what the fault would do to the parameters, the
share |<e, d>| / <d, d> is 1 where the fault is present and near 0 where there is only rounding; 0.1
is allowed, a tenth of the fault. A fault is declared undetectable in a dtype where it moves no
element by 10 × its bound and rounding after every single operation alone already has a share above
half of what is allowed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from apexbench.components import adamw_reference as reference
from apexbench.components.adamw_reference import FAULTS, Settings, Trajectory
from apexbench.records import Check, Parity

SETTINGS = Settings()
SHARE = 0.1
FORMULA = (
    f"bound: {reference.BOUND}; fault share: |<e, d>| / <d, d> <= {SHARE} for e = p - p_float64 "
    "and d what a planted fault does to p (1 where the fault is there)"
)

Tensors = list[torch.Tensor]


def shapes(device: str, few: bool = False) -> list[tuple[int, ...]]:
    """Odd, tiny, unaligned, longer than a 64 Ki chunk; on a GPU more than one launch can hold.

    ``few`` leaves the many out: torch.compile takes a second for every five tensors.
    """
    mixed: list[tuple[int, ...]] = [(257, 300), (1,), (7,), (33, 65), (1000,), (513,)]
    if device == "cuda" and not few:
        mixed += [*((5 + number,) for number in range(120)), (129, 65)]
    return mixed


def inputs(
    dtype: torch.dtype, device: str, seed: int, few: bool = False
) -> tuple[Tensors, list[Tensors]]:
    """p ~ 0.1 N(0, 1), and for every step signed g, |g| log-uniform in 1e-4 … 1, in ``dtype``."""
    generator = torch.Generator().manual_seed(seed)
    size = shapes(device, few)
    params = [(0.1 * torch.randn(shape, generator=generator)).to(dtype) for shape in size]

    def gradient(shape: tuple[int, ...]) -> torch.Tensor:
        magnitude = torch.exp(math.log(1e4) * (torch.rand(shape, generator=generator) - 1))
        sign = torch.where(torch.rand(shape, generator=generator) < 0.5, -1.0, 1.0)
        return (magnitude * sign).to(dtype)

    gradients = [[gradient(shape) for shape in size] for _ in SETTINGS.learning_rates]
    return params, gradients


@dataclass(frozen=True)
class Yardstick:
    """What one set of inputs must lead to, and what each planted fault would make of it."""

    start: Tensors
    gradients: list[Tensors]
    truth: Trajectory
    planted: dict[str, Tensors]
    undetectable: list[str]


@functools.lru_cache(maxsize=4)
def yardstick(dtype: torch.dtype, device: str, seed: int, few: bool = False) -> Yardstick:
    """The yardstick that all implementations of a case share."""
    start, gradients = inputs(dtype, device, seed, few)
    truth = reference.adamw(start, gradients, SETTINGS, dtype)
    planted = {
        fault: reference.adamw(start, gradients, SETTINGS, dtype, fault).params for fault in FAULTS
    }
    rounded = _rounded(start, gradients, dtype)
    undetectable = [
        fault
        for fault, ends in planted.items()
        if reference.displacement(ends, truth) < 10
        and fault_share(rounded, truth.params, ends) > SHARE / 2
    ]
    return Yardstick(start, gradients, truth, planted, undetectable)


def check(
    build: Callable[[list[torch.nn.Parameter]], Any],
    dtype: torch.dtype,
    device: str,
    seed: int,
    scale: float = 1.0,
    few: bool = False,
) -> Parity:
    """Run ``build(params)(lr)`` on fresh gradients times ``scale`` and compare with the formula.

    ``build`` returns a callable that sets the learning rate and updates the parameters from their
    ``.grad``. Where its optimizer keeps float32 master weights, these must follow the formula to
    float32's bound.
    """
    right = yardstick(dtype, device, seed, few)
    params = [torch.nn.Parameter(p.to(device, copy=True)) for p in right.start]
    for p in params:
        p.grad = torch.zeros_like(p)
    update = build(params)
    masters = _masters(update)
    # One transfer a step: copying tensor by tensor to a GPU takes longer than all the rest.
    sizes = [p.numel() for p in params]
    for lr, step in zip(SETTINGS.learning_rates, right.gradients, strict=True):
        flat = torch.cat([g.flatten() for g in step]).to(device) * scale
        for p, g in zip(params, flat.split(sizes), strict=True):
            assert p.grad is not None
            p.grad.copy_(g.view_as(p))
        update(lr)
    ends = _to_host(params)
    kept = _to_host(masters)
    update.close()
    checks = compare(ends, right)
    if kept:
        wide = reference.adamw(right.start, right.gradients, SETTINGS, torch.float32)
        checks += _bounded("master weights", kept, wide)
    return Parity(all(entry.passed for entry in checks), FORMULA, checks, right.undetectable)


def _to_host(tensors: Sequence[torch.Tensor]) -> Tensors:
    if not tensors:
        return []
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def compare(ends: Tensors, right: Yardstick) -> list[Check]:
    """The checks of final parameters, without those of faults that the dtype hides."""
    checks = _bounded("p", ends, right.truth)
    for fault, planted in right.planted.items():
        if fault not in right.undetectable:
            share = fault_share(ends, right.truth.params, planted)
            checks.append(
                Check(f"share of: {fault}", share if math.isfinite(share) else None, SHARE)
            )
    return checks


def fault_share(ends: Sequence[torch.Tensor], truth: Tensors, planted: Tensors) -> float:
    """|<e, d>| / <d, d> over all tensors; NaN where a result is not finite."""
    along = square = 0.0
    for end, right, wrong in zip(ends, truth, planted, strict=True):
        direction = wrong - right
        along += float(((end.double() - right) * direction).sum())
        square += float(direction.square().sum())
    return abs(along) / square


def _bounded(name: str, ends: Tensors, truth: Trajectory) -> list[Check]:
    """The element with the largest share of its bound, for the whole set of tensors."""
    worst = Check(f"{name} (largest share of its bound)", 0.0, 0.0)
    worst_share = -1.0
    for end, right, bound in zip(ends, truth.params, truth.bounds, strict=True):
        if not bool(torch.isfinite(end).all()):
            return [Check(worst.tensor, None, float(bound.max()))]
        error = (end.double() - right).abs()
        place = int((error / bound).argmax())
        share = float(error.flatten()[place] / bound.flatten()[place])
        if share > worst_share:
            worst_share = share
            worst.error, worst.tolerance = (float(x.flatten()[place]) for x in (error, bound))
    return [worst]


def _rounded(start: Tensors, gradients: list[Tensors], dtype: torch.dtype) -> Tensors:
    """The formula with every single result rounded to ``dtype``: the least accurate honest way."""
    beta1, beta2 = SETTINGS.betas
    ends = []
    for place, first in enumerate(start):
        p = first.clone()
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for step, lr in enumerate(SETTINGS.learning_rates, start=1):
            g = gradients[step - 1][place]
            m = m * beta1 + g * (1 - beta1)
            v = v * beta2 + (g * g) * (1 - beta2)
            denominator = (v / (1 - beta2**step)).sqrt() + SETTINGS.eps
            p = p - p * (lr * SETTINGS.weight_decay) - (m / (1 - beta1**step)) / denominator * lr
        ends.append(p)
    return ends


def _masters(update: Any) -> Tensors:
    groups = getattr(getattr(update, "optimizer", None), "param_groups_master", [])
    found = [master for group in groups for master in group["params"]]
    return [master for master in found if master is not None]
