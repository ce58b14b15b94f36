"""Gradient clipping: scale all gradients of a model so that their common norm is at most one value.

Case: ``model`` (see :mod:`apexbench.components.models`), ``dtype`` of the gradients, ``clipping``
(whether the norm is above the limit, so that gradients change: the limit is half the norm, else
twice). With |g| the 2-norm over all gradients: g ← g · min(1, max_norm / (|g| + 1e-6)), as torch
states it. Clipped gradients are put back before each window.

Bytes that must move per parameter of s bytes: the norm reads every gradient, s; where clipping is
active each is read and written once the norm is known, 3 s together. An implementation that
multiplies by 1 where there is nothing to clip moves 3 s where s would do.

Each function takes the parameters, with their ``.grad``, and the limit; it returns the norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.components.grad_clip_workload import CapturedClip, ClipWorkload, label

Params = list[torch.nn.Parameter]
Clip = Callable[[Params, float], torch.Tensor]

component = Component("grad_clip", ClipWorkload, label)


@component.implementation(role="default")
def torch_default(case: Case) -> Clip:
    """torch.nn.utils.clip_grad_norm_ with no flag set: foreach on a GPU."""
    return torch.nn.utils.clip_grad_norm_


@component.implementation(role="eager")
def torch_forloop(case: Case) -> Clip:
    """torch.nn.utils.clip_grad_norm_(foreach=False): one gradient after the other."""
    return lambda params, limit: torch.nn.utils.clip_grad_norm_(params, limit, foreach=False)


@component.implementation(role="eager")
def torch_foreach(case: Case) -> Clip:
    """torch.nn.utils.clip_grad_norm_(foreach=True): each operation over all gradients at once."""
    return lambda params, limit: torch.nn.utils.clip_grad_norm_(params, limit, foreach=True)


@component.implementation(role="compiled", requires=(requirements.cuda,))
def torch_cudagraph(case: Case) -> Clip:
    """torch.nn.utils.clip_grad_norm_(foreach=True) replayed from a CUDA graph."""
    return CapturedClip(torch_foreach(case))


@component.implementation(
    package="apex", requires=(requirements.apex("amp_C"),), kernel="L2NormFunctor|ScaleFunctor"
)
def apex(case: Case) -> Clip:
    """apex.contrib.clip_grad.clip_grad_norm_; it reads the factor on the host."""
    from apex.contrib.clip_grad import clip_grad_norm_

    return clip_grad_norm_
