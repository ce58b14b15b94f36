"""Parameter shapes of models whose optimizer step is measured, by closed formulas; no weights."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

from apexbench.errors import UserError

Shape = tuple[int, ...]


def linears(count: int, width: int) -> list[Shape]:
    """``count`` × Linear(width, width): weights (width, width) and biases (width,)."""
    return [(width, width), (width,)] * count


def gpt2(layers: int, width: int, vocabulary: int = 50257, context: int = 1024) -> list[Shape]:
    """GPT-2 with a tied head: 12·layers + 4 tensors (Radford et al. 2019; Hugging Face's layout).

    Elements: (vocabulary + context)·d + layers·(12·d² + 13·d) + 2·d.
    """
    d = width
    norm: list[Shape] = [(d,), (d,)]
    attention: list[Shape] = [(d, 3 * d), (3 * d,), (d, d), (d,)]
    mlp: list[Shape] = [(d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(vocabulary, d), (context, d), *(norm + attention + norm + mlp) * layers, *norm]


def llama(
    layers: int, width: int, key_value_width: int, hidden: int, vocabulary: int
) -> list[Shape]:
    """Llama with grouped-query attention and a tied head (Llama 3.2): 9·layers + 2 tensors."""
    d, k, h = width, key_value_width, hidden
    block: list[Shape] = [(d, d), (k, d), (k, d), (d, d), (h, d), (h, d), (d, h), (d,), (d,)]
    return [(vocabulary, d), *block * layers, (d,)]


MODELS: dict[str, Callable[[], list[Shape]]] = {
    "tiny": lambda: gpt2(2, 64, vocabulary=512, context=64),
    "linear60x512": lambda: linears(60, 512),
    "gpt2-124M": lambda: gpt2(12, 768),
    "gpt2-350M": lambda: gpt2(24, 1024),
    "gpt2-1.5B": lambda: gpt2(48, 1600),
    "llama-1B": lambda: llama(16, 2048, 512, 8192, 128256),
    # The same 2^26 elements, so that only the number of tensors differs.
    "many-small": lambda: [(16384,)] * 4096,
    "few-huge": lambda: [(4096, 4096)] * 4,
}
"""Models by name; ``linear60x512`` is the tutorial's stack, ``llama-1B`` is Llama 3.2 1B."""


def parameter_shapes(model: str) -> list[Shape]:
    """The shapes of a model's parameters, in the model's order; UserError for an unknown name."""
    if model not in MODELS:
        near = difflib.get_close_matches(model, MODELS, 1, 0.0)[0]
        raise UserError(
            f"optimizer case has model '{model}', which is unknown: did you mean '{near}'? "
            f"Known are {', '.join(MODELS)}."
        )
    return MODELS[model]()


def elements(shapes: list[Shape]) -> int:
    """How many parameters the tensors of these shapes hold."""
    return sum(math.prod(shape) for shape in shapes)
