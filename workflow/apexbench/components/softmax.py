"""Softmax of attention scores with scale and mask, alone and inside the attention it belongs to.

Case: ``scope`` (``softmax`` of scores (batch, heads, query, key); ``attention``: scores = q kᵀ of
(batch, heads, sequence, 64), softmax, product with v, which scaled_dot_product_attention replaces
as a whole), ``mask`` (``causal``, ``padding``, ``none``), ``batch``, ``heads``, ``sequence``,
``dtype``, ``direction``. P = softmax(scale · scores) with 0 where masked, scale = 1 / sqrt(64), and
scores of the size that products of N(0, 1) vectors have. Padding hides the last half of the keys of
every second sequence; that mask is a tensor.

Bytes that must move in the scope ``softmax``, of s bytes a value, N values of P, K of them not
masked: forward reads K scores and writes P, s (K + N); backward reads K of dP and of P and writes
the gradient, s (2 K + N); both, the sum; a mask tensor's own bytes once each. FLOP in the scope
``attention``: forward 2 products of 2 · 64 · K, backward 4 (what it computes again is not counted).

The scope ``softmax`` is what Megatron's kernels in Apex do; their backward writes over its
gradient, so that this arm gets a copy of it outside the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from apexbench.components import requirements
from apexbench.components.apex_softmax import dedicated, generic
from apexbench.components.component import Case, Component
from apexbench.components.operations import (
    BYTES,
    FORMULA,
    Function,
    Inputs,
    OperationWorkload,
    Overwriting,
    allowed,
    passes,
)
from apexbench.measuring.arms import Unsupported
from apexbench.records import Work

HEAD = 64
SCALE = HEAD**-0.5
MASK_VALUE = float("-inf")
ATTENTION: dict[str, tuple[Any, ...]] = {"scope": ("attention",)}


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``softmax causal 8×16×1024² bfloat16 forward+backward``."""
    shape = f"{case['batch']}×{case['heads']}×{case['sequence']}²"
    direction = case["direction"].replace("_", "+")
    return f"{case['scope']} {case['mask']} {shape} {case['dtype']} {direction}"


