"""One training step of one recipe, as the arm that the sampler times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apexbench.components.optimizer_steps import set_lr
from apexbench.measuring.arms import Arm, Unsupported
from apexbench.transformer import pieces, precision
from apexbench.transformer.batches import Batches
from apexbench.transformer.model import Transformer
from apexbench.transformer.models import ModelConfig
from apexbench.transformer.progress import Progress
from apexbench.transformer.recipe import Recipe

WARMUP_STEPS = 20
CAPTURE_WARMUP = 3
WINDOW_NS = 200_000_000
DETAIL_CALLS = 25
PARITY_SCALE = 2.0**10


@dataclass(frozen=True)
class Shared:
    """What all recipes of a case train on from one seed; ``loss_steps`` 0 asks no held-out loss."""

    config: ModelConfig
    weights: dict[str, Tensor]
    batches: Batches
    device: str
    loss_steps: int = 0


def learning_rate(step: int, peak: float) -> float:
    """Linear warm-up, then inverse square root: it changes at every step and needs no horizon.

    Vaswani et al., arXiv:1706.03762, section 5.3.
    """
    done = step + 1
    return peak * min(done / WARMUP_STEPS, math.sqrt(WARMUP_STEPS / done))


class TrainingArm(Arm):
    """Trains its own copy of the model: forward, loss, backward, optimizer step, zero_grad.

    Losses, scales and skipped steps are read from the device between windows only, and so is the
    held-out loss, as soon as ``loss_steps`` steps are done. Raises Unsupported where the recipe
    cannot run here; ``finish`` raises Diverged as :class:`Progress` says.
    """

    def __init__(self, recipe: Recipe, shared: Shared):
        if (unmet := precision.missing(recipe.precision, shared.device)) is not None:
            raise Unsupported(*unmet)
        if recipe.cudagraph and recipe.precision == "fp16":
            raise Unsupported(
                "GradScaler decides on the host whether to step, which a CUDA graph cannot capture",
                "use bf16",
            )
        self.recipe, self.shared, self.device = recipe, shared, shared.device
        self.model = self._model()
        self._graph: CapturedStep | None = None
        self.forward = torch.compile(self.model, dynamic=False) if recipe.compile else self.model
        self.optimizer = pieces.build_optimizer(
            recipe.optimizer, self.model, shared.config.learning_rate, recipe.cudagraph
        )
        self.scaler = torch.amp.GradScaler(shared.device) if recipe.precision == "fp16" else None
        self.synchronises = self.scaler is not None
        # One step between two synchronisations hides none of the host's work behind the device's,
        # as training does: on a GPU a window holds several.
        self.window_ns = WINDOW_NS if shared.device == "cuda" else None
        self.progress = Progress(shared.batches.seed)
        self._pending: list[tuple[Tensor, Tensor | None]] = []
        self._window: list[tuple[Tensor, float]] = []

    def _model(self) -> Transformer:
        dtype = str(precision.MATMUL[self.recipe.precision]).removeprefix("torch.")
        config = self.shared.config
        with torch.device(self.device):
            model = Transformer(config, pieces.norm_factory(config, self.recipe.norm, dtype))
        model.load_state_dict(self.shared.weights)
        return model

    def restart(self, shared: Shared) -> None:
        """Begin again from another seed, in place, so that captured graphs stay valid."""
        self.shared, self.progress = shared, Progress(shared.batches.seed)
        self.model.load_state_dict(shared.weights)
        forget(self.optimizer)
        if self.scaler is not None:
            self.scaler = torch.amp.GradScaler(self.device)

    def prepare(self, calls: int) -> None:
        precision.set_tf32(self.recipe.precision == "tf32")
        if self.recipe.cudagraph and self._graph is None:
            self._graph = CapturedStep(self)
            self.finish()
        peak, first = self.shared.config.learning_rate, self.progress.steps
        self._window = [
            (self.shared.batches.train(step), learning_rate(step, peak))
            for step in range(first, first + calls)
        ]

    @property
    def graph_pool_bytes(self) -> int | None:
        """Bytes the CUDA graph keeps for itself, which no count of a replay's allocations sees."""
        return None if self._graph is None else self._graph.pool_bytes

    def call(self, index: int) -> None:
        batch, rate = self._window[index]
        if self._graph is not None:
            self._pending.append((self._graph.replay(batch, rate), None))
        else:
            self._pending.append(self._step(batch, rate))

    def loss(self, batch: Tensor) -> Tensor:
        """Forward in the recipe's precision, compiled where the recipe is."""
        with precision.autocast(self.recipe.precision, self.device):
            loss: Tensor = self.forward(batch[0], batch[1])
        return loss

    def _step(self, batch: Tensor, rate: float) -> tuple[Tensor, Tensor | None]:
        """One step without a graph: the loss, and GradScaler's inf flag where there is one."""
        set_lr(self.optimizer, rate)
        return self._update(batch)

    def _update(self, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        loss = self.loss(batch)
        skipped = None
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            skipped = found_inf(self.scaler, self.optimizer)
            self.scaler.update()
        self.model.zero_grad()  # to None; FusedAdam's own takes no set_to_none
        return loss.detach(), skipped

    def finish(self) -> None:
        pending, self._pending, self._window = self._pending, [], []
        if not pending:
            return
        losses = torch.stack([loss for loss, _ in pending]).tolist()
        flags = [flag for _, flag in pending if flag is not None]
        skipped = (
            [value > 0 for value in torch.stack(flags).tolist()] if flags else [False] * len(losses)
        )
        scale = None if self.scaler is None else float(self.scaler.get_scale())
        progress = self.progress
        progress.add(losses, skipped, scale)
        if 0 < self.shared.loss_steps <= progress.steps and progress.held_out_loss is None:
            progress.held_out_loss = self.evaluate(self.shared.batches.held_out)
            progress.held_out_step = progress.steps

    def train_to(self, steps: int, alive: Callable[[], None] = lambda: None) -> None:
        """Train on until ``steps`` steps are done in all, calling ``alive`` now and then."""
        while self.progress.steps < steps:
            alive()
            # With a scaler step by step, so that the history has every change of the scale.
            calls = 1 if self.scaler else min(DETAIL_CALLS, steps - self.progress.steps)
            self.prepare(calls)
            for index in range(calls):
                self.call(index)
            self.finish()

    @torch.no_grad()
    def evaluate(self, batches: Tensor) -> float:
        """Mean loss in nats a token of (n, 2, B, T), in the recipe's precision, not compiled."""
        precision.set_tf32(self.recipe.precision == "tf32")
        with precision.autocast(self.recipe.precision, self.device):
            losses = [self.model(batch[0], batch[1]).double() for batch in batches]
        return float(torch.stack(losses).mean())

    def gradients(self, batch: Tensor) -> tuple[float, list[Tensor]]:
        """Loss and unscaled gradients of a batch at the first weights; the run stays as it was."""
        precision.set_tf32(self.recipe.precision == "tf32")
        parameters: list[Tensor] = list(self.model.parameters())
        kept = [parameter.detach().clone() for parameter in parameters]
        self.model.load_state_dict(self.shared.weights)
        scale = 1.0 if self.scaler is None else PARITY_SCALE
        loss = self.loss(batch)
        gradients = torch.autograd.grad(loss * scale, parameters)
        with torch.no_grad():
            torch._foreach_copy_(parameters, kept)
        return float(loss.detach()), [gradient / scale for gradient in gradients]

    def replay_error(self, steps: int = 10) -> float | None:
        """Largest relative difference of loss between replays and the same steps without a graph.

        Both runs start from the first weights, on fresh batches, with the learning rate of every
        step; None if a loss is not finite. The arm's own run begins again afterwards.
        """
        assert self._graph is not None
        runs = []
        for run in (self._graph.replay, lambda batch, rate: self._step(batch, rate)[0]):
            self.restart(self.shared)
            self.prepare(steps)
            runs.append(torch.stack([run(batch, rate) for batch, rate in self._window]).double())
        self.restart(self.shared)
        error = float(((runs[0] - runs[1]) / runs[1]).abs().max())
        return error if math.isfinite(error) else None

    def close(self) -> None:
        self._graph = self._pending = self._window = None  # type: ignore[assignment]
        self.model = self.forward = self.optimizer = self.scaler = None  # type: ignore[assignment]


def found_inf(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The device flag by which GradScaler skipped this step, unread: reading it would synchronise.

    It must be taken between ``step`` and ``update``, which forgets it.
    """
    flags: dict[Any, Tensor] = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return next(iter(flags.values()), None)


def forget(optimizer: Any) -> None:
    """Put an AdamW back to before its first step, in place: moments and step counts become 0."""
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    for group in optimizer.param_groups:  # where Apex counts its steps
        if isinstance(step := group.get("step"), Tensor):
            step.zero_()
        elif step is not None:
            group["step"] = 0


class CapturedStep:
    """A whole training step in one CUDA graph; batch and learning rate come from outside.

    Before the capture the arm trains ``CAPTURE_WARMUP`` ordinary steps on a side stream, as
    PyTorch's notes on CUDA graphs ask; they count as steps.
    """

    def __init__(self, arm: TrainingArm):
        self.batch = arm.shared.batches.train(0).clone()
        self.optimizer = arm.optimizer
        peak = arm.shared.config.learning_rate
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            done = arm.progress.steps
            for step in range(done, done + CAPTURE_WARMUP):
                self._set(arm.shared.batches.train(step), learning_rate(step, peak))
                arm._pending.append(arm._update(self.batch))
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss, _ = arm._update(self.batch)
        self.pool_bytes = torch.cuda.memory_reserved() - before

    def _set(self, batch: Tensor, rate: float) -> None:
        self.batch.copy_(batch)
        set_lr(self.optimizer, rate)

    def replay(self, batch: Tensor, rate: float) -> Tensor:
        """One step; returns its loss, unread."""
        self._set(batch, rate)
        self.graph.replay()
        return self.loss.clone()
