"""RMSNorm over the last dimension: y = x / sqrt(mean(x²) + eps) · weight.

Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467. eps 1e-5.
Inputs, directions and bytes: see :mod:`apexbench.components.norms`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from apexbench.components import norms, requirements
from apexbench.components.component import Case, Component
from apexbench.components.norms import EPS, MIXED, Norm, NormWorkload, tried, widened


def reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    dy: torch.Tensor,
    eps: float,
) -> dict[str, torch.Tensor]:
    """y, dx and, where affine, dweight of (rows, width) inputs, in float64.

    With h the normalised x and g = dy · weight: dx = r (g - h mean(g h)), r = 1 / rms(x).
    """
    wide, grad = x.detach().double(), dy.double()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    normal = wide * scale
    scaled = grad if weight is None else grad * weight.detach().double()
    result = {
        "y": normal if weight is None else normal * weight.detach().double(),
        "dx": scale * (scaled - normal * (scaled * normal).mean(-1, keepdim=True)),
    }
    if weight is not None:
        result["dweight"] = (grad * normal).sum(0)
    return result


def workload(case: Case, device: str, seed: int) -> NormWorkload:
    """The shared inputs of one case."""
    return NormWorkload(case, device, seed, reference, bias=False)


component = Component("rms_norm", workload, norms.label)
NEEDS = requirements.apex("fused_layer_norm_cuda")
KERNEL = "cuApply(Layer|RMS)Norm|cuComputeGradInput"


@component.implementation(role="default")
def torch_eager(case: Case) -> Norm:
    """torch.nn.functional.rms_norm, eager; mixed, with the weight cast to float32."""
    shape = (case["width"],)
    if case.get("mixed"):
        return lambda x, weight, bias: F.rms_norm(x, shape, widened(weight), EPS)
    return lambda x, weight, bias: F.rms_norm(x, shape, weight, EPS)


@component.implementation()
def formula(case: Case) -> Norm:
    """The formula people paste by hand: float32 mean of squares, cast back, times weight."""

    def norm(
        x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        wide = x.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
        return y if weight is None else y * weight

    return norm


@component.implementation(role="compiled", requires=(requirements.compiler,), kernel="triton_")
def torch_compiled(case: Case) -> Norm:
    """torch.compile of torch.nn.functional.rms_norm, static shapes."""
    return torch.compile(torch_eager(case), dynamic=False)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL)
def apex(case: Case) -> Norm:
    """apex.normalization.FusedRMSNorm."""
    return _apex(case, memory_efficient=False)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL)
def apex_memory_efficient(case: Case) -> Norm:
    """apex.normalization.FusedRMSNorm, memory_efficient=True: backward recomputes from y."""
    return _apex(case, memory_efficient=True)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL, only=MIXED)
def apex_mixed(case: Case) -> Norm:
    """apex.normalization.MixedFusedRMSNorm: y has the weight's dtype, narrower than the input's."""
    return _mixed(case, memory_efficient=False)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL, only=MIXED)
def apex_mixed_memory_efficient(case: Case) -> Norm:
    """apex.normalization.MixedFusedRMSNorm, memory_efficient=True."""
    return _mixed(case, memory_efficient=True)


@component.implementation(package="liger-kernel", requires=norms.LIGER)
def liger(case: Case) -> Norm:
    """liger_kernel.ops.LigerRMSNormFunction, a Triton kernel; the arms' gradient is kept as is."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight, bias: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)


@component.implementation(
    package="transformer-engine", requires=norms.TRANSFORMER_ENGINE, only={"affine": (True,)}
)
def transformer_engine(case: Case) -> Norm:
    """transformer_engine.pytorch.RMSNorm."""
    from transformer_engine import pytorch as te

    return norms.with_parameters(te.RMSNorm(case["width"], eps=EPS), case)


def _apex(case: Case, memory_efficient: bool) -> Norm:
    from apex.normalization.fused_layer_norm import fused_rms_norm, fused_rms_norm_affine

    shape = (case["width"],)
    if not case["affine"]:
        return lambda x, weight, bias: fused_rms_norm(x, shape, EPS, memory_efficient)

    def norm(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return fused_rms_norm_affine(x, weight, shape, EPS, memory_efficient)

    return tried(norm, case) if case.get("mixed") else norm


def _mixed(case: Case, memory_efficient: bool) -> Norm:
    from apex.normalization.fused_layer_norm import mixed_dtype_fused_rms_norm_affine

    shape = (case["width"],)
    return lambda x, weight, bias: mixed_dtype_fused_rms_norm_affine(
        x, weight, shape, EPS, memory_efficient
    )
