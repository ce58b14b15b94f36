"""The Transformer of every recipe: a pre-norm decoder on one page.

Shapes: B sequences of T tokens, width d, h heads of width d/h. Norm, attention and loss come from
outside, so that a recipe swaps them without touching the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apexbench.transformer.models import ModelConfig

NormFactory = Callable[[], nn.Module]
Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
Loss = Callable[[Tensor, nn.Linear, Tensor], Tensor]


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Softmax attention of (B, h, T, d/h), in the kernel that PyTorch chooses."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cross_entropy(x: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """Mean in nats a token of (N, d) through ``head``, at least in float32; ``targets`` is (N,)."""
    logits = head(x)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


class Attention(nn.Module):
    """Multi-head self-attention of (B, T, d)."""

    def __init__(self, config: ModelConfig, attend: Attend):
        super().__init__()
        self.heads, self.causal, self.attend = config.heads, config.causal, attend
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=config.bias)
        self.out = nn.Linear(config.d_model, config.d_model, bias=config.bias)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        B, T, d = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        y = self.attend(q, k, v, self.causal)
        return self.out(y.transpose(1, 2).reshape(B, T, d))


class Gelu(nn.Module):
    """Feed-forward W₂ gelu(W₁ x)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.d_model, config.ffn_width, bias=config.bias)
        self.out = nn.Linear(config.ffn_width, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.up(x)))


class SwiGLU(nn.Module):
    """Feed-forward W₃ (silu(W₁ x) · W₂ x); Shazeer, arXiv:2002.05202."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.d_model, 2 * config.ffn_width, bias=config.bias)
        self.out = nn.Linear(config.ffn_width, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * value)


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: ModelConfig, norm: NormFactory, attend: Attend):
        super().__init__()
        self.norm1 = norm()
        self.attention = Attention(config, attend)
        self.norm2 = norm()
        self.ffn = SwiGLU(config) if config.ffn == "swiglu" else Gelu(config)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.norm1(x), rotation)
        return x + self.ffn(self.norm2(x))


class Transformer(nn.Module):
    """Decoder of ``config``; ``norm()`` builds each of its 2·L + 1 norms."""

    def __init__(
        self,
        config: ModelConfig,
        norm: NormFactory,
        attend: Attend = attention,
        loss: Loss = cross_entropy,
    ):
        super().__init__()
        self.loss = loss
        self.embedding = nn.Embedding(config.padded_vocabulary, config.d_model)
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.sequence, config.d_model))
        self.blocks = nn.ModuleList(Block(config, norm, attend) for _ in range(config.layers))
        self.norm = norm()
        self.head = nn.Linear(config.d_model, config.padded_vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.rotary = config.positions == "rope"
        if self.rotary:
            cosine, sine = rotation_tables(config.sequence, config.head_width)
            self.register_buffer("cosine", cosine, persistent=False)
            self.register_buffer("sine", sine, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats a token of (B, T) int64 ``targets``, a float32 scalar."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions
        rotation = (self.cosine, self.sine) if self.rotary else None
        for block in self.blocks:
            x = block(x, rotation)
        return self.loss(self.norm(x).flatten(0, 1), self.head, targets.flatten())

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """GPT-2's: N(0, 0.02), the residual branches' outputs divided by √(2L), zero biases."""
        device = self.embedding.weight.device
        generator = torch.Generator(device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                std = 0.02
                if name.endswith("out.weight"):
                    std /= math.sqrt(2 * len(self.blocks))
                parameter.normal_(std=std, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.fill_(1)


def rotation_tables(sequence: int, width: int) -> tuple[Tensor, Tensor]:
    """cos and sin of position × frequency, (T, width/2) float32; Su et al., arXiv:2104.09864."""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(sequence, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the halves of (B, h, T, width) by their position; dtype as ``x``."""
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
