"""The update rules other than AdamW's in float64, by formula, each with faults to be planted.

At step t = 1, 2, … with learning rate lr, decay λ, and per tensor where a norm is taken:

* Adam (Kingma and Ba, ICLR 2015), decay as an L2 term: g ← g + λp, then m ← β1·m + (1 - β1)·g,
  v ← β2·v + (1 - β2)·g², p ← p - lr·(m / (1 - β1^t)) / (sqrt(v / (1 - β2^t)) + ε).
* SGD with momentum μ: g ← g + λp; b ← μ·b + g (b = g at t = 1); p ← p - lr·b.
* Adagrad (Duchi et al., JMLR 2011): g ← g + λp; h ← h + g²; p ← p - lr·g / (sqrt(h) + ε).
* LAMB (You et al., ICLR 2020): all gradients are first divided by max(1, |g| / c), |g| the norm
  over all tensors and c = ``max_grad_norm``; m and v as in Adam, without λ;
  u = (m / (1 - β1^t)) / (sqrt(v / (1 - β2^t)) + ε) + λp; p ← p - lr·(|p| / |u|)·u.
* NovoGrad (Ginsburg et al., arXiv:1905.11286) as Apex has it by default: one v per tensor,
  v ← sqrt(β2·v² + (1 - β2)·|g|²) (v = |g| before t = 1); m ← β1·m + (1 - β1)·g;
  p ← p - lr·((m / (1 - β1^t)) / (v / sqrt(1 - β2^t) + ε) + λp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = list[torch.Tensor]
Settings = dict[str, Any]

NO_DECAY, DECOUPLED = "no weight decay", "decoupled weight decay"
NO_CORRECTION, DROPPED = "no bias correction", "dropped gradient"
INSIDE = "eps inside the square root"


class _Rule:
    """The state of one tensor; ``update(p, g, lr, t)`` returns what is taken from p."""

    faults: tuple[str, ...] = ()

    def __init__(self, like: torch.Tensor, settings: Settings, fault: str | None):
        self.settings, self.fault = settings, fault
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like)

    def decay(self, p: torch.Tensor) -> torch.Tensor | float:
        """λp, unless the planted fault leaves it out."""
        return 0.0 if self.fault == NO_DECAY else self.settings["weight_decay"] * p

    def moments(self, g: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """m / (1 - β1^t) and v / (1 - β2^t) after taking ``g`` in."""
        beta1, beta2 = self.settings["betas"]
        self.first = beta1 * self.first + (1 - beta1) * g
        self.second = beta2 * self.second + (1 - beta2) * g * g
        if self.fault == NO_CORRECTION:
            return self.first, self.second
        return self.first / (1 - beta1**t), self.second / (1 - beta2**t)

    def root(self, square: torch.Tensor) -> torch.Tensor:
        """sqrt(square) + ε."""
        eps = self.settings["eps"]
        return (square + eps).sqrt() if self.fault == INSIDE else square.sqrt() + eps

    def update(self, p: torch.Tensor, g: torch.Tensor, lr: float, t: int) -> torch.Tensor:
        raise NotImplementedError


class Adam(_Rule):
    faults = (NO_DECAY, DECOUPLED, NO_CORRECTION, INSIDE, DROPPED)

    def update(self, p: torch.Tensor, g: torch.Tensor, lr: float, t: int) -> torch.Tensor:
        outside = self.decay(p) if self.fault == DECOUPLED else 0.0
        mean, square = self.moments(g if self.fault == DECOUPLED else g + self.decay(p), t)
        return lr * (mean / self.root(square) + outside)


class Sgd(_Rule):
    faults = (NO_DECAY, DECOUPLED, "no momentum", "dampened momentum", DROPPED)

    def update(self, p: torch.Tensor, g: torch.Tensor, lr: float, t: int) -> torch.Tensor:
        outside = self.decay(p) if self.fault == DECOUPLED else 0.0
        g = g if self.fault == DECOUPLED else g + self.decay(p)
        momentum = 0.0 if self.fault == "no momentum" else self.settings["momentum"]
        kept = 1 - momentum if self.fault == "dampened momentum" and t > 1 else 1.0
        self.first = momentum * self.first + kept * g
        return lr * (self.first + outside)


class Adagrad(_Rule):
    faults = (NO_DECAY, DECOUPLED, INSIDE, DROPPED)

    def update(self, p: torch.Tensor, g: torch.Tensor, lr: float, t: int) -> torch.Tensor:
        outside = self.decay(p) if self.fault == DECOUPLED else 0.0
        g = g if self.fault == DECOUPLED else g + self.decay(p)
        self.second = self.second + g * g
        return lr * (g / self.root(self.second) + outside)


class Lamb(_Rule):
    faults = (NO_DECAY, NO_CORRECTION, "no trust ratio", "gradients not clipped", INSIDE, DROPPED)

    def update(self, p: torch.Tensor, g: torch.Tensor, lr: float, t: int) -> torch.Tensor:
        mean, square = self.moments(g, t)
        u = mean / self.root(square) + self.decay(p)
        sizes = float(p.norm()), float(u.norm())
        ratio = sizes[0] / sizes[1] if min(sizes) > 0 and self.fault != "no trust ratio" else 1.0
        return lr * ratio * u


class NovoGrad(_Rule):
    faults = (NO_DECAY, NO_CORRECTION, "a second moment of each element", DROPPED)

    def update(self, p: torch.Tensor, g: torch.Tensor, lr: float, t: int) -> torch.Tensor:
        beta1, beta2 = self.settings["betas"]
        size = g.abs() if self.fault == "a second moment of each element" else g.norm()
        before = size if t == 1 else self.second
        self.second = (beta2 * before**2 + (1 - beta2) * size**2).sqrt()
        self.first = beta1 * self.first + (1 - beta1) * g
        first, second = 1 - beta1**t, (1 - beta2**t) ** 0.5
        if self.fault == NO_CORRECTION:
            first = second = 1.0
        denominator = self.second / second + self.settings["eps"]
        return lr * (self.first / first / denominator + self.decay(p))


RULES: dict[str, Callable[[torch.Tensor, Settings, str | None], _Rule]] = {
    "adam": Adam,
    "sgd": Sgd,
    "adagrad": Adagrad,
    "lamb": Lamb,
    "novograd": NovoGrad,
}
FAULTS: dict[str, tuple[str, ...]] = {name: rule.faults for name, rule in RULES.items()}  # type: ignore[attr-defined]


def run(
    algorithm: str,
    start: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
    learning_rates: Sequence[float],
    settings: Settings,
    fault: str | None = None,
) -> Tensors:
    """The parameters, float64, after one step a learning rate on ``gradients[step][tensor]``.

    ``fault`` plants one of ``FAULTS[algorithm]``; "dropped gradient" loses the last tensor's
    gradient in the middle step. ValueError for another.
    """
    if fault is not None and fault not in FAULTS[algorithm]:
        raise ValueError(f"{fault!r} is no planted fault of {algorithm}: {FAULTS[algorithm]}")
    params = [p.detach().double() for p in start]
    rules = [RULES[algorithm](p, settings, fault) for p in params]
    for t, (lr, step) in enumerate(zip(learning_rates, gradients, strict=True), start=1):
        fresh = [g.double() for g in step]
        if fault == DROPPED and t == len(learning_rates) // 2 + 1:
            fresh[-1] = torch.zeros_like(fresh[-1])
        if algorithm == "lamb" and fault != "gradients not clipped":
            size = float(torch.stack([g.norm() for g in fresh]).norm())
            fresh = [g / max(1.0, size / settings["max_grad_norm"]) for g in fresh]
        params = [
            p - rule.update(p, g, lr, t) for rule, p, g in zip(rules, params, fresh, strict=True)
        ]
    return params
