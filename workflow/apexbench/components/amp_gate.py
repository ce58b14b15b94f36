"""The gate of a training step in one precision.

Loss and every parameter's gradient of one step (unscaled) against the same model in
float64. With u the unit roundoff of the matrix products' inputs (2^-24, TF32 and float16 2^-11,
bfloat16 2^-8) and S = 4 × depth stages that round on the way to a gradient, the loss may be off
by a relative 2 S u; a gradient, in relative Frobenius norm, by 2 S u + sqrt(S u / 4): the root is
the share of ReLUs whose sign rounding turns, each of which changes its term of the gradient by its
whole size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from apexbench.records import Check, Parity

ROUNDOFF = {"float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FORMULA = (
    "loss: |loss - loss_float64| / |loss_float64| <= 2 S u; gradients: Frobenius norm of the error "
    "over that of the float64 gradient <= 2 S u + sqrt(S u / 4); S = 4 x depth, u the unit "
    "roundoff of the matrix products' inputs"
)


def compare(
    loss: torch.Tensor,
    expected: torch.Tensor,
    gradients: Mapping[str, torch.Tensor | None],
    right: Mapping[str, torch.Tensor],
    stages: float,
) -> Parity:
    """The checks of a step; ``stages`` is S u, ``expected`` and ``right`` are in float64."""
    checks = [Check("loss", _relative(loss, expected), 2 * stages)]
    limit = 2 * stages + (stages / 4) ** 0.5
    for name, reference in right.items():
        result = gradients[name]
        error = None if result is None else _relative(result, reference)
        checks.append(Check(f"gradient of {name}", error, limit))
    return Parity(all(entry.passed for entry in checks), FORMULA, checks)


def _relative(result: torch.Tensor, expected: torch.Tensor) -> float | None:
    """Frobenius norm of the error over that of ``expected``; None if not finite."""
    if not bool(torch.isfinite(result).all()):
        return None
    return float((result.double() - expected).norm() / expected.norm())
