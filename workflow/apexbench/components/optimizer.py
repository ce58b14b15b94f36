"""The optimizer step: one update of all parameters of a model from gradients that lie in memory.

Case: ``model`` (see :mod:`apexbench.components.models`), ``algorithm`` (adamw, adam, sgd with
momentum, adagrad, lamb, novograd), ``dtype`` of parameters and gradients, ``grad_scaler`` (the call
is then the unscaling with its inf check, the step and the scale's update). All implementations get
the same hyper-parameters, stated, since the libraries' defaults differ (Apex decays by 0, torch's
AdamW by 0.01); the learning rate changes with every step. AdamW's formula is in
:mod:`apexbench.components.adamw_reference`, the others' in
:mod:`apexbench.components.optimizer_formulas`. torch has no LAMB and no NovoGrad: those cases have
no baseline. What is called AdamW below is Adam in Adam's cases.

Bytes that must move per parameter of s bytes: AdamW and Adam read p, g, m, v and write p, m, v, all
of the parameter's size, 7 s (28 B in float32, 14 B in bfloat16); SGD and Adagrad 5 s; NovoGrad 6 s
and LAMB 11 s, since a norm over a tensor must be known before it can change. A GradScaler's inf
check must read every gradient before the first parameter may change, s more. Apex keeps Adam's m
and v in float32 whatever the parameters' dtype: it moves 22 B where 14 would do, which the share of
the ceiling shows.

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
ADAM: dict[str, tuple[Any, ...]] = {"algorithm": ("adamw", "adam")}
USE_FLOAT32 = "keep float32 parameters, under autocast where memory counts"
SGD: dict[str, tuple[Any, ...]] = {"algorithm": ("sgd",)}
ADAGRAD: dict[str, tuple[Any, ...]] = {"algorithm": ("adagrad",)}


@component.implementation(role="default", only=ADAM)
def torch_default(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW with no flag set: foreach on a GPU, a for-loop on the CPU."""
    return _torch(case, params, lr)


