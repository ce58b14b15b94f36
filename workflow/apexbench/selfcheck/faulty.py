"""Implementations with a planted fault, which parity must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from apexbench.components import adamw_parity
from apexbench.components.component import Case, Implementation
from apexbench.components.norms import EPS, NormArm
from apexbench.components.optimizer_steps import Update
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Parity, Work
from apexbench.selfcheck.cases import NORM_FAULTS
from apexbench.selfcheck.pairs import Pair, one_thread


class PlantedAdamW(torch.optim.Optimizer):
    """AdamW written out independently of the reference, with one of its FAULTS planted, or none."""

    def __init__(self, params: list[torch.nn.Parameter], fault: str | None):
        super().__init__(params, {"lr": 0.1})
        self.fault, self.steps = fault, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step with the hyper-parameters of the parity gate."""
        self.steps += 1
        settings = adamw_parity.SETTINGS
        (group,) = self.param_groups
        for place, p in enumerate(group["params"]):
            last = place == len(group["params"]) - 1
            gradient = p.grad.float()
            if self.fault == "dropped gradient" and last and self.steps == 7:
                gradient = torch.zeros_like(gradient)
            if self.fault == "coupled weight decay":
                gradient = gradient + settings.weight_decay * p.float()
            state, zero = self.state[p], torch.zeros_like(gradient)
            m = state["m"] = torch.lerp(state.get("m", zero), gradient, 0.1)
            v = state["v"] = torch.lerp(state.get("v", zero), gradient**2, 0.001)
            first, second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
            if self.fault == "no bias correction":
                first = second = 1.0
            if self.fault == "eps inside the square root":
                update = m / first / (v / second + settings.eps).sqrt()
            else:
                update = m / first / ((v / second).sqrt() + settings.eps)
            kept = 1 - group["lr"] * settings.weight_decay
            if self.fault in ("no weight decay", "coupled weight decay"):
                kept = 1.0
            p.copy_(p.float() * kept - group["lr"] * update)


class StepArm(Arm):
    """A few optimizer steps; ``build(params)`` is what parity runs."""

    def __init__(self, build: Callable[[list[torch.nn.Parameter]], Update], device: str):
        self.build = build
        p = torch.nn.Parameter(torch.randn(1024, device=device))
        p.grad = torch.randn_like(p)
        self.update = build([p])

    def call(self, index: int) -> None:
        self.update(1e-6)

    def close(self) -> None:
        self.update.close()


class Steps(Workload):
    """AdamW without and with the fault of the case."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time",)
    examined = False
    cold_cache = False

    def __init__(self, case: Case, device: str, seed: int):
        one_thread(device)
        self.case, self.device, self.seed = case, device, seed
        self.work = Work(None, None, "a proof of parity", None, "a proof of parity, not of speed")

    def arm(self, implementation: Implementation) -> Arm:
        arm: Arm = implementation.build(self)
        return arm

    def _arm(self, fault: str | None) -> Arm:
        return StepArm(lambda params: Update(PlantedAdamW(params, fault), None), self.device)

    def honest(self) -> Arm:
        """AdamW as it should be."""
        return self._arm(None)

    def planted(self) -> Arm:
        """AdamW with the fault."""
        return self._arm(self.case["fault"])

    def check(self, arm: Arm) -> Parity:
        """The optimizers' own gate."""
        assert isinstance(arm, StepArm)
        dtype = getattr(torch, self.case["dtype"])
        return adamw_parity.check(arm.build, dtype, self.device, self.seed)


class WrongBackward(torch.autograd.Function):
    """LayerNorm whose dx leaves out one of its three terms, h mean(g h): the outputs are right."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = (saved.float() for saved in ctx.saved_tensors)
        centred = x - x.mean(-1, keepdim=True)
        rstd = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
        normal, wide = centred * rstd, dy.float()
        g = wide * weight
        dx = rstd * (g - g.mean(-1, keepdim=True))
        kept = dy.dtype
        return dx.to(kept), (wide * normal).sum(0).to(kept), wide.sum(0).to(kept)


class Backward(Pair):
    """LayerNorm forward and backward, without and with the fault."""

    def planted(self) -> Arm:
        """A backward that is wrong."""
        return NormArm(WrongBackward.apply, self)


def fault_workload(case: Case, device: str, seed: int) -> Workload:
    """AdamW for a fault of an optimizer, LayerNorm for one of a norm."""
    if case["fault"] in NORM_FAULTS:
        shape = {"rows": 256, "width": 1024, "direction": "forward_backward"}
        return Backward({**case, **shape, "autocast": False, "affine": True}, device, seed)
    return Steps(case, device, seed)
