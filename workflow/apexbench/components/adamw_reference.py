"""AdamW in float64 by formula, with a bound on what rounding may do to an implementation.

AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2, with
the decay multiplied by the learning rate as every framework does), at step t = 1, 2, …:

    m ← β1·m + (1 - β1)·g                    v ← β2·v + (1 - β2)·g²
    p ← p - lr·λ·p - lr·(m / (1 - β1^t)) / (sqrt(v / (1 - β2^t)) + ε)

The tolerance is a running error bound (Higham, Accuracy and Stability of Numerical Algorithms,
section 3.3), carried element by element beside the reference: every stored result may be off by its
unit roundoff u of the dtype it is stored in (and half the smallest subnormal), m and v are stored
up to three times a step, the denominator's chain rounds four times, p three times. The bias
corrections 1 - β^t may be taken in float32 with β itself in float32, which loses a relative
2^-24 · (1 / (1 - β) + 2 / (1 - β^t)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BOUND = (
    "running error bound on |p - p_float64| per element over all steps: u(dtype) x "
    "(3 roundings of p + 3 of m + 3 of v + 6 of the update) a step, propagated through the update, "
    "+ 2^-24 (1 / (1 - beta) + 2 / (1 - beta^t)) for bias corrections in float32"
)

FAULTS = (
    "coupled weight decay",
    "no weight decay",
    "no bias correction",
    "eps inside the square root",
    "dropped gradient",
)
"""What the gate must see: each is shown to move the result by 10 × the tolerance."""

FLOAT32_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters; the defaults are made to reveal faults, not to train."""

    learning_rates: tuple[float, ...] = tuple(0.1 * (1 - 0.05 * step) for step in range(12))
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-2
    weight_decay: float = 0.1

    def as_case(self) -> dict[str, float | tuple[float, float]]:
        """The keys that an optimizer case overrides for the parity check."""
        return {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}


@dataclass
class Trajectory:
    """The end of a run: parameters and their bounds, float64, every tensor's elements in a row."""

    params: torch.Tensor
    bounds: torch.Tensor


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors in one vector: the formula looks at each alone."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def adamw(
    params: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
    settings: Settings,
    dtype: torch.dtype,
    fault: str | None = None,
) -> Trajectory:
    """Run the formula in float64 on ``gradients[step][tensor]``.

    ``dtype`` is the one the implementation stores p, m and v in, for the bound. ``fault`` plants
    one of ``FAULTS``; "dropped gradient" loses the last tensor's gradient in the middle step.
    """
    if fault is not None and fault not in FAULTS:
        raise ValueError(f"{fault!r} is no planted fault: {FAULTS}")
    steps = [flat(step).double() for step in gradients]
    if fault == "dropped gradient":
        steps[len(steps) // 2][-params[-1].numel() :] = 0
    return _run(flat(params).double(), steps, settings, dtype, fault)


def _run(
    p: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    settings: Settings,
    dtype: torch.dtype,
    fault: str | None,
) -> Trajectory:
    info = torch.finfo(dtype)
    u, least = info.eps / 2, info.smallest_normal * info.eps / 2
    beta1, beta2 = settings.betas
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    dm, dv, dp = torch.zeros_like(p), torch.zeros_like(p), torch.zeros_like(p)
    for step, (lr, gradient) in enumerate(
        zip(settings.learning_rates, gradients, strict=True), start=1
    ):
        decay = 0.0 if fault == "no weight decay" else settings.weight_decay
        g = gradient
        if fault == "coupled weight decay":
            g, decay = g + decay * p, 0.0
        dm = beta1 * dm + 3 * (u * torch.maximum(m.abs(), (1 - beta1) * g.abs()) + least)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        dv = beta2 * dv + 3 * (u * v + least)
        c1, c2 = 1 - beta1**step, 1 - beta2**step
        if fault == "no bias correction":
            c1 = c2 = 1.0
        # Corrections in float32 shift m/c1 and v/c2 as an error of m and v would.
        em = (dm + FLOAT32_ROUNDOFF * (1 / (1 - beta1) + 2 / c1) * m.abs()) / c1
        ev = (dv + FLOAT32_ROUNDOFF * (1 / (1 - beta2) + 2 / c2) * v) / c2
        mean, square = m / c1, v / c2
        root = square.sqrt()
        if fault == "eps inside the square root":
            denominator = (square + settings.eps).sqrt()
        else:
            denominator = root + settings.eps
        d_denominator = root - (square - ev).clamp(min=0).sqrt() + 4 * u * denominator
        update = mean / denominator
        worst = (mean.abs() + em) / (denominator - d_denominator).clamp(min=settings.eps / 2)
        d_update = worst - update.abs() + 6 * u * update.abs()
        largest = torch.maximum(p.abs(), lr * update.abs())
        p = p - lr * decay * p - lr * update
        dp = dp + lr * d_update + 3 * (u * torch.maximum(largest, p.abs()) + least)
    return Trajectory(p, dp)


def displacement(ends: torch.Tensor, truth: Trajectory) -> float:
    """The most that any element lies from the reference, as a multiple of its bound."""
    return float(((ends.double() - truth.params).abs() / truth.bounds).max())
