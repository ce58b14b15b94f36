"""A recipe's norm and optimizer, taken from the components' implementations: one list, not two."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from apexbench.components import layer_norm, rms_norm
from apexbench.components.component import Component, Implementation
from apexbench.transformer.model import NormFactory
from apexbench.transformer.models import ModelConfig

NORMS: dict[str, Component] = {
    "layer_norm": layer_norm.component,
    "rms_norm": rms_norm.component,
}


def norm_implementation(kind: str, choice: str) -> Implementation:
    """The implementation of a ``layer_norm`` or ``rms_norm`` that a recipe calls ``choice``."""
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
        "width": config.width,
        "dtype": dtype,
        "autocast": dtype != "float32",
        "affine": True,
        "direction": "forward_backward",
    }
    function = norm_implementation(config.norm, choice).build(case)
    return lambda: Norm(function, config.width, bias=config.norm == "layer_norm")


BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1


def optimizer(
    choice: str, parameters: Iterable[nn.Parameter], rate: float, captured: bool
) -> torch.optim.Optimizer:
    """AdamW with the same hyper-parameters for every choice: betas, eps, decoupled decay 0.1.

    ``captured`` is for a step inside a CUDA graph: capturable, and the learning rate a tensor.
    """
    parameters = list(parameters)
    lr: Any = torch.tensor(rate, device=parameters[0].device) if captured else rate
    common = {"lr": lr, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}
    if choice == "apex":
        from apex.optimizers import FusedAdam

        return FusedAdam(parameters, adam_w_mode=True, capturable=captured, **common)
    flags = {"default": {}, "forloop": {"foreach": False}, "fused": {"fused": True}}[choice]
    return torch.optim.AdamW(parameters, capturable=captured, **flags, **common)
