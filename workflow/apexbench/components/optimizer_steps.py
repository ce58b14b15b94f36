"""An optimizer's update as one call: eager, compiled or captured, with a GradScaler or not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

SCALE = 2.0**10
"""The loss scale: a power of two, so that unscaling is exact; float16 gradients can hold it."""


class Compiled:
    """An optimizer whose step goes through torch.compile; a GradScaler takes it for the optimizer.

    Its learning rate is a tensor: a float would be a constant of the graph, recompiled each step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state
        self.step = torch.compile(optimizer.step, dynamic=False)


class Captured:
    """An optimizer whose whole update is replayed from a CUDA graph.

    Its learning rate and step count live on the device: a number would be a constant of the graph.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state


def set_lr(optimizer: Any, lr: float) -> None:
    """Set the learning rate of every group: in place where it is a tensor, as a scheduler does."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


class Update:
    """One call of an optimizer on gradients that lie in ``.grad``; with ``scaler``, scaled by it.

    With a scaler a call is the unscaling and inf check, the step, and the scale's update. Gradients
    must exist when an Update is built. ``synchronises`` is True where GradScaler reads its inf
    check on the host: for every optimizer that cannot take the scale on the device, which is all
    but torch's fused and Apex's capturable ones.
    """

    def __init__(self, built: Any, scaler: torch.amp.GradScaler | None):
        self.built = built
        self.optimizer = built.optimizer if isinstance(built, Captured) else built
        self.scaler = scaler
        on_device = bool(getattr(self.optimizer, "_step_supports_amp_scaling", False))
        self.synchronises = scaler is not None and not on_device
        self._graph: torch.cuda.CUDAGraph | None = None
        if scaler is not None:
            # Public API has no other way to create the scale before the first backward.
            device = self.optimizer.param_groups[0]["params"][0].device
            scaler.scale(torch.ones((), device=device))
            self._scaler_state = {**scaler.state_dict(), "scale": SCALE, "_growth_tracker": 0}
            # Said at every step of an optimizer with Apex's signature: not part of the step.
            warnings.filterwarnings("ignore", "GradScaler is going to stop passing itself")
        self._run = self._scaled if scaler is not None else self.optimizer.step
        if isinstance(built, Captured):
            self._run = self._capture(self._run)

    def __call__(self, lr: float) -> None:
        """Set the learning rate and update the parameters."""
        set_lr(self.optimizer, lr)
        self._run()

    def restore_scaler(self) -> None:
        """Put scale and growth tracker back, in place, as a captured graph needs it."""
        if self.scaler is not None:
            self.scaler.load_state_dict(self._scaler_state)

    def _scaled(self) -> None:
        assert self.scaler is not None
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Warm up and capture at lr 0, which moves no parameter; then forget what the state saw."""
        set_lr(self.optimizer, 0.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            run()
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        for group in self.optimizer.param_groups:  # Apex counts steps by group
            if isinstance(group.get("step"), torch.Tensor):
                group["step"].zero_()
        self.restore_scaler()
        return self._graph.replay

    def close(self) -> None:
        """Free state, graph and scaler; the parameters belong to the workload."""
        self.optimizer.state.clear()
        self.optimizer.param_groups.clear()
        if self._graph is not None:
            self._graph.reset()
        self._run = lambda: None
        del self.built, self.optimizer
