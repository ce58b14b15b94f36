"""A training step in one precision, and what its arms share; the gate is in :mod:`amp_gate`."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch

from apexbench.components import amp_legacy
from apexbench.components.amp_gate import ROUNDOFF, compare
from apexbench.components.amp_models import Batch, Loss, model
from apexbench.components.component import Case, Implementation
from apexbench.errors import UserError
from apexbench.measuring.arms import Arm, Diverged, Unsupported, Workload
from apexbench.records import Parity, Work

LR, WEIGHT_DECAY = 1e-6, 0.1
"""While timed: small, so that thousands of steps leave the loss where it was."""

SETTLING_STEPS = 32

CHECK_SCALE = 2.0**10
"""The loss scale of the gate: enough to show a forgotten unscaling, too little to overflow."""

LEARN_LR, LEARN_STEPS = 1e-3, 20
"""For the loss in the details: the tutorial's 20 steps."""


@dataclass(frozen=True)
class Recipe:
    """A precision: ``float32``, ``tf32``, or an autocast dtype; ``opt_level`` asks for apex.amp."""

    precision: str
    grad_scaler: bool = False
    opt_level: str | None = None


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``mlp batch 128`` or ``mlp batch 128 beside apex.amp O1``."""
    legacy = amp_legacy.level(case)
    beside = f" beside apex.amp {legacy}" if legacy else ""
    return f"{case['model']} batch {case['batch']}{beside}"


class Training:
    """A model, its optimizer and its scaler, in one precision."""

    def __init__(self, recipe: Recipe, module: torch.nn.Module, loss: Loss, device: str, lr: float):
        self.recipe, self.module, self.loss, self.device = recipe, module, loss, device
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=WEIGHT_DECAY)
        self.scaler = torch.amp.GradScaler(device) if recipe.grad_scaler else None
        self._scaler_state = self.scaler.state_dict() if self.scaler is not None else {}
        self.dtype = None
        if recipe.opt_level is None and recipe.precision in ("float16", "bfloat16"):
            self.dtype = getattr(torch, recipe.precision)
        self.patches: amp_legacy.Patches | None = None
        self.untimed: str | None = None
        if recipe.opt_level is not None:
            self.untimed = None if amp_legacy.is_compiled() else amp_legacy.PYTHON_ONLY
            from apex import amp  # only commits before 2025-05-08 have it

            self.patches = amp_legacy.Patches()
            self.module, self.optimizer = amp.initialize(
                module, self.optimizer, opt_level=recipe.opt_level, verbosity=0
            )
            self.patches.found()

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        """Gradients (scaled, where the recipe scales) into ``.grad``; returns the unscaled loss."""
        x, y = batch
        with torch.autocast(self.device, self.dtype) if self.dtype else contextlib.nullcontext():
            out = self.module(x)
            # The loss is taken in float32, to which autocast itself would bring it.
            loss = self.loss(out.float(), y)
        if self.recipe.opt_level is not None:
            from apex import amp

            with amp.scale_loss(loss, self.optimizer) as scaled:
                scaled.backward()
        elif self.scaler is not None:
            torch.autograd.backward(self.scaler.scale(loss))
        else:
            torch.autograd.backward(loss)
        return loss.detach()

    def step(self, batch: Batch) -> torch.Tensor:
        """One training step."""
        if self.recipe.opt_level is None:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.optimizer.zero_grad()
        loss = self.forward_backward(batch)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return loss

    def gradients(self) -> list[torch.Tensor | None]:
        """Of every parameter, unscaled; apex.amp keeps those in its master parameters."""
        if self.recipe.opt_level is None:
            return [p.grad for p in self.module.parameters()]
        from apex import amp

        return [p.grad for p in amp.master_params(self.optimizer)]

    def scale(self) -> float | None:
        """The loss scale, where there is one."""
        if self.recipe.opt_level in ("O1", "O2"):
            return amp_legacy.loss_scale()
        return self.scaler.get_scale() if self.scaler is not None else None

    def unscale(self) -> None:
        """Bring the gradients back to their size; apex.amp's scale_loss has done so already."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)

    def settle(self, batch: Batch) -> None:
        """Let the scale fall until a step is taken, and keep that scale as the one to restore."""
        if self.scaler is None:
            return
        for _ in range(SETTLING_STEPS):
            before = self.scaler.get_scale()
            self.step(batch)
            if self.scaler.get_scale() >= before:
                self._scaler_state = {**self.scaler.state_dict(), "_growth_tracker": 0}
                return
        raise Diverged(f"GradScaler skipped the first {SETTLING_STEPS} steps")

    def restore_scaler(self) -> None:
        """Put scale and growth tracker back to where they settled."""
        if self.scaler is not None:
            self.scaler.load_state_dict(self._scaler_state)


class AmpArm(Arm):
    """One precision with a model of its own, equal at the start to the others'."""

    def __init__(self, recipe: Recipe, workload: AmpWorkload):
        self.recipe, self.workload = recipe, workload
        self.training = workload.training(recipe, LR)
        self.training.settle(workload.same_batch())
        self.synchronises = recipe.grad_scaler or recipe.opt_level in ("O1", "O2")
        self.untimed = self.training.untimed
        self.last: torch.Tensor | None = None
        self._matmul_precision = "highest"

    def prepare(self, calls: int) -> None:
        if self.training.patches is not None:
            self.training.patches.apply()
        self._matmul_precision = torch.get_float32_matmul_precision()
        set_tf32(self.recipe.precision == "tf32")
        self.training.restore_scaler()

    def call(self, index: int) -> None:
        self.last = self.training.step(self.workload.batches[index])

    def finish(self) -> None:
        torch.set_float32_matmul_precision(self._matmul_precision)
        if self.training.patches is not None:
            self.training.patches.remove()

    def close(self) -> None:
        del self.training
        self.last = None


