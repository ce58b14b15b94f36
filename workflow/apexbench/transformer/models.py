"""Model sizes: presets, a user's own, and what they cost in parameters and FLOPs. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apexbench.errors import UserError

VOCABULARY_MULTIPLE = 128
FFN_MULTIPLE = 64


@dataclass(frozen=True)
class ModelConfig:
    """A pre-norm Transformer decoder and the batch it trains on.

    ``batch`` sequences of ``sequence`` tokens make a step. ``vocabulary`` is what the corpus uses;
    the embedding and the head are padded to a multiple of 128, for every recipe alike.
    ``ffn_width`` 0 means 4 d_model, or 8/3 d_model rounded up to 64 for SwiGLU, which has three
    matrices.
    ``bias`` is the biases of the linear layers. ``learning_rate`` is the schedule's peak.
    """

    name: str
    layers: int
    d_model: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    ffn_width: int = 0
    norm: str = "layer"
    ffn: str = "gelu"
    positions: str = "learned"
    causal: bool = True
    tied: bool = True
    bias: bool = True
    learning_rate: float = 6e-4

    def __post_init__(self) -> None:
        if self.ffn_width == 0:
            gated = -(-8 * self.d_model // (3 * FFN_MULTIPLE)) * FFN_MULTIPLE
            width = gated if self.ffn == "swiglu" else 4 * self.d_model
            object.__setattr__(self, "ffn_width", width)

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding and of the head."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one training step predicts."""
        return self.batch * self.sequence

    def parameters(self, padded: bool = True) -> int:
        """All trained parameters; ``padded=False`` counts the vocabulary as published."""
        vocabulary = self.padded_vocabulary if padded else self.vocabulary
        d, f = self.d_model, self.ffn_width
        norm = 2 * d if self.norm == "layer" else d
        matrices = 3 if self.ffn == "swiglu" else 2
        block = 4 * d * d + matrices * d * f + 2 * norm
        if self.bias:
            block += 4 * d + (matrices - 1) * f + d
        embeddings = vocabulary * d * (1 if self.tied else 2)
        positions = self.sequence * d if self.positions == "learned" else 0
        return self.layers * block + norm + embeddings + positions

    @property
    def matmul_parameters(self) -> int:
        """N_matmul: weights that multiply activations; the head once, the input embedding never."""
        d, matrices = self.d_model, 3 if self.ffn == "swiglu" else 2
        block = 4 * d * d + matrices * d * self.ffn_width
        return self.layers * block + self.padded_vocabulary * d

    @property
    def flops_per_token(self) -> int:
        """FLOPs of forward and backward a token: 6·N_matmul + attention.

        QKᵀ and AV take 2·2·d·T in the forward and twice that in the backward: 12·L·d·T, of which a
        causal mask needs half, 6·L·d·T. Recompute never counts.
        """
        attention = (6 if self.causal else 12) * self.layers * self.d_model * self.sequence
        return 6 * self.matmul_parameters + attention

    @property
    def flops_per_token_palm(self) -> int:
        """The count most papers publish: 6·N_matmul + 12·L·d·T, masked or not.

        Chowdhery et al., PaLM, arXiv:2204.02311, appendix B.
        """
        return 6 * self.matmul_parameters + 12 * self.layers * self.d_model * self.sequence


def _gpt(name: str, layers: int, d_model: int, heads: int, **other: Any) -> ModelConfig:
    return ModelConfig(name, layers, d_model, heads, **({"vocabulary": 50257} | other))


def _ladder(name: str, layers: int, d_model: int, heads: int, learning_rate: float) -> ModelConfig:
    return _gpt(
        f"ladder-{name}",
        layers,
        d_model,
        heads,
        vocabulary=8192,
        sequence=512,
        batch=16,
        learning_rate=learning_rate,
    )


