"""The two models of the amp component, with their batches and losses."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from apexbench.errors import UserError

WIDTH, CLASSES = 256, 10
HEADS, SEQUENCE = 4, 128

Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A pre-norm causal Transformer block: x + attention(norm(x)), then + MLP(norm(x)).

    x is (batch, sequence, WIDTH), of any float dtype.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, WIDTH) to the same shape."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        q, k, v = heads.unbind(2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return y


@dataclass(frozen=True)
class Model:
    """How to make the module and a batch, its loss, and how many matrix products follow another."""

    module: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], Batch]
    loss: Loss
    depth: int


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


def _mlp_batch(size: int, generator: torch.Generator) -> Batch:
    x = torch.randn(size, WIDTH, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def _block_batch(size: int, generator: torch.Generator) -> Batch:
    shape = (size, SEQUENCE, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


MODELS = {
    "mlp": Model(_mlp, _mlp_batch, functional.cross_entropy, 3),
    "transformer_block": Model(Block, _block_batch, functional.mse_loss, 6),
}


def model(name: str) -> Model:
    """The model of a case; UserError for an unknown name."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, 1, 0.0)[0]
        raise UserError(f"amp case has model '{name}', which is unknown: did you mean '{near}'?")
    return MODELS[name]
