"""A recipe: everything about a training step that is not the model. No torch here.

Its label is ``<precision>+<norm>+<optimizer>[+compile][+cudagraph]``, e.g. ``fp16+apex+apex``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from apexbench.errors import UserError
from apexbench.transformer.models import nearest

PRECISIONS = {
    "fp32": "float32, TF32 off",
    "tf32": "float32 with TF32 matmuls",
    "fp16": "autocast to float16 with GradScaler",
    "bf16": "autocast to bfloat16",
}
NORMS = {"torch": "torch's norm", "apex": "Apex's fused norm"}
OPTIMIZERS = {
    "default": "torch's default AdamW (foreach)",
    "forloop": "torch's AdamW, foreach=False",
    "fused": "torch's AdamW, fused=True",
    "compiled": "torch's AdamW step in torch.compile",
    "apex": "Apex's FusedAdam",
}
FLAGS = {
    "compile": "forward, loss and backward in torch.compile",
    "cudagraph": "the whole step in one CUDA graph",
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: each field is one choice, separately attributable."""

    precision: str = "fp32"
    norm: str = "torch"
    optimizer: str = "default"
    compile: bool = False
    cudagraph: bool = False

    @property
    def label(self) -> str:
        """The recipe's name in records, tables and figures."""
        flags = [flag for flag in FLAGS if getattr(self, flag)]
        return "+".join([self.precision, self.norm, self.optimizer, *flags])

    @property
    def package(self) -> str:
        """``apex`` if any piece is Apex's, else ``torch``."""
        return "apex" if "apex" in (self.norm, self.optimizer) else "torch"

    @property
    def role(self) -> str | None:
        """Which baselines it belongs to, as a component's Implementation says it."""
        if self.package == "apex":
            return None
        if self == Recipe():
            return "default"
        compiled = self.compile or self.cudagraph or self.optimizer == "compiled"
        return "compiled" if compiled else "eager"

    @property
    def description(self) -> str:
        """One sentence for the report."""
        parts = [PRECISIONS[self.precision], NORMS[self.norm], OPTIMIZERS[self.optimizer]]
        parts += [text for flag, text in FLAGS.items() if getattr(self, flag)]
        text = ", ".join(parts)
        return text[0].upper() + text[1:] + "."


def every_recipe() -> list[Recipe]:
    """All recipes that can be written."""
    flags = product((False, True), repeat=len(FLAGS))
    return [
        Recipe(*pieces, *chosen)
        for pieces, chosen in product(product(PRECISIONS, NORMS, OPTIMIZERS), flags)
    ]


def parse(label: str, key: str = "recipes") -> Recipe:
    """The recipe of a label; flags in any order.

    Raises UserError, naming ``key``, the part that is not known and the nearest that is.
    """
    parts = str(label).split("+")
    if len(parts) < 3:
        raise UserError(
            f"{key}: '{label}' is neither <precision>+<norm>+<optimizer>[+compile][+cudagraph] "
            f"nor a named set; {nearest(label, list(SETS))}"
        )
    known = (("precision", PRECISIONS), ("norm", NORMS), ("optimizer", OPTIMIZERS))
    for part, (field, names) in zip(parts, known, strict=False):
        if part not in names:
            raise UserError(
                f"{key}: '{label}' has the {field} '{part}'; {nearest(part, list(names))}"
            )
    for position, flag in enumerate(parts[3:], 3):
        if flag not in FLAGS:
            raise UserError(f"{key}: '{label}' has '+{flag}'; {nearest(flag, list(FLAGS))}")
        if flag in parts[3:position]:
            raise UserError(f"{key}: '{label}' says '+{flag}' twice; write it once.")
    precision, norm, optimizer, *flags = parts
    return Recipe(precision, norm, optimizer, "compile" in flags, "cudagraph" in flags)


def factorial(
    precisions: Iterable[str], norms: Iterable[str], optimizers: Iterable[str]
) -> tuple[str, ...]:
    """Labels of every combination."""
    return tuple(Recipe(*pieces).label for pieces in product(precisions, norms, optimizers))


_APEX = ("torch", "apex")
SETS = {
    # Shapley's corners; the same with TF32 as precision baseline; with fused as optimizer baseline.
    "attribution": (
        *factorial(("fp32", "fp16"), _APEX, ("default", "apex")),
        *factorial(("tf32",), _APEX, ("default", "apex")),
        *factorial(("fp32", "fp16"), _APEX, ("fused",)),
    ),
    "factorial": factorial(PRECISIONS, _APEX, ("default", "fused", "apex")),
    "best": ("bf16+torch+fused", "bf16+torch+fused+compile", "bf16+torch+fused+compile+cudagraph"),
    "tutorial": ("fp32+torch+default", "fp16+apex+apex"),
    "cpu": (
        "fp32+torch+default",
        "fp32+torch+forloop",
        "fp32+torch+fused",
        "bf16+torch+fused",
        "bf16+torch+fused+compile",
        "fp16+apex+apex",
    ),
}


def recipes_for(names: Iterable[str], key: str = "recipes") -> list[Recipe]:
    """Recipes of labels and names of ``SETS``, each once, in the order first named."""
    labels: dict[str, Recipe] = {}
    for name in names:
        for label in SETS.get(name, (name,)):
            recipe = parse(label, key)
            labels.setdefault(recipe.label, recipe)
    if not labels:
        raise UserError(f"{key} is empty; {nearest('', list(SETS))}")
    return list(labels.values())
