"""Roughly how long a run takes on a CPU, so that nobody starts `full` there unwarned."""

from __future__ import annotations

from typing import Any

from apexbench.config.settings import Config

_FLOPS = 1e11
"""Float32 FLOP/s of training on a few cores: an order of magnitude, no measurement."""

_SIZES = {
    "tiny": (1e5, 1e3),
    "article": (4e6, 4096),
    "small": (17e6, 8192),
    "gpt2-124M": (124e6, 16384),
    "gpt2-350M": (355e6, 16384),
    "llama-1B": (1.2e9, 8192),
    "gpt-1.3B": (1.3e9, 8192),
}
"""Parameters and tokens a step, rounded."""

_SET_RECIPES = {"attribution": 6, "best": 1, "tutorial": 1}
"""Recipes of a named set that need no GPU."""


FEWEST_STEPS = 30
"""Steps that a recipe is timed for, even past its budget."""


def _size(model: Any) -> tuple[float, float]:
    if isinstance(model, str):
        return _SIZES[model]
    matrices = 12 * model["layers"] * model["d_model"] ** 2 + model["vocabulary"] * model["d_model"]
    return matrices, model["batch"] * model["sequence"]


def cpu_seconds(config: Config) -> float:
    """Seconds: each case its budget twice (set-up and parity), training by 6 · N FLOPs a token."""
    cases = sum(len(config.cases(name)) for name in config.components)
    total: float = 2 * cases * config.measuring["case_seconds"] * config.measuring["processes"]
    settings = config.transformer
    steps = settings["processes"] * FEWEST_STEPS + settings["seeds"] * settings["loss_steps"]
    for case in config.cases("transformer"):
        recipes = sum(_SET_RECIPES.get(recipe, "apex" not in recipe) for recipe in case["recipes"])
        parameters, tokens = _size(case["model"])
        total += recipes * steps * 6 * parameters * tokens / _FLOPS
    return total


def in_words(seconds: float) -> str:
    """``about 40 minutes``, ``about 7 hours``, ``about 3 days``."""
    for limit, unit, name in ((5400, 60, "minutes"), (172800, 3600, "hours")):
        if seconds < limit:
            return f"about {max(2, round(seconds / unit))} {name}"
    return f"about {round(seconds / 86400)} days"
