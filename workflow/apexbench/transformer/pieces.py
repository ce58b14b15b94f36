"""A recipe's norm and optimizer, taken from the components' implementations: one list, not two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from apexbench.components import layer_norm, optimizer, rms_norm
from apexbench.components.component import Component, Implementation
from apexbench.components.optimizer_steps import Captured
from apexbench.measuring.arms import Unsupported
from apexbench.transformer.model import NormFactory
from apexbench.transformer.models import ModelConfig

NORMS: dict[str, Component] = {
    "layer": layer_norm.component,
    "rms": rms_norm.component,
}


def norm_implementation(kind: str, choice: str) -> Implementation:
    """The implementation of the ``layer`` or ``rms`` norm that a recipe calls ``choice``."""
    component = NORMS[kind]
    name = component.baselines()["torch_default"][0] if choice == "torch" else choice
    return component.implementations[name]


class Norm(nn.Module):
    """Owns weight and, for LayerNorm, bias, each (width,); the function is a component's."""

    def __init__(self, function: Callable[..., Tensor], width: int, bias: bool):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight, self.bias)


def norm_factory(config: ModelConfig, choice: str, dtype: str) -> NormFactory:
    """Builds the norms of a model; ``dtype`` is what its linear layers compute in."""
    case: dict[str, Any] = {
        "rows": config.tokens_per_step,
        "width": config.d_model,
        "dtype": dtype,
        "autocast": dtype != "float32",
        "affine": True,
        "direction": "forward_backward",
    }
    function = norm_implementation(config.norm, choice).build(case)
    return lambda: Norm(function, config.d_model, bias=config.norm == "layer")


HYPERPARAMETERS = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CAPTURABLE = {"torch_fused": "torch_cudagraph", "apex": "apex_capturable"}
"""Under a CUDA graph of the whole step: the implementation that keeps its step count on the GPU."""


def optimizer_implementation(choice: str, captured: bool) -> Implementation | None:
    """The implementation that a recipe calls ``choice``; None if it can't be in a CUDA graph."""
    name = choice if choice == "apex" else f"torch_{choice}"
    if captured:
        if name not in CAPTURABLE:
            return None
        name = CAPTURABLE[name]
    return optimizer.component.implementations[name]


def build_optimizer(choice: str, model: nn.Module, rate: float, captured: bool) -> Any:
    """AdamW of all parameters with the same hyper-parameters for every choice.

    ``captured`` is for a step inside a CUDA graph, with the learning rate in a tensor; raises
    Unsupported where the choice has no such form.
    """
    chosen = optimizer_implementation(choice, captured)
    if chosen is None:
        raise Unsupported(
            f"the optimizer '{choice}' counts its steps on the host: a CUDA graph can't capture it",
            "use fused or apex",
        )
    case = {"dtype": "float32", **HYPERPARAMETERS}
    built = chosen.build(case, list(model.parameters()), rate)
    return built.optimizer if isinstance(built, Captured) else built
