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

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
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
    """What one set of inputs must lead to, and what each planted fault would make of it.

    ``masters`` is the truth with the bound of float32, whatever the parameters' dtype.
    """

    start: Tensors
    gradients: list[Tensors]
    truth: Trajectory
    masters: Trajectory
    planted: dict[str, torch.Tensor]
    undetectable: list[str]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Vectors this short gain nothing from threads, which wait for each other on busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.lru_cache(maxsize=8)
@_one_thread()
def yardstick(dtype: torch.dtype, device: str, seed: int, few: bool = False) -> Yardstick:
    """The yardstick that all implementations and cases share, on the CPU wherever they run."""
    start, gradients = inputs(dtype, device, seed, few)
    truth = reference.adamw(start, gradients, SETTINGS, dtype)
    planted = {
        fault: reference.adamw(start, gradients, SETTINGS, dtype, fault).params for fault in FAULTS
    }
    rounded = _rounded(start, gradients)
    undetectable = [
        fault
        for fault, ends in planted.items()
        if reference.displacement(ends, truth) < 10
        and fault_share(rounded, truth.params, ends) > SHARE / 2
    ]
    masters = reference.adamw(start, gradients, SETTINGS, torch.float32)
    return Yardstick(start, gradients, truth, masters, planted, undetectable)


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
    ends, kept = drive(build, right.start, right.gradients, device, scale)
    with _one_thread():
        checks = compare(ends, right)
        if kept is not None:
            checks.append(_bounded("master weights", kept, right.masters))
    return Parity(all(entry.passed for entry in checks), FORMULA, checks, right.undetectable)


def drive(
    build: Callable[[list[torch.nn.Parameter]], Any],
    start: Tensors,
    gradients: list[Tensors],
    device: str,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Take the steps of :data:`SETTINGS` on fresh gradients times ``scale``.

    Returns the parameters, and the float32 master weights where there are any, in a row on the CPU.
    """
    params = [torch.nn.Parameter(p.to(device, copy=True)) for p in start]
    for p in params:
        p.grad = torch.zeros_like(p)
    update = build(params)
    masters = _masters(update)
    views = [p.grad for p in params if p.grad is not None]
    sizes = [p.numel() for p in params]
    with _one_thread():
        scaled = [reference.flat(step) * scale for step in gradients]
    for lr, step in zip(SETTINGS.learning_rates, scaled, strict=True):
        # One transfer a step: copying tensor by tensor to a GPU takes longer than all the rest.
        fresh = step.to(device).split(sizes)
        torch._foreach_copy_(views, [g.view_as(p) for g, p in zip(fresh, params, strict=True)])
        update(lr)
    ends = reference.flat(params).cpu()
    kept = reference.flat(masters).cpu() if masters else None
    update.close()
    return ends, kept


def compare(ends: torch.Tensor, right: Yardstick) -> list[Check]:
    """The checks of final parameters, without those of faults that the dtype hides."""
    checks = [_bounded("p", ends, right.truth)]
    for fault, planted in right.planted.items():
        if fault not in right.undetectable:
            share = fault_share(ends, right.truth.params, planted)
            checks.append(
                Check(f"share of: {fault}", share if math.isfinite(share) else None, SHARE)
            )
    return checks


def fault_share(ends: torch.Tensor, truth: torch.Tensor, planted: torch.Tensor) -> float:
    """|<e, d>| / <d, d> over all elements; NaN where a result is not finite."""
    direction = planted - truth
    along = float(((ends.double() - truth) * direction).sum())
    return abs(along) / float(direction.square().sum())


def _bounded(name: str, ends: torch.Tensor, truth: Trajectory) -> Check:
    """The element with the largest share of its bound; no error where a result is not finite."""
    name = f"{name} (largest share of its bound)"
    if not bool(torch.isfinite(ends).all()):
        return Check(name, None, float(truth.bounds.max()))
    error = (ends.double() - truth.params).abs()
    place = int((error / truth.bounds).argmax())
    return Check(name, float(error[place]), float(truth.bounds[place]))


def _rounded(start: Tensors, gradients: list[Tensors]) -> torch.Tensor:
    """The formula with every single result rounded to the inputs' dtype: the least accurate way."""
    beta1, beta2 = SETTINGS.betas
    p = reference.flat(start)
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step, lr in enumerate(SETTINGS.learning_rates, start=1):
        g = reference.flat(gradients[step - 1])
        m = m * beta1 + g * (1 - beta1)
        v = v * beta2 + (g * g) * (1 - beta2)
        denominator = (v / (1 - beta2**step)).sqrt() + SETTINGS.eps
        p = p - p * (lr * SETTINGS.weight_decay) - (m / (1 - beta1**step)) / denominator * lr
    return p


def _masters(update: Any) -> Tensors:
    groups = getattr(getattr(update, "optimizer", None), "param_groups_master", [])
    found = [master for group in groups for master in group["params"]]
    return [master for master in found if master is not None]
