"""Dense layers of a Transformer's feed-forward network, of width d and hidden width 4 d.

Case: ``operation``, ``rows`` (tokens), ``width`` d, ``dtype``, ``direction``. Operations, each with
biases: ``linear`` y = x W1ᵀ + b1; ``gelu_ffn`` y = gelu(x W1ᵀ + b1) W2ᵀ + b2 with GELU's tanh form,
which is cuBLASLt's; ``relu_ffn`` y = relu(relu(x W1ᵀ + b1) W2ᵀ + b2), since apex.mlp.MLP ends in
its activation. TF32 stays off.

FLOP: a product of (rows, d) and (d, 4 d) is 2 · rows · d · 4 d; forward has one a layer, backward
two; biases and activations are left out, they are below a thousandth.

Errors of ``relu_ffn`` are taken in the relative Frobenius norm, with sqrt(8 sqrt(n) eps(float32))
more allowed: the share of ReLUs whose sign the rounding of a sum of n terms turns, each of which
changes its term of a gradient by its whole size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.components.operations import (
    FORMULA,
    Function,
    Inputs,
    OperationWorkload,
    allowed,
    passes,
    root,
)
from apexbench.measuring.arms import Unsupported
from apexbench.records import Work

LINEAR: dict[str, tuple[Any, ...]] = {"operation": ("linear",)}
GELU: dict[str, tuple[Any, ...]] = {"operation": ("gelu_ffn",)}
RELU: dict[str, tuple[Any, ...]] = {"operation": ("relu_ffn",)}


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``gelu_ffn 8192×4096 bfloat16 forward+backward``."""
    direction = case["direction"].replace("_", "+")
    return f"{case['operation']} {case['rows']}×{case['width']} {case['dtype']} {direction}"


class DenseWorkload(OperationWorkload):
    """x (rows, d), W1 (4 d, d), b1 (4 d), W2 (d, 4 d), b2 (d); weights N(0, 1 / fan-in)."""

    formula: ClassVar[str] = FORMULA + "; relu_ffn: Frobenius norms, + sqrt(8 sqrt(n) eps(float32))"
    summed: ClassVar[tuple[str, ...]] = ("dw1", "db1", "dw2", "db2")
    shared: ClassVar[tuple[str, ...]] = ("w1", "b1", "w2", "b2")
    chunk = 4096

    @staticmethod
    def least(case: Case) -> Work:
        layers = 1 if case["operation"] == "linear" else 2
        count = layers * passes(case["direction"], 1, 2)
        flops = count * 2 * case["rows"] * case["width"] * 4 * case["width"]
        formula = f"{count} × 2 · rows · d · 4 d FLOP, d = width"
        return Work(None, flops, formula, f"matmul_{case['dtype']}")

    def make(self) -> Inputs:
        rows, d = self.case["rows"], self.case["width"]
        tensors = {
            "x": self.normal(rows, d),
            "w1": self.normal(4 * d, d, scale=d**-0.5),
            "b1": self.normal(4 * d, scale=0.1),
        }
        if self.case["operation"] == "linear":
            return Inputs(tensors, self.normal(rows, 4 * d, leaf=False))
        tensors["w2"] = self.normal(d, 4 * d, scale=(4 * d) ** -0.5)
        tensors["b2"] = self.normal(d, scale=0.1)
        return Inputs(tensors, self.normal(rows, d, leaf=False))

    def reference(self, **tensors: torch.Tensor) -> torch.Tensor:
        hidden = tensors["x"] @ tensors["w1"].T + tensors["b1"]
        if self.case["operation"] == "linear":
            return hidden
        if self.case["operation"] == "relu_ffn":
            return (hidden.clamp(min=0) @ tensors["w2"].T + tensors["b2"]).clamp(min=0)
        cubic = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        return (0.5 * hidden * (1 + cubic.tanh())) @ tensors["w2"].T + tensors["b2"]

    def limits(self) -> Mapping[str, float]:
        rows, d = self.case["rows"], self.case["width"]
        forward, backward = (1, 1) if self.case["operation"] == "linear" else (3, 5)
        turned = math.sqrt(root(4 * d)) if self.case["operation"] == "relu_ffn" else 0.0
        limits = dict.fromkeys(self.summed, allowed(self.dtype, backward, rows) + turned)
        limits["dx"] = allowed(self.dtype, backward, 4 * d) + turned
        return {**limits, "y": allowed(self.dtype, forward, 4 * d) + turned}

    def error(
        self, result: torch.Tensor, right: torch.Tensor, sizes: torch.Tensor | None = None
    ) -> float | None:
        if self.case["operation"] != "relu_ffn":
            return super().error(result, right, sizes)
        off = float((result.double() - right).norm() / right.norm())
        return off if math.isfinite(off) else None


component = Component("dense", DenseWorkload, label)


@component.implementation(role="default")
def torch_eager(case: Case) -> Function:
    """torch.nn.functional.linear and the activation, eager."""
    if case["operation"] == "linear":
        return F.linear
    if case["operation"] == "relu_ffn":
        return lambda x, w1, b1, w2, b2: F.relu(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2))
    return lambda x, w1, b1, w2, b2: F.linear(
        F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2
    )


@component.implementation(role="compiled", requires=(requirements.compiler,))
def torch_compiled(case: Case) -> Function:
    """torch.compile of torch.nn.functional.linear and the activation, static shapes."""
    function = torch_eager(case)
    return torch.compile(lambda *tensors: function(*tensors), dynamic=False)


@component.implementation(
    package="apex", requires=(requirements.apex("fused_dense_cuda"),), only=LINEAR
)
def apex_fused_dense(case: Case) -> Function:
    """apex.fused_dense.FusedDense: the bias in the product's epilogue."""
    from apex.fused_dense.fused_dense import _fused_dense

    return _fused_dense


@component.implementation(
    package="apex", requires=(requirements.apex("fused_dense_cuda"),), only=GELU
)
def apex_fused_dense_gelu_dense(case: Case) -> Function:
    """apex.fused_dense.FusedDenseGeluDense: biases and GELU in the products' epilogues."""
    from apex.fused_dense.fused_dense import _fused_dense_gelu_dense

    return _fused_dense_gelu_dense


@component.implementation(package="apex", requires=(requirements.apex("mlp_cuda"),), only=RELU)
def apex_mlp(case: Case) -> Function:
    """apex.mlp.MLP with biases and ReLU: all layers in one call of C++."""
    if case["dtype"] == "bfloat16":
        raise Unsupported(
            "apex.mlp.MLP takes float16, float32 and float64; these tensors are bfloat16",
            "measure it in a case with dtype: float16",
        )
    from apex.mlp.mlp import mlp_function

    # Its arguments: whether there are biases, the activation's number, input, weights, biases.
    return lambda x, w1, b1, w2, b2: mlp_function(1, 1, x, w1, w2, b1, b2)
