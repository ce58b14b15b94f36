"""A recipe's pieces: norm and optimizer from the components' implementations (one list, not two),
attention by the kernel it names, the loss whole or in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from apexbench.components import layer_norm, optimizer, rms_norm
from apexbench.components.component import Component, Implementation
from apexbench.components.optimizer_steps import Captured
from apexbench.measuring.arms import Unsupported
from apexbench.transformer import precision
from apexbench.transformer.cross_entropy import chunked_cross_entropy
from apexbench.transformer.master import Master
from apexbench.transformer.model import (
    Attend,
    Loss,
    NormFactory,
    Transformer,
    attention,
    cross_entropy,
)
from apexbench.transformer.models import ModelConfig
from apexbench.transformer.recipe import Recipe

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


def norm_factory(
    config: ModelConfig, choice: str, dtype: str, autocast: bool | None = None
) -> NormFactory:
    """Builds the norms of a model; ``dtype`` is what its linear layers compute in.

    Below float32 that is by ``autocast``, unless it is False: then parameters have that dtype too.
    """
    case: dict[str, Any] = {
        "rows": config.tokens_per_step,
        "width": config.d_model,
        "dtype": dtype,
        "autocast": dtype != "float32" if autocast is None else autocast,
        "affine": True,
        "direction": "forward_backward",
    }
    function = norm_implementation(config.norm, choice).build(case)
    return lambda: Norm(function, config.d_model, bias=config.norm == "layer")


def attention_by(backend: SDPBackend) -> Attend:
    """Attention in this kernel and no other: PyTorch raises where it cannot serve."""

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


def build_model(config: ModelConfig, recipe: Recipe, device: str) -> Transformer:
    """The recipe's model on ``device``, its weights not set."""
    dtype = precision.MATMUL[recipe.precision]
    attend: Attend = attention
    if recipe.cudnn or recipe.flash:
        kernel = SDPBackend.CUDNN_ATTENTION if recipe.cudnn else SDPBackend.FLASH_ATTENTION
        attend = attention_by(kernel)
    loss: Loss = cross_entropy
    if recipe.chunked:

        def loss(x: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
            return chunked_cross_entropy(x, head, targets, dtype)

    name = str(dtype).removeprefix("torch.")
    norm = norm_factory(config, recipe.norm, name, False if recipe.master else None)
    with torch.device(device):
        return Transformer(config, norm, attend, loss)


HYPERPARAMETERS = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CAPTURABLE = {
    "torch_fused": "torch_cudagraph",
    "torch_compiled": "torch_compiled",
    "apex": "apex_capturable",
}
"""Under a CUDA graph of the whole step: the implementation that keeps its step count on the GPU."""


def optimizer_implementation(choice: str, captured: bool) -> Implementation | None:
    """The implementation that a recipe calls ``choice``; None if it can't be in a CUDA graph."""
    name = choice if choice == "apex" else f"torch_{choice}"
    if captured:
        if name not in CAPTURABLE:
            return None
        name = CAPTURABLE[name]
    return optimizer.component.implementations[name]


def build_optimizer(recipe: Recipe, model: nn.Module, rate: float) -> Any:
    """AdamW of all parameters with the same hyper-parameters for every choice.

    Inside a CUDA graph of the step the learning rate is a tensor; raises Unsupported where the
    choice has no such form.
    """
    chosen = optimizer_implementation(recipe.optimizer, recipe.cudagraph)
    if chosen is None:
        raise Unsupported(
            f"the optimizer '{recipe.optimizer}' counts its steps on the host: a CUDA graph can't "
            "capture it",
            "use fused, compiled or apex",
        )

    def build(parameters: list[nn.Parameter]) -> Any:
        case = {"algorithm": "adamw", "dtype": "float32", **HYPERPARAMETERS}
        built = chosen.build(case, parameters, rate)
        return built.optimizer if isinstance(built, Captured) else built

    return Master(model, build) if recipe.master else build(list(model.parameters()))
