"""Model sizes: presets, a user's own, and what they cost in parameters and FLOPs. No torch here."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apexbench.errors import UserError

VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True)
class ModelConfig:
    """A pre-norm Transformer decoder and the batch it trains on.

    ``batch`` sequences of ``sequence`` tokens make a step. ``vocabulary`` is what the corpus uses;
    the embedding and the head are padded to a multiple of 64, for every recipe alike. ``bias`` is
    the biases of the linear layers. ``learning_rate`` is the peak of the schedule.
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int
    batch: int
    ffn_width: int = 0
    norm: str = "layer_norm"
    ffn: str = "gelu"
    positions: str = "learned"
    causal: bool = True
    tied: bool = True
    bias: bool = True
    learning_rate: float = 6e-4

    def __post_init__(self) -> None:
        if self.ffn_width == 0:
            object.__setattr__(self, "ffn_width", 4 * self.width)

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding and of the head."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one training step predicts."""
        return self.batch * self.sequence

    def parameters(self, padded: bool = True) -> int:
        """All trained parameters; ``padded=False`` counts the vocabulary as published."""
        vocabulary = self.padded_vocabulary if padded else self.vocabulary
        d, f = self.width, self.ffn_width
        norm = 2 * d if self.norm == "layer_norm" else d
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
        d, matrices = self.width, 3 if self.ffn == "swiglu" else 2
        block = 4 * d * d + matrices * d * self.ffn_width
        return self.layers * block + self.padded_vocabulary * d

    @property
    def flops_per_token(self) -> int:
        """FLOPs of forward and backward a token: 6·N_matmul + attention.

        QKᵀ and AV take 2·2·d·T in the forward and twice that in the backward: 12·L·d·T, of which a
        causal mask needs half, 6·L·d·T. Recompute never counts.
        """
        attention = (6 if self.causal else 12) * self.layers * self.width * self.sequence
        return 6 * self.matmul_parameters + attention

    @property
    def flops_per_token_palm(self) -> int:
        """The count most papers publish: 6·N_matmul + 12·L·d·T, masked or not.

        Chowdhery et al., PaLM, arXiv:2204.02311, appendix B.
        """
        return 6 * self.matmul_parameters + 12 * self.layers * self.width * self.sequence


def _gpt(name: str, layers: int, width: int, heads: int, **other: Any) -> ModelConfig:
    return ModelConfig(name, layers, width, heads, **({"vocabulary": 50257} | other))


def _ladder(name: str, layers: int, width: int, heads: int, learning_rate: float) -> ModelConfig:
    return _gpt(
        f"ladder-{name}",
        layers,
        width,
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
            width=256,
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
        _gpt("gpt2-124M", 12, 768, 12, sequence=1024, batch=16),
        _gpt("gpt2-350M", 24, 1024, 16, sequence=1024, batch=16, learning_rate=3e-4),
        ModelConfig(
            "llama-1B",
            layers=18,
            width=2048,
            heads=16,
            vocabulary=32000,
            sequence=2048,
            batch=4,
            ffn_width=5632,
            norm="rms_norm",
            ffn="swiglu",
            positions="rope",
            tied=False,
            bias=False,
            learning_rate=3e-4,
        ),
        _gpt("gpt-1.3B", 24, 2048, 16, sequence=2048, batch=4, learning_rate=2e-4),
        _ladder("5M", 4, 256, 4, 1e-3),
        _ladder("14M", 6, 384, 6, 1e-3),
        _ladder("30M", 8, 512, 8, 1e-3),
        _ladder("92M", 12, 768, 12, 6e-4),
        _ladder("310M", 24, 1024, 16, 3e-4),
        _ladder("690M", 24, 1536, 24, 2.5e-4),
        _ladder("1.3B", 26, 2048, 16, 2e-4),
    )
}
LADDER = tuple(name for name in PRESETS if name.startswith("ladder-"))

CHOICES = {
    "norm": ("layer_norm", "rms_norm"),
    "ffn": ("gelu", "swiglu"),
    "positions": ("learned", "rope", "none"),
}
_REQUIRED = ("layers", "width", "heads", "vocabulary", "sequence", "batch")


def nearest(word: object, names: list[str]) -> str:
    """What to write instead of ``word``: the nearest of ``names``, or all of them."""
    close = difflib.get_close_matches(str(word), names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(names)}."


def model_config(model: str | Mapping[str, Any], key: str = "model") -> ModelConfig:
    """A preset by name, or a mapping of :class:`ModelConfig`'s fields.

    A mapping may start from a preset: ``{preset: gpt-1.3B, batch: 8}``; its ``name`` defaults to
    the sizes it sets. Raises UserError, naming ``key`` and the remedy.
    """
    if isinstance(model, str):
        if model not in PRESETS:
            raise UserError(f"{key}: no model is named '{model}'; {nearest(model, list(PRESETS))}")
        return PRESETS[model]
    if not isinstance(model, Mapping):
        raise UserError(f"{key} is {model!r} but must be a model's name or a mapping of its sizes.")
    values = dict(model)
    names = [entry.name for entry in dataclasses.fields(ModelConfig)]
    for name in values:
        if name not in (*names, "preset"):
            raise UserError(f"{key}.{name} is not known; {nearest(name, [*names, 'preset'])}")
    preset = values.pop("preset", None)
    start = {} if preset is None else dataclasses.asdict(model_config(preset, f"{key}.preset"))
    if "width" in values:
        start.pop("ffn_width", None)
    values.setdefault("name", _own_name(preset, values))
    merged = start | values
    for name in _REQUIRED:
        if name not in merged:
            raise UserError(f"{key}.{name} is missing: give it, or start from a preset.")
    _check(merged, key)
    return ModelConfig(**merged)


def _own_name(preset: str | None, values: Mapping[str, Any]) -> str:
    sizes = "-".join(f"{name}{values[name]}" for name in sorted(values))
    return "-".join(part for part in (preset or "own", sizes) if part)


def _check(values: Mapping[str, Any], key: str) -> None:
    for name in (*_REQUIRED, "ffn_width"):
        value = values.get(name, 0)
        lowest = 0 if name == "ffn_width" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
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
    if not isinstance(values["name"], str) or not values["name"]:
        raise UserError(f"{key}.name is {values['name']!r} but must be a word.")
    if values["vocabulary"] < 2:
        raise UserError(f"{key}.vocabulary is {values['vocabulary']} but must be at least 2.")
    if values["width"] % values["heads"]:
        raise UserError(
            f"{key}.heads is {values['heads']}, which does not divide the width {values['width']}."
        )
    if values.get("positions") == "rope" and values["width"] // values["heads"] % 2:
        raise UserError(f"{key}.heads leaves heads of odd width, which rope cannot rotate.")
