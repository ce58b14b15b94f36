"""The tutorial's parts A and B, its way and ours, side by side; part C is the component ``amp``.

Case: ``part``. ``A``: a stack of 60 × Linear(512, 512), batch 64, loss mean(out²), lr 1e-3;
forward, backward and optimizer step together. ``B_layer_norm`` and ``B_rms_norm``: a norm of
32 × 512 × 1024 float32 values, forward and backward. TF32 is off in all.

Ours is this record's times: arms in turn, with intervals; the same weight decay for both optimizers
(0.01); a dense random gradient, fresh ones each time. Its way is in the details, as nanoseconds an
iteration: 10 iterations to warm up and 50 between two perf_counter readings, the device
synchronised before each; each library's own weight decay; in B the gradient of y.sum(), which is
expanded, added to what earlier iterations left in ``.grad``. torch's RMSNorm and AdamW(fused=True)
are ours: the tutorial has neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from apexbench.components import layer_norm, requirements, rms_norm
from apexbench.components.component import Case, Component
from apexbench.components.tutorial_workload import PARTS, NormPart, StackPart, norm_case


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``part A, 60 × Linear(512)``."""
    return PARTS[case["part"]]


def workload(case: Case, device: str, seed: int) -> Any:
    """The stack of part A, or a norm of part B."""
    if case["part"] == "A":
        return StackPart(case, device, seed)
    norm = layer_norm if case["part"] == "B_layer_norm" else rms_norm
    return NormPart(case, device, seed, norm.reference, bias=norm is layer_norm)


component = Component("tutorial", workload, label)
NEEDS = (requirements.apex("amp_C"), requirements.apex("fused_layer_norm_cuda"))


def _norm(case: Case, name: str) -> Callable[..., torch.Tensor]:
    norm = layer_norm if case["part"] == "B_layer_norm" else rms_norm
    function: Callable[..., torch.Tensor] = norm.component.implementations[name].build(
        norm_case(case)
    )
    return function


@component.implementation(role="default")
def torch_default(case: Case) -> Any:
    """torch.optim.AdamW as it comes; torch.nn.functional's norm."""
    if case["part"] != "A":
        return _norm(case, "torch_eager")
    return lambda params, **settings: torch.optim.AdamW(params, lr=1e-3, **settings)


@component.implementation(role="eager", only={"part": ("A",)})
def torch_fused(case: Case) -> Any:
    """torch.optim.AdamW(fused=True), which the tutorial leaves out."""
    return lambda params, **settings: torch.optim.AdamW(params, lr=1e-3, fused=True, **settings)


@component.implementation(package="apex", requires=NEEDS)
def apex(case: Case) -> Any:
    """apex.optimizers.FusedAdam as it comes; apex.normalization's norm."""
    if case["part"] != "A":
        return _norm(case, "apex")
    from apex.optimizers import FusedAdam

    return lambda params, **settings: FusedAdam(params, lr=1e-3, **settings)