@component.implementation(role="eager", only=ADAM)
def torch_forloop(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(foreach=False): one tensor after the other."""
    return _torch(case, params, lr, foreach=False)


@component.implementation(role="eager", only=ADAM)
def torch_foreach(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(foreach=True): each operation over all tensors at once."""
    return _torch(case, params, lr, foreach=True)


@component.implementation(role="eager", only=ADAM)
def torch_fused(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(fused=True): the whole update in one kernel over many tensors."""
    return _torch(case, params, lr, fused=True)


@component.implementation(role="compiled", requires=(requirements.compiler,), only=ADAM)
def torch_compiled(case: Case, params: Params, lr: float) -> Any:
    """torch.compile of AdamW's foreach step, learning rate in a tensor."""
    return Compiled(_torch(case, params, _tensor(lr, params), foreach=True, capturable=True))


@component.implementation(role="compiled", requires=(requirements.cuda,), only=ADAM)
def torch_cudagraph(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.AdamW(fused=True, capturable=True) replayed from a CUDA graph."""
    return Captured(_torch(case, params, _tensor(lr, params), fused=True, capturable=True))


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL, only=ADAM)
def apex(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdam."""
    return _apex(case, params, lr)


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL, only=ADAM)
def apex_capturable(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdam(capturable=True), no graph: scale and step stay on the GPU."""
    return _apex(case, params, lr, capturable=True)


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL, only=ADAM)
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


@component.implementation(package="apex", requires=NEEDS_APEX, kernel=KERNEL, only=ADAM)
def apex_cudagraph(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdam(capturable=True) replayed from a CUDA graph."""
    return Captured(_apex(case, params, lr, capturable=True))


@component.implementation(role="default", only=SGD)
def torch_sgd(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.SGD with momentum and no flag set: foreach on a GPU, a for-loop on the CPU."""
    return torch.optim.SGD(params, lr=lr, **hyperparameters(case))


@component.implementation(role="eager", only=SGD)
def torch_sgd_forloop(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.SGD(foreach=False): one tensor after the other."""
    return torch.optim.SGD(params, lr=lr, foreach=False, **hyperparameters(case))


@component.implementation(role="eager", only=SGD)
def torch_sgd_foreach(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.SGD(foreach=True): each operation over all tensors at once."""
    return torch.optim.SGD(params, lr=lr, foreach=True, **hyperparameters(case))


@component.implementation(role="eager", only=SGD)
def torch_sgd_fused(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.SGD(fused=True): the whole update in one kernel over many tensors."""
    return torch.optim.SGD(params, lr=lr, fused=True, **hyperparameters(case))


@component.implementation(role="compiled", requires=(requirements.compiler,), only=SGD)
def torch_sgd_compiled(case: Case, params: Params, lr: float) -> Any:
    """torch.compile of SGD's foreach step, learning rate in a tensor."""
    lr_tensor = _tensor(lr, params)
    return Compiled(torch.optim.SGD(params, lr=lr_tensor, foreach=True, **hyperparameters(case)))


@component.implementation(role="compiled", requires=(requirements.cuda,), only=SGD)
def torch_sgd_cudagraph(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.SGD(fused=True) replayed from a CUDA graph, learning rate in a tensor."""
    lr_tensor = _tensor(lr, params)
    return Captured(torch.optim.SGD(params, lr=lr_tensor, fused=True, **hyperparameters(case)))


@component.implementation(package="apex", requires=NEEDS_APEX, kernel="SGDFunctor", only=SGD)
def apex_sgd(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedSGD."""
    return _other(case, params, lr, "FusedSGD")


@component.implementation(role="default", only=ADAGRAD)
def torch_adagrad(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.Adagrad with no flag set: foreach on a GPU, a for-loop on the CPU."""
    return torch.optim.Adagrad(params, lr=lr, **hyperparameters(case))


@component.implementation(role="eager", only=ADAGRAD)
def torch_adagrad_forloop(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.Adagrad(foreach=False): one tensor after the other."""
    return torch.optim.Adagrad(params, lr=lr, foreach=False, **hyperparameters(case))


@component.implementation(role="eager", only=ADAGRAD)
def torch_adagrad_foreach(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.Adagrad(foreach=True): each operation over all tensors at once."""
    return torch.optim.Adagrad(params, lr=lr, foreach=True, **hyperparameters(case))


@component.implementation(role="eager", only=ADAGRAD)
def torch_adagrad_fused(case: Case, params: Params, lr: float) -> Any:
    """torch.optim.Adagrad(fused=True), which torch ships for the CPU."""
    try:
        return torch.optim.Adagrad(params, lr=lr, fused=True, **hyperparameters(case))
    except RuntimeError as error:
        raise Unsupported(f"this torch has no fused Adagrad here: {error}") from error


@component.implementation(role="compiled", requires=(requirements.compiler,), only=ADAGRAD)
def torch_adagrad_compiled(case: Case, params: Params, lr: float) -> Any:
    """torch.compile of Adagrad's foreach step, learning rate in a tensor."""
    lr_tensor = _tensor(lr, params)
    return Compiled(
        torch.optim.Adagrad(params, lr=lr_tensor, foreach=True, **hyperparameters(case))
    )


@component.implementation(package="apex", requires=NEEDS_APEX, kernel="Adagrad", only=ADAGRAD)
def apex_adagrad(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedAdagrad."""
    return _other(case, params, lr, "FusedAdagrad")


@component.implementation(
    package="apex", requires=NEEDS_APEX, kernel="LAMB", only={"algorithm": ("lamb",)}
)
def apex_lamb(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedLAMB; it overwrites the gradients with the update."""
    return _other(case, params, lr, "FusedLAMB")


@component.implementation(
    package="apex", requires=NEEDS_APEX, kernel="NovoGrad", only={"algorithm": ("novograd",)}
)
def apex_novograd(case: Case, params: Params, lr: float) -> Any:
    """apex.optimizers.FusedNovoGrad."""
    return _other(case, params, lr, "FusedNovoGrad")


def _tensor(lr: float, params: Params) -> torch.Tensor:
    return torch.tensor(lr, dtype=torch.float32, device=params[0].device)


def _torch(case: Case, params: Params, lr: float | torch.Tensor, **options: Any) -> Any:
    rule = torch.optim.AdamW if case["algorithm"] == "adamw" else torch.optim.Adam
    return rule(params, lr=lr, **hyperparameters(case), **options)


def _apex(case: Case, params: Params, lr: float, **options: bool) -> Any:
    from apex.optimizers import FusedAdam

    decoupled = case["algorithm"] == "adamw"
    return FusedAdam(params, lr=lr, adam_w_mode=decoupled, **hyperparameters(case), **options)


def _other(case: Case, params: Params, lr: float, name: str) -> Any:
    """An optimizer of Apex that may not take every dtype: some raise, some leave them as they are.

    One step on eight elements tells, so that the cell says so instead of timing a step of nothing.
    """
    from apex import optimizers

    rule = getattr(optimizers, name)
    settings = hyperparameters(case)
    if params[0].dtype != torch.float32:
        probe = torch.nn.Parameter(torch.ones_like(params[0].detach().flatten()[:8]))
        probe.grad = torch.ones_like(probe)
        try:
            rule([probe], lr=0.5, **settings).step()
        except RuntimeError as error:
            raise Unsupported(f"{name} refuses {case['dtype']}: {error}", USE_FLOAT32) from error
        if bool((probe == 1).all()):
            raise Unsupported(f"{name} leaves {case['dtype']} parameters as they are", USE_FLOAT32)
    return rule(params, lr=lr, **settings)


def _ignores_master_weights(like: torch.Tensor) -> bool:
    """Whether a step leaves the float32 copies as they were, as Apex's bfloat16 path does."""
    from apex.optimizers import FusedAdam

    probe = torch.nn.Parameter(torch.ones(8, dtype=like.dtype, device=like.device))
    probe.grad = torch.ones_like(probe)
    optimizer = FusedAdam([probe], lr=0.5, capturable=True, master_weights=True)
    optimizer.step()
    return bool((optimizer.param_groups_master[0]["params"][0] == 1).all())
