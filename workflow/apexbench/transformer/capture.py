"""A whole training step in one CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apexbench.components.optimizer_steps import set_lr
from apexbench.transformer.schedule import learning_rate

if TYPE_CHECKING:
    from apexbench.transformer.trainer import TrainingArm

CAPTURE_WARMUP = 3


class GraphPool:
    """The memory that a case's CUDA graphs share, kept while arms come and go.

    A pool dies with its last graph, and a capture into a dead one ends in an assertion: a graph of
    one in-place addition stays.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._count = torch.zeros(1, device="cuda")
        self._keeper = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._keeper, pool=self.handle):
            self._count.add_(1)


class CapturedStep:
    """A training step in one CUDA graph; batch and learning rate come from outside.

    Before the capture the arm trains ``CAPTURE_WARMUP`` ordinary steps on a side stream, as
    PyTorch's notes on CUDA graphs ask; they count as steps. The graphs of a case share one memory
    pool, as nothing but a loss, which is copied at once, lives from one replay to the next.
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
                arm.pending.append(arm.update(self.batch))
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=arm.shared.graph_pool.handle):
            self.loss, _ = arm.update(self.batch)
        self.pool_bytes = torch.cuda.max_memory_allocated() - before

    def _set(self, batch: Tensor, rate: float) -> None:
        self.batch.copy_(batch)
        set_lr(self.optimizer, rate)

    def replay(self, batch: Tensor, rate: float) -> Tensor:
        """One step; returns its loss, unread."""
        self._set(batch, rate)
        self.graph.replay()
        return self.loss.clone()
