"""The optimizer step: one update of all parameters of a model from gradients that lie in memory.

Case: ``model`` (see :mod:`apexbench.components.models`), ``algorithm`` (``adamw``), ``dtype`` of
parameters and gradients, ``grad_scaler`` (the call is then the unscaling with its inf check, the
step and the scale's update). All implementations get the same hyper-parameters, stated, since the
libraries' defaults differ (Apex decays by 0, torch's AdamW by 0.01); the learning rate changes with
every step. The formula is :mod:`apexbench.components.adamw_reference`'s.

Bytes that must move per parameter of s bytes: AdamW reads p, g, m, v and writes p, m, v, all of the
parameter's size, 7 s (28 B in float32, 14 B in bfloat16); a GradScaler's inf check must read every
gradient before the first parameter may change, s more. Apex keeps m and v in float32 whatever the
parameters' dtype: it moves 22 B where 14 would do, which the share of the ceiling shows.

Each function builds the optimizer of ``params``, whose gradients exist already, with learning rate
``lr``; :class:`Compiled` and :class:`Captured` say how its step is run.
"""

from __future__ import annotations

from typing import Any

import torch

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.components.optimizer_steps import Captured, Compiled
from apexbench.components.optimizer_workload import OptimizerWorkload, hyperparameters, label
from apexbench.measuring.arms import Unsupported

Params = list[torch.nn.Parameter]

component = Component("optimizer", OptimizerWorkload, label)
NEEDS_APEX = (requirements.apex("amp_C"),)
KERNEL = "AdamFunctor|AdamCapturable"


@component.implementation(role="default")
def torch_default(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW with no flag set: foreach on a GPU, a for-loop on the CPU."""
    return _torch(case, params, lr)


@component.implementation(role="eager")
def torch_forloop(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(foreach=False): one tensor after the other."""
    return _torch(case, params, lr, foreach=False)


@component.implementation(role="eager")
def torch_foreach(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(foreach=True): each operation over all tensors at once."""
    return _torch(case, params, lr, foreach=True)


@component.implementation(role="eager")
def torch_fused(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(fused=True): the whole update in one kernel over many tensors."""
    return _torch(case, params, lr, fused=True)


@component.implementation(role="compiled", requires=(requirements.compiler,))
def torch_compiled(case: Case, params: Params, lr: float) -> Any:
    """torch.compile of AdamW's foreach step, learning rate in a tensor."""
    return Compiled(_torch(case, params, _tensor(lr, params), foreach=True, capturable=True))


@component.implementation(role="compiled", requires=(requirements.cuda,))
def torch_cudagraph(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(fused=True, capturable=True) replayed from a CUDA graph."""
    return Captured(_torch(case, params, _tensor(lr, params), fused=True, capturable=True))


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL)
def apex(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdam."""
    return _apex(case, params, lr)


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL)
def apex_capturable(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdam(capturable=True), no graph: scale and step stay on the GPU."""
    return _apex(case, params, lr, capturable=True)


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL)
def apex_master_weights(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdam(capturable=True, master_weights=True): updates float32 copies."""
    if case["dtype"] == "float32":
        raise Unsupported(
            "master weights are for bfloat16 and float16 parameters; these are float32",
            "measure it in a case with dtype: bfloat16 or float16",
        )
    if _ignores_master_weights(params[0]):
        raise Unsupported(
            f"this Apex allocates master weights for {case['dtype']} but updates without them",
            "use float16 parameters, or float32 parameters under autocast",
        )
    return _apex(case, params, lr, capturable=True, master_weights=True)


def _tensor(lr: float, params: Params) -> torch.Tensor:
    return torch.tensor(lr, dtype=torch.float32, device=params[0].device)


def _torch(case: Case, params: Params, lr: float | torch.Tensor, **options: Any) -> Any:
    return torch.optim.AdamW(params, lr=lr, **hyperparameters(case), **options)


def _apex(case: Case, params: Params, lr: float, **options: bool) -> Any:
    from apex.optimizers import FusedAdam

    return FusedAdam(params, lr=lr, adam_w_mode=True, **hyperparameters(case), **options)


def _ignores_master_weights(like: torch.Tensor) -> bool:
    """Whether a step leaves the float32 copies as they were, as Apex's bfloat16 path does."""
    from apex.optimizers import FusedAdam

    probe = torch.nn.Parameter(torch.ones(8, dtype=like.dtype, device=like.device))
    probe.grad = torch.ones_like(probe)
    optimizer = FusedAdam([probe], lr=0.5, capturable=True, master_weights=True)
    optimizer.step()
    return bool((optimizer.param_groups_master[0]["params"][0] == 1).all())
