"""The same batches in the same order for every recipe: (2, B, T) tokens and their targets."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from apexbench.transformer.corpus import HELD_OUT, TRAIN, Corpus
from apexbench.transformer.models import ModelConfig

BLOCK_SEQUENCES = 2048
KEPT_BLOCKS = 4
HELD_OUT_TOKENS = 65536
HELD_OUT_SEED = 0


class Batches:
    """Batches by number, generated in blocks of about 2,048 sequences and kept on the device.

    A batch is int64 of shape (2, B, T): tokens, and the tokens that follow them. Training order
    depends on ``seed``; the held-out batches are the same for every seed.
    """

    def __init__(self, corpus: Corpus, config: ModelConfig, device: str, seed: int):
        self.corpus, self.config, self.device, self.seed = corpus, config, device, seed
        self.per_block = max(1, BLOCK_SEQUENCES // config.batch)
        self._blocks: dict[int, Tensor] = {}

    def _make(self, split: int, seed: int, index: int, batches: int) -> Tensor:
        config = self.config
        rows = self.corpus.sequences(
            split, seed, index, batches * config.batch, config.sequence + 1
        ).reshape(batches, config.batch, config.sequence + 1)
        pairs = torch.from_numpy(rows).to(self.device)
        return torch.stack((pairs[..., :-1], pairs[..., 1:]), dim=1)

    def train(self, step: int) -> Tensor:
        """The batch of training step ``step``, from 0."""
        index = step // self.per_block
        if index not in self._blocks:
            self._blocks[index] = self._make(TRAIN, self.seed, index, self.per_block)
            while len(self._blocks) > KEPT_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        return self._blocks[index][step % self.per_block]

    @cached_property
    def held_out(self) -> Tensor:
        """All held-out batches, (n, 2, B, T), at least 65,536 tokens."""
        count = -(-HELD_OUT_TOKENS // self.config.tokens_per_step)
        return self._make(HELD_OUT, HELD_OUT_SEED, 0, count)