def set_tf32(on: bool) -> None:
    """Let float32 matrix products use TF32, or forbid it."""
    torch.set_float32_matmul_precision("high" if on else "highest")


class AmpWorkload(Workload):
    """The initial weights (float32) and the batches of one case."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time",)

    def __init__(self, case: Case, device: str, seed: int):
        if not isinstance(case["batch"], int) or case["batch"] < 1:
            raise UserError(f"amp case has batch {case['batch']!r}: give a positive whole number.")
        self.case, self.device, self.seed = case, device, seed
        self.model = model(case["model"])
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = self.model.module().to(device)
        self.batches: list[Batch] = []
        self.work = Work(None, None, "not bounded by one limit", None, "a whole training step")

    def _batch(self, generator: torch.Generator | None = None) -> Batch:
        x, y = self.model.batch(self.case["batch"], generator or self.generator)
        return x.to(self.device), y.to(self.device)

    def same_batch(self) -> Batch:
        """The batch that every arm learns from, so that their losses compare."""
        return self._batch(torch.Generator().manual_seed(self.seed + 1))

    def buffer_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.same_batch())

    def allocate(self, calls: int) -> None:
        self.batches = [self._batch() for _ in range(calls)]

    def training(self, recipe: Recipe, lr: float) -> Training:
        """A fresh training in ``recipe`` from the shared initial weights."""
        module = copy.deepcopy(self.module)
        return Training(recipe, module, self.model.loss, self.device, lr)

    def arm(self, implementation: Implementation) -> Arm:
        recipe = implementation.build(self.case)
        if recipe.opt_level is not None and amp_legacy.level(self.case) != recipe.opt_level:
            raise Unsupported(
                "apex.amp keeps one level for a whole process, which is another case's",
                f"measure it in a case of its own with legacy: [{recipe.opt_level}]",
            )
        return AmpArm(recipe, self)

    def check(self, arm: Arm) -> Parity:
        """Loss and gradients of one step against the same model and batch in float64."""
        assert isinstance(arm, AmpArm)
        batch = self._batch()
        arm.prepare(1)
        training = arm.training if arm.recipe.opt_level else self.training(arm.recipe, LR)
        if training.scaler is not None:
            training.scaler.load_state_dict({**training.scaler.state_dict(), "scale": CHECK_SCALE})
        loss = training.forward_backward(batch)
        training.unscale()
        results = training.gradients()
        arm.finish()
        wide = copy.deepcopy(self.module).double()
        x, y = (t.double() if t.is_floating_point() else t for t in batch)
        expected = self.model.loss(wide(x), y)
        gradients = torch.autograd.grad(expected, list(wide.parameters()))
        names = [name for name, _ in wide.named_parameters()]
        right = dict(zip(names, gradients, strict=True))
        found = dict(zip(names, results, strict=True))
        stages = 4 * self.model.depth * ROUNDOFF[arm.recipe.precision]
        training.optimizer.zero_grad()
        return compare(loss, expected.detach(), found, right, stages)

    def details(self, arm: Arm) -> dict[str, Any]:
        """Loss over 20 steps from fresh weights on one batch, steps skipped, and the last scale."""
        assert isinstance(arm, AmpArm)
        timed = None if arm.last is None else float(arm.last)
        facts: dict[str, Any] = {"timed_loss": timed, "tf32": arm.recipe.precision == "tf32"}
        if (scale := arm.training.scale()) is not None:
            facts["timed_scale"] = scale
        if arm.recipe.opt_level is not None:
            facts["opt_level"], facts["compiled"] = arm.recipe.opt_level, arm.untimed is None
        # A second amp.initialize of the process takes over from the first, whose arm is done.
        training, batch = self.training(arm.recipe, LEARN_LR), self.same_batch()
        arm.training.patches = training.patches
        first = training.scale()
        losses, scales = [], [] if first is None else [first]
        arm.prepare(1)
        try:
            for _ in range(LEARN_STEPS):
                losses.append(float(training.step(batch)))
                if (scale := training.scale()) is not None:
                    scales.append(scale)
        finally:
            arm.finish()
        facts |= {"steps": LEARN_STEPS, "first_loss": losses[0], "loss": losses[-1]}
        if scales:
            skipped = sum(after < before for before, after in pairwise(scales))
            facts |= {"skipped_steps": skipped, "scale": scales[-1]}
            if skipped == LEARN_STEPS:
                raise Diverged(f"the loss scaler skipped all {LEARN_STEPS} steps")
        return facts | self._finite([timed, *losses], f"within {LEARN_STEPS} steps")

    @staticmethod
    def _finite(losses: list[float | None], when: str) -> dict[str, Any]:
        if not all(loss is None or abs(loss) < float("inf") for loss in losses):
            raise Diverged(f"the loss became infinite or NaN {when}")
        return {}

    def close(self) -> None:
        self.batches = []
        del self.module
