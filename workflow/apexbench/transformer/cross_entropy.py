"""Output head and cross entropy in one, a few thousand tokens at a time.

The head's logits are the largest tensor of a training step: N tokens × V words. Here a chunk of
tokens at a time goes through the head, its loss and the gradients of input and weight are taken at
once, and its logits are dropped: 2·N·V·d FLOPs forward and 4·N·V·d backward, as without chunks,
none twice. Liger kernels do the same (Hsu et al., arXiv:2410.10989, section 3.2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 2048
"""Tokens: enough that its matrix products fill a GPU."""


class HeadLoss(torch.autograd.Function):
    """Sum over tokens of -log softmax(x Wᵀ)[target], with its gradients computed on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        """Float32 scalar of x (N, d) and weight (V, d), of one dtype, and targets (N,)."""
        losses, parts = [], []
        gradient: Tensor | None = None
        for rows, target in zip(x.split(chunk), targets.split(chunk), strict=True):
            logits = (rows @ weight.T).float()
            target = target[:, None]
            normaliser = logits.logsumexp(dim=1, keepdim=True)
            losses.append((normaliser - logits.gather(1, target)).sum())
            words = torch.arange(weight.shape[0], device=x.device)
            error = (logits - normaliser).exp() - (words == target).float()  # softmax - one-hot
            error = error.to(x.dtype)
            parts.append(error @ weight)
            gradient = error.T @ rows if gradient is None else torch.addmm(gradient, error.T, rows)
        ctx.save_for_backward(torch.cat(parts), gradient)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Both gradients, kept since the forward, times that of the loss."""
        x, weight = ctx.saved_tensors
        return (x * grads[0]).to(x.dtype), (weight * grads[0]).to(weight.dtype), None, None


def chunked_cross_entropy(
    x: Tensor, head: nn.Linear, targets: Tensor, dtype: torch.dtype, chunk: int = CHUNK
) -> Tensor:
    """As ``model.cross_entropy``; ``dtype`` is what the head computes in."""
    with torch.autocast(x.device.type, enabled=False):
        total: Tensor = HeadLoss.apply(x.to(dtype), head.weight.to(dtype), targets, chunk)  # type: ignore[no-untyped-call]
    return total / targets.numel()
