"""Rotary position embedding of queries or keys (sequence, batch, heads, 128).

Su et al., RoFormer, arXiv:2104.09864, in the form with the halves of a head's dimension paired:
y = x · cos θ + rotate(x) · sin θ, rotate((a, b)) = (-b, a), θ of position t and pair i is
t · 10000^(-2 i / 128), in float32 and the same for both halves.

Case: ``batch``, ``heads``, ``sequence``, ``dtype``, ``direction``. cos θ and sin θ are there before
the window, in the case's dtype, for all that take them.

Bytes that must move, N values of s bytes: forward reads x and writes y, backward reads dy and
writes dx, 2 s N each; the angles are left out, they are below a hundredth.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.components.operations import (
    BYTES,
    Function,
    Inputs,
    OperationWorkload,
    allowed,
    passes,
)
from apexbench.records import Work

HEAD = 128
BASE = 10000.0
NEEDS = (requirements.apex("fused_rotary_positional_embedding"),)


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``4096×4×32×128 bfloat16 forward+backward``."""
    shape = f"{case['sequence']}×{case['batch']}×{case['heads']}×{HEAD}"
    return f"{shape} {case['dtype']} {case['direction'].replace('_', '+')}"


def rotate(x: torch.Tensor) -> torch.Tensor:
    """(a, b) to (-b, a) along the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class RopeWorkload(OperationWorkload):
    """x, the angles (sequence, 1, 1, 128) in float32, their cosines and sines."""

    chunk = 256

    @staticmethod
    def least(case: Case) -> Work:
        each = passes(case["direction"], 2, 2) * BYTES[case["dtype"]]
        elements = case["sequence"] * case["batch"] * case["heads"] * HEAD
        return Work(elements * each, None, f"{each} B × sequence × batch × heads × {HEAD}", "copy")

    def make(self) -> Inputs:
        n, b, h = (self.case[key] for key in ("sequence", "batch", "heads"))
        pairs = torch.arange(0, HEAD, 2, device=self.device, dtype=torch.float32) / HEAD
        angles = torch.outer(torch.arange(n, device=self.device).float(), BASE**-pairs)
        theta = torch.cat((angles, angles), -1)[:, None, None]
        tensors = {
            "x": self.normal(n, b, h, HEAD),
            "theta": theta,
            "cos": theta.cos().to(self.dtype),
            "sin": theta.sin().to(self.dtype),
        }
        return Inputs(tensors, self.normal(n, b, h, HEAD, leaf=False))

    def reference(self, **tensors: torch.Tensor) -> torch.Tensor:
        x, theta = tensors["x"], tensors["theta"]
        return x * theta.cos() + rotate(x) * theta.sin()

    def limits(self) -> Mapping[str, float]:
        return dict.fromkeys(("y", "dx"), allowed(self.dtype, 4, 2))


component = Component("rope", RopeWorkload, label)


@component.implementation(role="default")
def torch_eager(case: Case) -> Function:
    """x · cos + rotate(x) · sin, eager: the form that models have in PyTorch."""
    return lambda x, theta, cos, sin: x * cos + rotate(x) * sin


@component.implementation(role="compiled", requires=(requirements.compiler,))
def torch_compiled(case: Case) -> Function:
    """torch.compile of the eager form, static shapes."""
    return torch.compile(torch_eager(case), dynamic=False)


class _Rope(torch.autograd.Function):
    """Apex's extension as a function; apex.transformer, which wrapped it, is gone."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, forward: Any, backward: Any, *angles: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(*angles)
        ctx.backward_kernel = backward
        result: torch.Tensor = forward(x, *angles, False)  # False: the layout stays as it is
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        angles = ctx.saved_tensors
        dx = ctx.backward_kernel(gradient, *angles, False)
        return dx, None, None, *(None for _ in angles)


_rope: Any = _Rope.apply


@component.implementation(package="apex", requires=NEEDS, kernel="fused_rope_(forward|backward)")
def apex(case: Case) -> Function:
    """Apex's fused_rotary_positional_embedding, which takes the angles."""
    module = importlib.import_module("fused_rotary_positional_embedding")
    return lambda x, theta, cos, sin: _rope(x, module.forward, module.backward, theta)


@component.implementation(package="apex", requires=NEEDS, kernel="fused_rope_cached")
def apex_cached(case: Case) -> Function:
    """Apex's fused_rotary_positional_embedding, which takes cosines and sines."""
    module = importlib.import_module("fused_rotary_positional_embedding")
    ways = module.forward_cached, module.backward_cached
    return lambda x, theta, cos, sin: _rope(x, *ways, cos, sin)