PRESETS = {
    model.name: model
    for model in (
        _gpt("tiny", 2, 64, 4, vocabulary=256, sequence=64, batch=16, learning_rate=1e-2),
        ModelConfig(
            "article",
            layers=4,
            d_model=256,
            heads=4,
            vocabulary=2000,
            sequence=128,
            batch=32,
            positions="none",
            causal=False,
            tied=False,
            learning_rate=3e-4,
        ),
        _gpt("small", 4, 512, 8, vocabulary=8192, sequence=256, batch=32, learning_rate=1e-3),
        # 6e-4 is for half a million tokens a step: at 16,384 the loss jumps during warm-up.
        _gpt("gpt2-124M", 12, 768, 12, sequence=1024, batch=16, learning_rate=3e-4),
        _gpt("gpt2-350M", 24, 1024, 16, sequence=1024, batch=16, learning_rate=3e-4),
        ModelConfig(
            "llama-1B",
            layers=18,
            d_model=2048,
            heads=16,
            vocabulary=32000,
            sequence=2048,
            batch=4,
            ffn_width=5632,
            norm="rms",
            ffn="swiglu",
            positions="rope",
            tied=False,
            bias=False,
            learning_rate=3e-4,
        ),
        _gpt("gpt-1.3B", 24, 2048, 16, sequence=2048, batch=4, learning_rate=2e-4),
        # The same at the batch of a training run, which FP32 has no memory for.
        _gpt("gpt-1.3B-b16", 24, 2048, 16, sequence=2048, batch=16, learning_rate=2e-4),
        _ladder("5M", 4, 256, 4, 1e-3),
        _ladder("14M", 6, 384, 6, 1e-3),
        _ladder("30M", 8, 512, 8, 1e-3),
        _ladder("92M", 12, 768, 12, 3e-4),
        _ladder("310M", 24, 1024, 16, 3e-4),
        _ladder("690M", 24, 1536, 24, 2.5e-4),
        _ladder("1.3B", 26, 2048, 16, 2e-4),
    )
}
LADDER = tuple(name for name in PRESETS if name.startswith("ladder-"))

CHOICES = {
    "norm": ("layer", "rms"),
    "ffn": ("gelu", "swiglu"),
    "positions": ("learned", "rope", "none"),
}
SIZES = ("layers", "d_model", "heads", "vocabulary", "sequence", "batch")


def nearest(word: object, names: list[str]) -> str:
    """What to write instead of ``word``: the nearest of ``names``, or all of them."""
    close = difflib.get_close_matches(str(word), names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(names)}."


def model_config(model: str | Mapping[str, Any], key: str = "model") -> ModelConfig:
    """A preset by name, or a mapping of :class:`ModelConfig`'s fields.

    Raises UserError, naming ``key`` and the remedy, for anything that is neither.
    """
    if isinstance(model, str):
        if model not in PRESETS:
            raise UserError(f"{key}: no model is named '{model}'; {nearest(model, list(PRESETS))}")
        return PRESETS[model]
    if not isinstance(model, Mapping):
        raise UserError(f"{key} is {model!r} but must be a model's name or a mapping of its sizes.")
    names = [entry.name for entry in dataclasses.fields(ModelConfig)]
    for name in model:
        if name not in names:
            raise UserError(f"{key}.{name} is not known; {nearest(name, names)}")
    for name in ("name", *SIZES):
        if name not in model:
            raise UserError(f"{key}.{name} is missing: give the model's {', '.join(SIZES)}.")
    _check(model, key)
    return ModelConfig(**model)


def _check(values: Mapping[str, Any], key: str) -> None:
    for name in SIZES:
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{key}.{name} is {value!r} but must be a whole number above 0.")
    for name in ("causal", "tied", "bias"):
        if not isinstance(values.get(name, True), bool):
            raise UserError(f"{key}.{name} is {values[name]!r} but must be true or false.")
    for name, allowed in CHOICES.items():
        if (value := values.get(name, allowed[0])) not in allowed:
            raise UserError(f"{key}.{name} is {value!r}; {nearest(value, list(allowed))}")
    rate = values.get("learning_rate", 1e-3)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise UserError(f"{key}.learning_rate is {rate!r} but must lie between 0 and 1.")
    if values["vocabulary"] < 2:
        raise UserError(f"{key}.vocabulary is {values['vocabulary']} but must be at least 2.")
    head, rest = divmod(values["d_model"], values["heads"])
    if rest:
        raise UserError(
            f"{key}.heads is {values['heads']}, which does not divide d_model {values['d_model']}."
        )
    if values.get("positions") == "rope" and head % 2:
        raise UserError(f"{key}.heads leaves heads of odd width {head}, which rope can't rotate.")