def kept(case: Case) -> int:
    """Scores that no mask hides."""
    n, pairs = case["sequence"], case["batch"] * case["heads"]
    if case["mask"] == "causal":
        return pairs * n * (n + 1) // 2
    if case["mask"] == "padding":
        keys = sum(n if index % 2 == 0 else n - n // 2 for index in range(case["batch"]))
        return case["heads"] * n * keys
    return pairs * n * n


class SoftmaxWorkload(OperationWorkload):
    """Scores, or q, k and v, and a mask where it is a tensor (True hides)."""

    chunk = 1
    formula = FORMULA.replace("rms(ref)", "root of the sum of its terms' squares")

    @staticmethod
    def least(case: Case) -> Work:
        seen, n = kept(case), case["sequence"]
        if case["scope"] == "attention":
            count = passes(case["direction"], 2, 4)
            what = f"{count} × 2 · {HEAD} FLOP × scores not masked"
            return Work(None, count * 2 * HEAD * seen, what, f"matmul_{case['dtype']}")
        size, total = BYTES[case["dtype"]], case["batch"] * case["heads"] * n * n
        moved = size * passes(case["direction"], seen + total, 2 * seen + total)
        moved += case["batch"] * n * n if case["mask"] == "padding" else 0
        what = {"forward": "K + N", "backward": "2 K + N"}.get(case["direction"], "3 K + 2 N")
        what = f"{size} B × ({what}), N probabilities, K of them not masked"
        return Work(
            moved, None, what + ("; 1 B × mask" if case["mask"] == "padding" else ""), "copy"
        )

    def make(self) -> Inputs:
        b, h, n = (self.case[key] for key in ("batch", "heads", "sequence"))
        if self.case["scope"] == "attention":
            tensors = {name: self.normal(b, h, n, HEAD) for name in ("q", "k", "v")}
            dy = self.normal(b, h, n, HEAD, leaf=False)
        else:
            tensors = {"scores": self.normal(b, h, n, n, scale=HEAD**0.5)}
            dy = self.normal(b, h, n, n, leaf=False)
        if self.case["mask"] == "padding":
            hidden = torch.zeros(b, 1, n, n, device=self.device, dtype=torch.bool)
            hidden[1::2, ..., n - n // 2 :] = True
            tensors["mask"] = hidden
        return Inputs(tensors, dy)

    def reference(self, **tensors: torch.Tensor) -> torch.Tensor:
        p = self._probabilities(tensors)
        return p @ tensors["v"] if self.case["scope"] == "attention" else p

    def sizes(self, dy: torch.Tensor, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """A causal row has from one term to ``sequence``; dscores = P (dP - Σ P dP)."""
        p = self._probabilities(tensors)
        if self.case["scope"] == "softmax":
            return {"y": p, "dscores": SCALE * _difference(p, dy)}
        q, k, v = (tensors[name] for name in ("q", "k", "v"))
        dscores = SCALE * _difference(p, dy @ v.mT)
        return {
            "y": _rss(p, v),
            "dq": _rss(dscores, k),
            "dk": _rss(dscores.mT, q),
            "dv": _rss(p.mT, dy),
        }

    def _probabilities(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        attention = self.case["scope"] == "attention"
        scores = tensors["q"] @ tensors["k"].mT if attention else tensors["scores"]
        hidden = tensors.get("mask")
        if self.case["mask"] == "causal":
            hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scaled = scores * SCALE
        if hidden is not None:
            scaled = scaled.masked_fill(hidden, MASK_VALUE)
        weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)

    def limits(self) -> Mapping[str, float]:
        n = self.case["sequence"]
        if self.case["scope"] == "softmax":
            return {"y": allowed(self.dtype, 2, n), "dscores": allowed(self.dtype, 3, n)}
        backward = dict.fromkeys(("dq", "dk", "dv"), allowed(self.dtype, 6, n))
        return {"y": allowed(self.dtype, 4, n), **backward}


def _rss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Root of the sum of squares of the terms of a @ b."""
    return (a.square() @ b.square()).sqrt()


def _difference(p: torch.Tensor, dp: torch.Tensor) -> torch.Tensor:
    """The same of P (dP - Σ P dP), by rows."""
    return p * (dp.square() + (p * dp).square().sum(-1, keepdim=True)).sqrt()


component = Component("softmax", SoftmaxWorkload, label)
DEDICATED = tuple(
    requirements.apex(name)
    for name in (
        "scaled_upper_triang_masked_softmax_cuda",
        "scaled_masked_softmax_cuda",
        "scaled_softmax_cuda",
    )
)
KERNEL = "scaled_(upper_triang_)?(masked_)?softmax_warp"


def _attention(case: Case, softmax: Function) -> Function:
    """Attention around a softmax of scores: the two products that it stands between."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: Any) -> torch.Tensor:
        return softmax(q @ k.mT, *mask) @ v

    return attention if case["scope"] == "attention" else softmax


@component.implementation(role="default")
def torch_eager(case: Case) -> Function:
    """Scale, masked_fill and torch.softmax, eager; in attention with two matrix products."""

    def softmax(scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if case["mask"] == "causal":
            ones = torch.ones(scores.shape[-2:], device=scores.device, dtype=torch.bool)
            mask = ones.triu(1)
        scaled = scores * SCALE
        return (scaled if mask is None else scaled.masked_fill(mask, MASK_VALUE)).softmax(-1)

    return _attention(case, softmax)


@component.implementation(role="compiled", requires=(requirements.compiler,))
def torch_compiled(case: Case) -> Function:
    """torch.compile of the eager form, static shapes."""
    return torch.compile(torch_eager(case), dynamic=False)


@component.implementation(role="eager", only=ATTENTION)
def torch_sdpa(case: Case) -> Function:
    """torch.nn.functional.scaled_dot_product_attention: softmax and both products in one."""
    causal = case["mask"] == "causal"

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: Any) -> torch.Tensor:
        seen = ~mask[0] if mask else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)

    return attention


@component.implementation(package="apex", requires=DEDICATED, kernel=KERNEL)
def apex(case: Case) -> Function:
    """Apex's kernel for the mask: scaled_upper_triang_masked, scaled_masked or scaled softmax."""
    return _alone(case, dedicated(case["mask"], SCALE))


@component.implementation(
    package="apex",
    requires=(requirements.apex("generic_scaled_masked_softmax_cuda"),),
    kernel="scaled_masked_softmax_warp",
    only={"mask": ("padding",)},
)
def apex_generic(case: Case) -> Function:
    """Apex's generic_scaled_masked_softmax: any length of the keys."""
    return _alone(case, generic(SCALE))


def _alone(case: Case, softmax: Function) -> Function:
    """Only alone is the gradient that backward writes over an input of the case."""
    if case["dtype"] == "float32":
        raise Unsupported(
            "Apex's softmax kernels take float16 and bfloat16; these tensors are float32",
            "measure it in a case with dtype: bfloat16",
        )
    return _attention(case, softmax) if case["scope"] == "attention" else Overwriting(softmax)
