"""Parameters and gradients in bfloat16, updated through float32 master weights.

Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.1, with all parameters in
one flat tensor: AdamW works element by element, so it may see one tensor as well as hundreds, and
its update is then one kernel. Bytes a parameter: gather 2 + 2, update 2 + 12 read and 12 + 2
written, if one kernel does it all (``compiled``).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from apexbench.components.optimizer_steps import Compiled
from apexbench.transformer.compiling import own_code

ALIGNMENT = 64
"""Elements: a parameter begins at a multiple of 128 bytes, as matrix kernels like it."""


class Master:
    """An optimizer of ``model`` that owns its flat master weights.

    ``build`` makes a component's optimizer of the list of parameters that it gets. The model's
    parameters become views of one flat tensor of ``dtype``; its buffers stay as they are. A
    ``Compiled`` optimizer takes the copies on both sides of its step into torch.compile with it.
    """

    def __init__(
        self,
        model: nn.Module,
        build: Callable[[list[nn.Parameter]], Any],
        dtype: torch.dtype = torch.bfloat16,
    ):
        self.parameters = list(model.parameters())
        ends, end = [], 0
        for parameter in self.parameters:
            ends.append(end)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        device = self.parameters[0].device

        def views(flat: Tensor) -> list[Tensor]:
            return [
                flat[begin : begin + parameter.numel()].view(parameter.shape)
                for begin, parameter in zip(ends, self.parameters, strict=True)
            ]

        self.weights = torch.zeros(end, dtype=dtype, device=device)
        self.gradient = torch.zeros_like(self.weights)
        self.master = nn.Parameter(torch.zeros(end, dtype=torch.float32, device=device))
        self.master_gradient = torch.zeros_like(self.master.detach())
        self.master.grad = self.master_gradient
        self._gradients, self._masters = views(self.gradient), views(self.master.detach())
        for parameter, kept, view in zip(
            self.parameters, self._masters, views(self.weights), strict=True
        ):
            kept.copy_(parameter.detach())
            view.copy_(parameter.detach())
            parameter.data = view
        built = build([self.master])
        self.optimizer = built.optimizer if isinstance(built, Compiled) else built
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self._update: Callable[[], None] = self._plain
        if isinstance(built, Compiled):
            update = types.MethodType(own_code(Master._plain), self)
            self._update = torch.compile(update, dynamic=False)

    @torch.no_grad()
    def load(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Begin again from float32 ``weights``, by the names of ``model``'s parameters."""
        place = {id(parameter): view for parameter, view in zip(
            self.parameters, self._masters, strict=True)}  # fmt: skip
        for name, parameter in model.named_parameters():
            place[id(parameter)].copy_(weights[name])
        self.weights.copy_(self.master)

    def _plain(self) -> None:
        with torch.no_grad():
            self.master_gradient.copy_(self.gradient)
        self.optimizer.step()
        with torch.no_grad():
            self.weights.copy_(self.master)

    @torch.no_grad()
    def step(self) -> None:
        """Update master weights and parameters from the parameters' gradients."""
        torch._foreach_copy_(
            self._gradients, [p.grad for p in self.parameters if p.grad is not None]
        )
        self._update()
