"""What the arms of an optimizer case share, how one is timed, and the gate it must pass."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from apexbench.components import adamw_parity, optimizer_parity, requirements
from apexbench.components.component import Case, Implementation
from apexbench.components.models import elements, parameter_shapes
from apexbench.components.optimizer_steps import SCALE, Update
from apexbench.errors import UserError
from apexbench.measuring.arms import Arm, Unsupported, Workload
from apexbench.records import Parity, Work

ALGORITHMS = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "lamb": "LAMB",
    "novograd": "NovoGrad",
}
DTYPES = ("float32", "bfloat16", "float16")

BETAS = (0.9, 0.999)
EPS = 1e-8
EPS_FLOAT16 = 1e-4
"""1e-8 is zero in float16, in which torch keeps the moments: it would divide by 0."""
WEIGHT_DECAY = 0.1
MOMENTUM = 0.9
MAX_GRAD_NORM = 1.0
"""LAMB clips by the norm over all gradients, as part of the algorithm."""
LR = 1e-6
"""Small, so that thousands of steps on the same gradients leave the parameters N(0, 1)-like."""


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``AdamW gpt2-124M float32 GradScaler``."""
    parts = [ALGORITHMS[case["algorithm"]], case["model"], case["dtype"]]
    return " ".join([*parts, "GradScaler"] if case["grad_scaler"] else parts)


def hyperparameters(case: Case) -> dict[str, Any]:
    """What a case's update rule takes beside lr, the same for every implementation."""
    eps = EPS_FLOAT16 if case["dtype"] == "float16" else EPS
    known = {
        "betas": BETAS,
        "momentum": MOMENTUM,
        "eps": eps,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": MAX_GRAD_NORM,
    }
    names = {
        "sgd": ("momentum", "weight_decay"),
        "adagrad": ("eps", "weight_decay"),
        "lamb": ("betas", "eps", "weight_decay", "max_grad_norm"),
    }.get(case["algorithm"], ("betas", "eps", "weight_decay"))
    return {name: case.get(name, known[name]) for name in names}


def learning_rate(step: int) -> float:
    """The rate of the ``step``-th call: it changes with every step, as under a scheduler."""
    return LR * (1 + 0.5 * math.cos(step))


MOVES = {
    "adamw": (7, "read p, g, m, v; write p, m, v"),
    "adam": (7, "read p, g, m, v; write p, m, v"),
    "sgd": (5, "read p, g, b; write p, b"),
    "adagrad": (5, "read p, g, h; write p, h"),
    "lamb": (
        11,
        "read g for its norm; read p, g, m, v and write m, v, u; read p, u and write p once the "
        "norms of p and of the update u are known",
    ),
    "novograd": (6, "read g for its norm; read p, g, m; write p, m"),
}
"""Values moved per parameter, and which: what must be read before the first parameter may change
is read a second time."""


def work(case: Case) -> Work:
    """Least bytes of one step, bounded by the copy ceiling."""
    size = getattr(torch, case["dtype"]).itemsize
    values, what = MOVES[case["algorithm"]]
    if case["grad_scaler"]:
        values, what = values + 1, f"{what}; read g for the inf check"
    return Work(
        elements(parameter_shapes(case["model"])) * values * size,
        None,
        f"{values * size} B × parameters: {what}, {size} B each",
        "copy",
    )


class OptimizerArm(Arm):
    """One optimizer over the shared parameters; it owns its state alone."""

    def __init__(self, implementation: Implementation, workload: OptimizerWorkload):
        self.implementation = implementation
        self.workload = workload
        self.update = workload.build(implementation, workload.case, workload.params)
        self.synchronises = self.update.synchronises
        # An unscaled gradient must be restored before it is unscaled again; so must LAMB's, which
        # Apex overwrites with the update.
        self.max_calls = 1 if workload.gradients else None
        self.steps = 0

    def prepare(self, calls: int) -> None:
        self.workload.restore_gradients()
        self.update.restore_scaler()

    def call(self, index: int) -> None:
        self.steps += 1
        self.update(learning_rate(self.steps))

    def close(self) -> None:
        self.update.close()


