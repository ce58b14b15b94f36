"""Roughly how long a run takes on a CPU, so that nobody starts `full` there unwarned."""

from __future__ import annotations

from apexbench.config.settings import Config
from apexbench.transformer.models import model_config
from apexbench.transformer.recipe import Recipe, recipes_for

_FLOPS = 1e11
"""Float32 FLOP/s of training on a few cores: an order of magnitude, no measurement."""


FEWEST_STEPS = 30
"""Steps that a recipe is timed for, even past its budget."""


def _runs_here(recipe: Recipe) -> bool:
    """Whether a CPU can train it."""
    on_a_gpu = recipe.cudagraph or recipe.cudnn or recipe.flash or recipe.precision == "tf32"
    return recipe.package == "torch" and not on_a_gpu


def cpu_seconds(config: Config) -> float:
    """Seconds: each case its budget twice (set-up and parity), training by its FLOPs."""
    cases = sum(len(config.cases(name)) for name in config.components)
    total: float = 2 * cases * config.measuring["case_seconds"] * config.measuring["processes"]
    settings = config.transformer
    for case in config.cases("transformer"):
        recipes = sum(_runs_here(recipe) for recipe in recipes_for(case["recipes"]))
        model = model_config(case["model"])
        steps = settings["processes"] * FEWEST_STEPS
        steps += settings["seeds"] * case.get("loss_steps", settings["loss_steps"])
        total += recipes * steps * model.flops_per_token * model.tokens_per_step / _FLOPS
    return total


def in_words(seconds: float) -> str:
    """``about 40 minutes``, ``about 7 hours``, ``about 3 days``."""
    for limit, unit, name in ((5400, 60, "minutes"), (172800, 3600, "hours")):
        if seconds < limit:
            return f"about {max(2, round(seconds / unit))} {name}"
    return f"about {round(seconds / 86400)} days"
