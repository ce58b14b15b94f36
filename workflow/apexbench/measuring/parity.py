"""The gate before speed: how far a result is from the float64 reference, and how far it may be.

Error of a tensor: max |out - ref| / (|ref| + rms(ref)), which is relative where the reference is
large and absolute, in units of its root mean square, where it is small. Where a tensor's elements
are sums of terms of very different size (the rows of causal attention), the unit is each element's
own: the root of the sum of its terms' squares, which is what their roundings add up to.

Tolerance: 2 eps(dtype) + 8 sqrt(n) eps(float32), where dtype is the output's and n the reduction
length: two roundings to the output's precision, and the random-walk growth of n roundings in a
float32 accumulator (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2,
with the square root for random signs) with a factor of 8 for the order of summation.
"""

from __future__ import annotations

import math

import torch

from apexbench.records import Check, Parity

FORMULA = "max |out - ref| / (|ref| + rms(ref)) <= 2 eps(dtype) + 8 sqrt(n) eps(float32)"


def tolerance(dtype: torch.dtype, reduction: int) -> float:
    """Largest error accepted of a result in ``dtype`` that sums ``reduction`` terms."""
    return 2 * torch.finfo(dtype).eps + 8 * math.sqrt(reduction) * torch.finfo(torch.float32).eps


def error(
    result: torch.Tensor, reference: torch.Tensor, sizes: torch.Tensor | None = None
) -> float | None:
    """Error of ``result`` against a float64 ``reference`` of the same shape; None if not finite.

    ``sizes``, of the same shape, are the units of the elements in the place of rms(reference); what
    is below eps(dtype) · rms(reference), or no normal number of that dtype, is judged in units of
    the larger of the two.

    Raises ValueError where the shapes differ.
    """
    if result.shape != reference.shape:
        raise ValueError(
            f"shape {tuple(result.shape)} but the reference has {tuple(reference.shape)}"
        )
    if not bool(torch.isfinite(result).all()):
        return None
    wide = reference.double()
    scale = wide.square().mean().sqrt()
    if scale == 0:
        return float((result.double() - wide).abs().max())
    if sizes is not None:
        numbers = torch.finfo(result.dtype)
        scale = sizes.clamp_min(max(float(numbers.eps * scale), numbers.smallest_normal))
    value = float(((result.double() - wide).abs() / (wide.abs() + scale)).max())
    return value if math.isfinite(value) else None


def check(
    results: dict[str, torch.Tensor],
    references: dict[str, torch.Tensor],
    tolerances: dict[str, float],
    formula: str = FORMULA,
) -> Parity:
    """Compare tensors by name; passed only if every reference has a result within tolerance."""
    checks = []
    for name, reference in references.items():
        result = results.get(name)
        value = None if result is None else error(result, reference)
        checks.append(Check(name, value, tolerances[name]))
    return Parity(all(entry.passed for entry in checks), formula, checks)
