"""Apex's softmax extensions as differentiable functions.

Apex removed apex.transformer, which wrapped them, and still builds the modules: ``forward(scores,
[mask,] scale)`` gives the probabilities, ``backward(gradient, probabilities, scale)`` the gradient
of the scores, written over the first. Both take float16 or bfloat16. A mask is one byte a value, 1
where hidden, of shape (batch or 1, 1, query, key); the causal kernel takes (batch · heads, n, n).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from apexbench.components.operations import Function


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, mask: torch.Tensor | None, scale: float, module: Any
    ) -> torch.Tensor:
        arguments = (scores,) if mask is None else (scores, mask)
        p: torch.Tensor = module.forward(*arguments, scale)
        ctx.save_for_backward(p)
        ctx.scale, ctx.module = scale, module
        return p

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (p,) = ctx.saved_tensors
        return ctx.module.backward(gradient, p, ctx.scale), None, None, None


_softmax: Any = _Softmax.apply


def dedicated(mask: str, scale: float) -> Function:
    """The kernel that was made for one kind of mask: ``causal``, ``padding`` or ``none``."""
    if mask == "causal":
        causal = importlib.import_module("scaled_upper_triang_masked_softmax_cuda")

        def triangle(scores: torch.Tensor) -> torch.Tensor:
            flat = scores.flatten(0, 1).contiguous()
            p: torch.Tensor = _softmax(flat, None, scale, causal)
            return p.view_as(scores)

        return triangle
    name = "scaled_masked_softmax_cuda" if mask == "padding" else "scaled_softmax_cuda"
    return _plain(importlib.import_module(name), scale)


def generic(scale: float) -> Function:
    """The kernel for any length of the keys; it needs a mask."""
    return _plain(importlib.import_module("generic_scaled_masked_softmax_cuda"), scale)


def _plain(module: Any, scale: float) -> Function:
    def softmax(scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        p: torch.Tensor = _softmax(scores.contiguous(), mask, scale, module)
        return p

    return softmax
