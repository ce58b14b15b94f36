"""LayerNorm over the last dimension: y = (x - mean) / sqrt(var + eps) · weight + bias.

Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450. var is the biased variance, eps 1e-5.
Inputs, directions and bytes: see :mod:`apexbench.components.norms`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from apexbench.components import norms, requirements
from apexbench.components.component import Case, Component
from apexbench.components.norms import EPS, MIXED, Norm, NormWorkload, tried, widened
from apexbench.measuring.arms import Unsupported


def reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    dy: torch.Tensor,
    eps: float,
) -> dict[str, torch.Tensor]:
    """y, dx and, where affine, dweight and dbias of (rows, width) inputs, in float64.

    With h the normalised x and g = dy · weight: dx = rstd (g - mean(g) - h mean(g h)).
    """
    wide, grad = x.detach().double(), dy.double()
    centred = wide - wide.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    normal = centred * rstd
    scale = 1 if weight is None else weight.detach().double()
    scaled = grad * scale
    result = {
        "y": normal * scale + (0 if bias is None else bias.detach().double()),
        "dx": rstd
        * (
            scaled
            - scaled.mean(-1, keepdim=True)
            - normal * (scaled * normal).mean(-1, keepdim=True)
        ),
    }
    if weight is not None:
        result["dweight"] = (grad * normal).sum(0)
    if bias is not None:
        result["dbias"] = grad.sum(0)
    return result


def workload(case: Case, device: str, seed: int) -> NormWorkload:
    """The shared inputs of one case."""
    return NormWorkload(case, device, seed, reference, bias=True)


component = Component("layer_norm", workload, norms.label)
NEEDS = requirements.apex("fused_layer_norm_cuda")
FAST_WIDTHS = (
    *(768, 1024, 1536, 2048, 2304, 3072, 3840, 4096, 5120, 6144, 8192, 10240, 12288, 12800, 14336),
    *(15360, 16384, 18432, 20480, 24576, 25600, 30720, 32768, 40960, 49152, 65536),
)
"""What its source registers; a combination it has no kernel for ends in a segmentation fault."""
KERNEL = "cuApply(Layer|RMS)Norm|cuComputeGradInput"


@component.implementation(role="default")
def torch_eager(case: Case) -> Norm:
    """torch.nn.functional.layer_norm, eager; mixed, with weight and bias cast to float32."""
    shape = (case["width"],)
    if case.get("mixed"):
        return lambda x, weight, bias: F.layer_norm(x, shape, widened(weight), widened(bias), EPS)
    return lambda x, weight, bias: F.layer_norm(x, shape, weight, bias, EPS)


@component.implementation(role="compiled", requires=(requirements.compiler,), kernel="triton_")
def torch_compiled(case: Case) -> Norm:
    """torch.compile of torch.nn.functional.layer_norm, static shapes."""
    return torch.compile(torch_eager(case), dynamic=False)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL)
def apex(case: Case) -> Norm:
    """apex.normalization.FusedLayerNorm."""
    return _apex(case, memory_efficient=False)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL)
def apex_memory_efficient(case: Case) -> Norm:
    """apex.normalization.FusedLayerNorm, memory_efficient=True: backward recomputes from y."""
    return _apex(case, memory_efficient=True)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL, only=MIXED)
def apex_mixed(case: Case) -> Norm:
    """apex.normalization.MixedFusedLayerNorm: y has the weight's dtype, narrower than x's."""
    return _mixed(case, memory_efficient=False)


@component.implementation(package="apex", requires=(NEEDS,), kernel=KERNEL, only=MIXED)
def apex_mixed_memory_efficient(case: Case) -> Norm:
    """apex.normalization.MixedFusedLayerNorm, memory_efficient=True."""
    return _mixed(case, memory_efficient=True)


@component.implementation(
    package="apex",
    requires=(requirements.apex("fast_layer_norm"),),
    kernel="ln_(fwd|bwd)",
    only={"affine": (True,)},
)
def apex_fast(case: Case) -> Norm:
    """apex.contrib.layer_norm.FastLayerNorm: kernels tuned for a list of widths."""
    from apex.contrib.layer_norm.layer_norm import _fast_layer_norm

    if case["width"] not in FAST_WIDTHS:
        raise Unsupported(
            f"FastLayerNorm has no kernel for width {case['width']}",
            "its widths are " + ", ".join(map(str, FAST_WIDTHS)),
        )
    return lambda x, weight, bias: _fast_layer_norm(x, weight, bias, EPS, False)


@component.implementation(package="liger-kernel", requires=norms.LIGER, only={"affine": (True,)})
def liger(case: Case) -> Norm:
    """liger_kernel.ops.LigerLayerNormFunction, a Triton kernel."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS)


@component.implementation(
    package="transformer-engine", requires=norms.TRANSFORMER_ENGINE, only={"affine": (True,)}
)
def transformer_engine(case: Case) -> Norm:
    """transformer_engine.pytorch.LayerNorm."""
    from transformer_engine import pytorch as te

    return norms.with_parameters(te.LayerNorm(case["width"], eps=EPS), case)


def _apex(case: Case, memory_efficient: bool) -> Norm:
    from apex.normalization.fused_layer_norm import fused_layer_norm, fused_layer_norm_affine

    shape = (case["width"],)
    if not case["affine"]:
        return lambda x, weight, bias: fused_layer_norm(x, shape, EPS, memory_efficient)

    def norm(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return fused_layer_norm_affine(x, weight, bias, shape, EPS, memory_efficient)

    return tried(norm, case) if case.get("mixed") else norm


def _mixed(case: Case, memory_efficient: bool) -> Norm:
    from apex.normalization.fused_layer_norm import mixed_dtype_fused_layer_norm_affine

    shape = (case["width"],)
    return lambda x, weight, bias: mixed_dtype_fused_layer_norm_affine(
        x, weight, bias, shape, EPS, memory_efficient
    )
