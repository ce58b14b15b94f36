"""One training step of one recipe, as the arm that the sampler times."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apexbench.components.optimizer_steps import set_lr
from apexbench.measuring.arms import Arm, Unsupported
from apexbench.transformer import pieces, precision
from apexbench.transformer.batches import Batches
from apexbench.transformer.capture import CapturedStep
from apexbench.transformer.compiling import compiled
from apexbench.transformer.master import Master
from apexbench.transformer.model import Transformer
from apexbench.transformer.models import ModelConfig
from apexbench.transformer.progress import Progress
from apexbench.transformer.recipe import Recipe
from apexbench.transformer.schedule import learning_rate

WINDOW_NS = 200_000_000
DETAIL_CALLS = 25
PARITY_SCALE = 2.0**10


@dataclass(frozen=True)
class Shared:
    """What all recipes of a case train on from one seed; ``loss_steps`` 0 asks no held-out loss.

    ``config.batch`` sequences make a step, taken in ``micro_batches`` equal parts whose gradients
    add up. ``graph_pool`` is the memory that the CUDA graphs of a case share.
    """

    config: ModelConfig
    weights: dict[str, Tensor]
    batches: Batches
    device: str
    loss_steps: int = 0
    micro_batches: int = 1
    graph_pool: Any = None


class TrainingArm(Arm):
    """Trains its own copy of the model: forward, loss, backward, optimizer step, zero_grad.

    Losses, scales and skipped steps are read from the device between windows only, and so is the
    held-out loss, when exactly ``loss_steps`` steps are done: a window that would pass them begins
    after them, and the steps before it are not timed. Raises Unsupported where the recipe
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
        with sized(shared.config):
            self.model = pieces.build_model(shared.config, recipe, self.device)
            self.model.load_state_dict(shared.weights)
            self.optimizer = pieces.build_optimizer(recipe, self.model, shared.config.learning_rate)
        self._graph: CapturedStep | None = None
        self.forward: Callable[[Tensor, Tensor], Tensor] = self.model
        if recipe.compile:
            self.forward = compiled(self.model, recipe.autotune)
        self.scaler = self.new_scaler() if recipe.precision == "fp16" else None
        self.synchronises = self.scaler is not None
        # One step between two synchronisations hides none of the host's work behind the device's,
        # as training does: on a GPU a window holds several.
        self.window_ns = WINDOW_NS if shared.device == "cuda" else None
        self.progress = Progress(shared.batches.seed)
        self.pending: list[tuple[Tensor, Tensor | None]] = []
        self._window: list[tuple[Tensor, float]] = []

    def restart(self, shared: Shared) -> None:
        """Begin again from another seed, in place, so that captured graphs stay valid."""
        self.shared, self.progress = shared, Progress(shared.batches.seed)
        self._load_first()
        forget(self.optimizer)
        if self.scaler is not None:
            self.scaler = self.new_scaler()

    def new_scaler(self) -> torch.amp.GradScaler:
        """A GradScaler as PyTorch sets it up."""
        return torch.amp.GradScaler(self.device)

    def _load_first(self) -> None:
        """Put the first weights back, in place; master weights get every bit of them."""
        if isinstance(self.optimizer, Master):
            self.optimizer.load(self.model, self.shared.weights)
        else:
            self.model.load_state_dict(self.shared.weights)

    def prepare(self, calls: int) -> None:
        precision.set_tf32(self.recipe.precision == "tf32")
        if self.recipe.cudagraph and self._graph is None:
            with sized(self.shared.config):
                self._graph = CapturedStep(self)
            self.finish()
        left = self.shared.loss_steps - self.progress.steps
        if 0 < left < calls:  # the held-out loss is of that very step, whatever a window holds
            self._window = self._next(left)
            for index in range(left):
                self.call(index)
            self.finish()
        self._window = self._next(calls)

    def _next(self, calls: int) -> list[tuple[Tensor, float]]:
        """Batch and learning rate of the next steps."""
        peak, first = self.shared.config.learning_rate, self.progress.steps
        return [
            (self.shared.batches.train(step), learning_rate(step, peak))
            for step in range(first, first + calls)
        ]

    @property
    def graph_pool_bytes(self) -> int | None:
        """Bytes the CUDA graph keeps for itself, which no count of a replay's allocations sees."""
        return None if self._graph is None else self._graph.pool_bytes

    def call(self, index: int) -> None:
        batch, rate = self._window[index]
        with sized(self.shared.config):
            if self._graph is not None:
                self.pending.append((self._graph.replay(batch, rate), None))
            else:
                self.pending.append(self._step(batch, rate))

    def parts(self, batch: Tensor) -> tuple[Tensor, ...]:
        """The micro-batches of (2, B, T) that this process takes."""
        return batch.chunk(self.shared.micro_batches, dim=1)

    def share(self, loss: Tensor) -> Tensor:
        """What one part's mean loss adds to the whole batch's."""
        return loss if self.shared.micro_batches == 1 else loss / self.shared.micro_batches

    def backward(self, batch: Tensor, scale: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradients of ``scale(loss)`` into .grad; returns the mean loss of ``parts``, unread."""
        losses = []
        for part in self.parts(batch):
            with precision.autocast(self.recipe.precision, self.device):
                loss = self.forward(part[0], part[1])
            losses.append(loss.detach())
            scale(self.share(loss)).backward()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def _step(self, batch: Tensor, rate: float) -> tuple[Tensor, Tensor | None]:
        """One step without a graph: the loss, and GradScaler's inf flag where there is one."""
        set_lr(self.optimizer, rate)
        return self.update(batch)

    def update(self, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """Forward, backward, optimizer step: what one step does at the rate that is set."""
        skipped = None
        if self.scaler is None:
            loss = self.backward(batch, lambda loss: loss)
            self.optimizer.step()
        else:
            loss = self.backward(batch, self.scaler.scale)
            self.scaler.step(self.optimizer)
            skipped = found_inf(self.scaler, self.optimizer)
            self.scaler.update()
        self.model.zero_grad()  # to None; FusedAdam's own takes no set_to_none
        return loss, skipped

    def finish(self) -> None:
        pending, self.pending, self._window = self.pending, [], []
        if not pending:
            return
        losses = self.mean(torch.stack([loss for loss, _ in pending])).tolist()
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

    def mean(self, losses: Tensor) -> Tensor:
        """Losses of the whole batch from those of this process's part."""
        return losses

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
            losses = [
                Transformer.forward(self.model, part[0], part[1]).double()
                for batch in batches
                for part in batch.chunk(self.shared.micro_batches, dim=1)
            ]
        return float(torch.stack(losses).mean())

    def gradients(self, batch: Tensor) -> tuple[float, list[Tensor]]:
        """Loss and unscaled gradients of a batch at the first weights; the run stays as it was."""
        precision.set_tf32(self.recipe.precision == "tf32")
        parameters: list[Tensor] = list(self.model.parameters())
        kept = [parameter.detach().clone() for parameter in parameters]
        self.model.load_state_dict(self.shared.weights)
        scale = 1.0 if self.scaler is None else PARITY_SCALE
        with sized(self.shared.config):
            loss = self.mean(self.backward(batch, lambda loss: loss * scale))
        gradients = [
            parameter.grad / scale for parameter in parameters if parameter.grad is not None
        ]
        self.model.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(parameters, kept)
        return float(loss), gradients

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
        self._graph = self.pending = self._window = None  # type: ignore[assignment]
        self.model = self.forward = self.optimizer = self.scaler = None  # type: ignore[assignment]


@contextmanager
def sized(config: ModelConfig) -> Any:
    """Let an out-of-memory error say which step it was that had no room."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        error.add_note(
            f"training {config.name} with {config.batch} sequences of {config.sequence} tokens"
        )
        raise


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