class OptimizerWorkload(Workload):
    """Parameters and gradients of one model; N(0, 1) values, gradients a hundredth of that."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time", "device_time")

    def __init__(self, case: Case, device: str, seed: int):
        if case["algorithm"] not in ALGORITHMS:
            raise UserError(
                f"optimizer case has algorithm '{case['algorithm']}': use {', '.join(ALGORITHMS)}."
            )
        if case["dtype"] not in DTYPES:
            raise UserError(f"optimizer case has dtype '{case['dtype']}': use {', '.join(DTYPES)}.")
        self.case = case
        self.device = device
        self.dtype = getattr(torch, case["dtype"])
        self.work = work(case)
        self.seed = seed
        generator = torch.Generator(device).manual_seed(seed)
        self.params: list[torch.nn.Parameter] = []
        self.gradients: list[torch.Tensor] = []
        self._scaled: list[torch.Tensor] = []
        for shape in parameter_shapes(case["model"]):
            p, g = (
                torch.randn(shape, device=device, dtype=self.dtype, generator=generator)
                for _ in range(2)
            )
            p = torch.nn.Parameter(p)
            p.grad = g.mul_(0.01 * (SCALE if case["grad_scaler"] else 1))
            self.params.append(p)
        if case["grad_scaler"] or case["algorithm"] == "lamb":
            self._scaled = [p.grad for p in self.params if p.grad is not None]
            self.gradients = [gradient.clone() for gradient in self._scaled]

    def build(
        self, implementation: Implementation, case: Case, params: list[torch.nn.Parameter]
    ) -> Update:
        """The implementation's optimizer of ``params`` as one call, or Unsupported."""
        built = implementation.build(case, params, LR)
        scaler = None
        if case["grad_scaler"]:
            scaler = torch.amp.GradScaler(self.device, init_scale=SCALE)
            if self.dtype == torch.bfloat16 and not _unscales(self.dtype, self.device):
                raise Unsupported(
                    f"GradScaler has no kernel for bfloat16 gradients on {self.device}",
                    "bfloat16 has float32's range and needs no scaling",
                )
            on_device = getattr(
                getattr(built, "optimizer", built), "_step_supports_amp_scaling", False
            )
            if self.dtype == torch.float16 and not on_device:
                raise Unsupported(
                    "GradScaler refuses to unscale float16 gradients for this optimizer",
                    "keep float32 parameters, or an optimizer that takes the scale on the device",
                )
        return Update(built, scaler)

    def arm(self, implementation: Implementation) -> Arm:
        return OptimizerArm(implementation, self)

    def check(self, arm: Arm) -> Parity:
        """The arm's implementation, built on small tensors, against the float64 formula."""
        assert isinstance(arm, OptimizerArm)
        return _parity(arm.implementation, self)

    def restore_gradients(self) -> None:
        """Undo what an unscaling, or Apex's LAMB, did to the shared gradients."""
        if self.gradients:
            with torch.no_grad():
                torch._foreach_copy_(self._scaled, self.gradients)

    def details(self, arm: Arm) -> dict[str, Any]:
        """Sizes of the model, and whether the values stayed finite over all steps."""
        assert isinstance(arm, OptimizerArm)
        finite = all(bool(torch.isfinite(p.detach()).all()) for p in self.params)
        if not finite:
            raise FloatingPointError("parameters became infinite or NaN while it was timed")
        return {
            "tensors": len(self.params),
            "parameters": elements(parameter_shapes(self.case["model"])),
            "steps": arm.steps,
            "synchronises": arm.synchronises,
        }

    def close(self) -> None:
        for p in self.params:
            p.grad = None
        self.params, self.gradients, self._scaled = [], [], []


_PARITY: dict[tuple[Any, ...], Parity] = {}


def _parity(implementation: Implementation, workload: OptimizerWorkload) -> Parity:
    """The parity of an implementation, checked once a process: it does not depend on the model."""
    key = (
        implementation.build,
        *(workload.case[name] for name in ("algorithm", "dtype", "grad_scaler")),
        workload.device,
        workload.seed,
    )
    if key not in _PARITY:
        algorithm, adamw = workload.case["algorithm"], workload.case["algorithm"] == "adamw"
        settings = (
            adamw_parity.SETTINGS.as_case() if adamw else optimizer_parity.SETTINGS[algorithm]
        )
        case = {**workload.case, **settings}
        arguments = (
            lambda params: workload.build(implementation, case, params),
            workload.dtype,
            workload.device,
            workload.seed,
            SCALE if workload.case["grad_scaler"] else 1.0,
            requirements.compiler in implementation.requires,
        )
        _PARITY[key] = (
            adamw_parity.check(*arguments)
            if adamw
            else optimizer_parity.check(algorithm, *arguments)
        )
    return _PARITY[key]


def _unscales(dtype: torch.dtype, device: str) -> bool:
    """Whether this torch's GradScaler can look for infinities in gradients of ``dtype``."""
    gradient, one = torch.ones(1, dtype=dtype, device=device), torch.ones(1, device=device)
    try:
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], one.clone(), one)
    except NotImplementedError:
        return False
    return True
