"""What else decides, beside speed: what an Apex part can be combined with, tried and recorded.

One case; nothing is timed. Every implementation is used once as its documentation says, and then
each question of :mod:`apexbench.components.probes` is put to it: whether torch.compile takes it
whole, and with its own kernels; whether a CUDA graph can hold it; whether it takes tensors on the
CPU; and of an optimizer, whether it exchanges a state_dict with torch's, has zero_grad(set_to_none)
and takes DTensor parameters, as FSDP2 makes them. Answers are facts of this machine's versions.

Each function returns the :class:`Subject` to ask.
"""

from __future__ import annotations

from typing import Any

import torch

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.components.probes import Function, Optimizer, ProbeWorkload, Subject


def label(case: Case) -> str:
    """The case's name: there is one."""
    return "what else decides"


component = Component("compatibility", ProbeWorkload, label)
AMP_C = (requirements.apex("amp_C"),)
NORMS = (requirements.apex("fused_layer_norm_cuda"),)
NORM_KERNEL = "cuApply(Layer|RMS)Norm|cuComputeGradInput"
WIDTH = 256


@component.implementation()
def torch_adamw(case: Case) -> Subject:
    """torch.optim.AdamW."""
    return Optimizer("optimizer", lambda params: torch.optim.AdamW(params, lr=1e-3))


@component.implementation(package="apex", requires=AMP_C)
def fused_adam(case: Case) -> Subject:
    """apex.optimizers.FusedAdam."""
    return _apex("FusedAdam", torch.optim.AdamW, weight_decay=0.01)


@component.implementation(package="apex", requires=AMP_C)
def fused_adam_capturable(case: Case) -> Subject:
    """apex.optimizers.FusedAdam(capturable=True)."""
    return _apex("FusedAdam", torch.optim.AdamW, weight_decay=0.01, capturable=True)


@component.implementation(package="apex", requires=AMP_C)
def fused_sgd(case: Case) -> Subject:
    """apex.optimizers.FusedSGD."""
    return _apex("FusedSGD", torch.optim.SGD, momentum=0.9)


@component.implementation(package="apex", requires=AMP_C)
def fused_adagrad(case: Case) -> Subject:
    """apex.optimizers.FusedAdagrad."""
    return _apex("FusedAdagrad", torch.optim.Adagrad)


@component.implementation(package="apex", requires=AMP_C)
def fused_lamb(case: Case) -> Subject:
    """apex.optimizers.FusedLAMB."""
    return _apex("FusedLAMB", None)


@component.implementation(package="apex", requires=AMP_C)
def fused_novograd(case: Case) -> Subject:
    """apex.optimizers.FusedNovoGrad."""
    return _apex("FusedNovoGrad", None)


@component.implementation()
def torch_layer_norm(case: Case) -> Subject:
    """torch.nn.LayerNorm."""
    return Function("layer_norm", lambda: torch.nn.LayerNorm(WIDTH), (64, WIDTH))


@component.implementation(package="apex", requires=NORMS)
def fused_layer_norm(case: Case) -> Subject:
    """apex.normalization.FusedLayerNorm."""
    from apex.normalization import FusedLayerNorm

    return Function("layer_norm", lambda: FusedLayerNorm(WIDTH), (64, WIDTH), NORM_KERNEL)


@component.implementation(package="apex", requires=NORMS)
def fused_rms_norm(case: Case) -> Subject:
    """apex.normalization.FusedRMSNorm."""
    from apex.normalization import FusedRMSNorm

    return Function("rms_norm", lambda: FusedRMSNorm(WIDTH), (64, WIDTH), NORM_KERNEL)


@component.implementation(package="apex", requires=AMP_C)
def clip_grad_norm(case: Case) -> Subject:
    """apex.contrib.clip_grad.clip_grad_norm_."""
    from apex.contrib.clip_grad import clip_grad_norm_

    return Optimizer("grad_clip", lambda params: _Clip(params, clip_grad_norm_))


@component.implementation()
def torch_clip_grad_norm(case: Case) -> Subject:
    """torch.nn.utils.clip_grad_norm_."""
    return Optimizer("grad_clip", lambda params: _Clip(params, torch.nn.utils.clip_grad_norm_))


@component.implementation(package="apex", requires=(requirements.apex("fused_dense_cuda"),))
def fused_dense(case: Case) -> Subject:
    """apex.fused_dense.FusedDense."""
    from apex.fused_dense import FusedDense

    def layer() -> torch.nn.Module:
        made: torch.nn.Module = FusedDense(WIDTH, WIDTH)
        for p in made.parameters():  # left uninitialised
            torch.nn.init.normal_(p, std=0.05)
        return made

    return Function("dense", layer, (64, WIDTH))


class _Clip:
    """Clipping in an optimizer's shape: ``step`` clips, there is no state."""

    def __init__(self, params: list[torch.nn.Parameter], clip: Any):
        self.params, self.clip = params, clip

    def step(self) -> Any:
        return self.clip(self.params, 0.5)


def _apex(name: str, like: Any, **settings: Any) -> Subject:
    from apex import optimizers

    def build(params: list[torch.nn.Parameter]) -> Any:
        return getattr(optimizers, name)(params, lr=1e-3, **settings)

    shared = {key: value for key, value in settings.items() if key != "capturable"}
    peer = None if like is None else lambda params: like(params, lr=1e-3, **shared)
    return Optimizer("optimizer", build, peer, "multi_tensor_apply")
