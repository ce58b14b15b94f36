"""What a training run has come to: losses, loss scales, held-out loss; and when it diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from apexbench.measuring.arms import Diverged

SKIPPED_IN_A_ROW = 25
MOST_POINTS = 200


@dataclass
class Progress:
    """One run from one seed; ``scales`` has a point (step, scale) wherever the scale moved."""

    seed: int
    steps: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    losses: list[float] = field(default_factory=list)
    scales: list[tuple[int, float]] = field(default_factory=list)
    held_out_loss: float | None = None
    held_out_step: int | None = None

    def add(self, losses: Sequence[float], skipped: Sequence[bool], scale: float | None) -> None:
        """Count steps that were done; ``scale`` is GradScaler's after the last of them.

        Raises Diverged on a loss that is not finite, with the step and the scale, and on
        ``SKIPPED_IN_A_ROW`` skipped steps in a row, with the history of the scale.
        """
        for loss, skip in zip(losses, skipped, strict=True):
            if not math.isfinite(loss):
                at = "" if scale is None else f", at a loss scale of {scale:g}"
                raise Diverged(f"the loss is {loss} at step {self.steps + 1}, seed {self.seed}{at}")
            self.losses.append(loss)
            self.steps += 1
            self.skipped_steps += skip
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if skip else 0
        if scale is not None and (not self.scales or self.scales[-1][1] != scale):
            self.scales.append((self.steps, scale))
        if self.skipped_in_a_row >= SKIPPED_IN_A_ROW:
            history = ", ".join(f"{value:g} at step {step}" for step, value in self.scales[-8:])
            raise Diverged(
                f"GradScaler skipped {self.skipped_in_a_row} steps in a row until step "
                f"{self.steps}, seed {self.seed}; its scale was {history}"
            )


def thinned(losses: list[float]) -> list[list[float]]:
    """[step, loss] of at most 200 evenly spaced steps, counted from 1; the last is one of them."""
    stride = -(-len(losses) // MOST_POINTS) or 1
    return [[step, losses[step - 1]] for step in range(len(losses), 0, -stride)][::-1]
