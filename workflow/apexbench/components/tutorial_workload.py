"""The workloads of the tutorial's parts, and its timer."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.components.norms import NormArm, NormWorkload
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Check, Parity, Work

PARTS = {
    "A": "part A, 60 × Linear(512)",
    "B_layer_norm": "part B, LayerNorm of 32×512×1024",
    "B_rms_norm": "part B, RMSNorm of 32×512×1024",
}
WARM_UP, ITERATIONS = 10, 50
WEIGHT_DECAY = 0.01
CHECKED_STEPS = 3
LOSS_TOLERANCE = 2.0**-10


def tutorial_timer(step: Callable[[], Any], device: str) -> int:
    """Nanoseconds an iteration, as the tutorial takes them: one number, no repeats."""

    def synchronize() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM_UP):
        step()
    synchronize()
    begin = time.perf_counter_ns()
    for _ in range(ITERATIONS):
        step()
    synchronize()
    return round((time.perf_counter_ns() - begin) / ITERATIONS)


def norm_case(case: Case) -> dict[str, Any]:
    """Part B as a case of the norm's own component."""
    return {
        "rows": case.get("rows", 32 * 512),
        "width": case.get("width", 1024),
        "dtype": "float32",
        "direction": "forward_backward",
        "autocast": False,
        "affine": True,
        "mixed": False,
    }


class NormPart(NormWorkload):
    """Part B: the norm's own workload, and the tutorial's way in the details."""

    def __init__(self, case: Case, device: str, seed: int, reference: Any, bias: bool):
        super().__init__(norm_case(case), device, seed, reference, bias)
        self.part = case

    def arm(self, implementation: Implementation) -> Arm:
        return NormArm(implementation.build(self.part), self)

    def details(self, arm: Arm) -> dict[str, Any]:
        """``tutorial_ns``: the mean of 50 iterations whose gradients pile up in ``.grad``."""
        assert isinstance(arm, NormArm)
        x, weight, bias, _ = self._buffers(self.case["rows"])

        def step() -> None:
            torch.autograd.backward(arm.function(x, weight, bias).sum())

        return {"tutorial_ns": tutorial_timer(step, self.device)}


class Stack:
    """Linear layers in a row with an optimizer, and one iteration of training them."""

    def __init__(self, module: torch.nn.Module, optimizer: Any, x: torch.Tensor):
        self.module, self.optimizer, self.x = module, optimizer, x

    def step(self) -> torch.Tensor:
        """Gradients cleared, forward, backward, update; returns the loss."""
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.module(self.x).square().mean()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()


class StackArm(Arm):
    """One optimizer with a stack of its own, equal at the start to the others'."""

    def __init__(self, build: Callable[..., Any], workload: StackPart):
        self.build, self.workload = build, workload
        self.stack = workload.stack(build, weight_decay=WEIGHT_DECAY)

    def call(self, index: int) -> None:
        self.stack.step()

    def close(self) -> None:
        del self.stack


class StackPart(Workload):
    """Part A."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time",)

    def __init__(self, case: Case, device: str, seed: int):
        self.device = device
        layers, width = case.get("layers", 60), case.get("width", 512)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = torch.nn.Sequential(
                *(torch.nn.Linear(width, width) for _ in range(layers))
            ).to(device)
            self.x = torch.randn(case.get("batch", 64), width).to(device)
        self.case = case
        self.work = Work(None, None, "not bounded by one limit", None, "a whole training step")

    def stack(self, build: Callable[..., Any], **settings: float) -> Stack:
        """A fresh stack from the shared weights."""
        module = copy.deepcopy(self.module)
        return Stack(module, build(list(module.parameters()), **settings), self.x)

    def arm(self, implementation: Implementation) -> Arm:
        return StackArm(implementation.build(self.case), self)

    def check(self, arm: Arm) -> Parity:
        """The losses of the first steps against the same in float64 with torch's AdamW."""
        assert isinstance(arm, StackArm)
        wide = copy.deepcopy(self.module).double()
        adamw = torch.optim.AdamW(wide.parameters(), lr=1e-3, weight_decay=WEIGHT_DECAY)
        right = Stack(wide, adamw, self.x.double())
        fresh = self.stack(arm.build, weight_decay=WEIGHT_DECAY)
        checks = []
        for number in range(1, CHECKED_STEPS + 1):
            loss, expected = float(fresh.step()), float(right.step())
            off = abs(loss - expected) / abs(expected)
            checks.append(Check(f"loss {number}", off if off == off else None, LOSS_TOLERANCE))
        formula = "|loss - loss_float64| / loss_float64 <= 2^-10 in each of the first 3 steps"
        return Parity(all(entry.passed for entry in checks), formula, checks)

    def details(self, arm: Arm) -> dict[str, Any]:
        """``tutorial_ns``: the mean of 50 iterations with the library's own weight decay."""
        assert isinstance(arm, StackArm)
        return {"tutorial_ns": tutorial_timer(self.stack(arm.build).step, self.device)}
