"""A recipe: everything about a training step that is not the model. No torch here.

Its label is ``<precision>+<norm>+<optimizer>[+flag]…``, e.g. ``fp16+apex+apex`` or
``bf16+torch+compiled+compile+cudagraph``; ``FLAGS`` are the flags, in the label's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

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
    "autotune": "with max-autotune",
    "cudagraph": "the whole step in one CUDA graph",
    "master": "bfloat16 parameters with float32 master weights instead of autocast",
    "chunked": "head and cross entropy in chunks that keep no logits",
    "cudnn": "attention by cuDNN",
    "flash": "attention by FlashAttention",
    "ddp": "data-parallel over the GPUs of the case",
}
NEEDS: dict[str, tuple[dict[str, tuple[object, ...]], str]] = {
    "autotune": ({"compile": (True,)}, "tunes what '+compile' compiles: add it"),
    "master": ({"precision": ("bf16",)}, "is for bf16, whose gradients need no scaling"),
    "cudnn": ({"precision": ("fp16", "bf16"), "flash": (False,)}, "is for fp16 or bf16, and alone"),
    "flash": ({"precision": ("fp16", "bf16"), "cudnn": (False,)}, "is for fp16 or bf16, and alone"),
    "ddp": ({"cudagraph": (False,)}, "cannot be with '+cudagraph', which captures one GPU's work"),
}
"""What a flag needs of the other fields, and the sentence where they are different."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: each field is one choice, separately attributable."""

    precision: str = "fp32"
    norm: str = "torch"
    optimizer: str = "default"
    compile: bool = False
    autotune: bool = False
    cudagraph: bool = False
    master: bool = False
    chunked: bool = False
    cudnn: bool = False
    flash: bool = False
    ddp: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags that are set, in the label's order."""
        return [flag for flag in FLAGS if getattr(self, flag)]

    @property
    def label(self) -> str:
        """The recipe's name in records, tables and figures."""
        return "+".join([self.precision, self.norm, self.optimizer, *self.flags])

    @property
    def package(self) -> str:
        """``apex`` if any piece is Apex's, else ``torch``."""
        return "apex" if "apex" in (self.norm, self.optimizer) else "torch"

    @property
    def role(self) -> str | None:
        """Which baselines it belongs to, as a component's Implementation says it."""
        if self.ddp:
            return "apart"
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
        text = ", ".join(parts + [FLAGS[flag] for flag in self.flags])
        return text[0].upper() + text[1:] + "."

    def fault(self) -> str | None:
        """Why these choices do not go together, or None."""
        for flag in self.flags:
            needed, sentence = NEEDS.get(flag, ({}, ""))
            if any(getattr(self, field) not in allowed for field, allowed in needed.items()):
                return f"'+{flag}' {sentence}"
        return None


def on_several_gpus(recipe: Recipe) -> list[Recipe]:
    """The recipe on one GPU, and data-parallel on all of them where it has that form."""
    parallel = dataclasses.replace(recipe, ddp=True)
    return [recipe] if parallel.fault() else [recipe, parallel]


def every_recipe() -> list[Recipe]:
    """All recipes that can be written."""
    flags = list(product((False, True), repeat=len(FLAGS)))
    written = (
        Recipe(*pieces, *chosen)
        for pieces, chosen in product(product(PRECISIONS, NORMS, OPTIMIZERS), flags)
    )
    return [entry for entry in written if entry.fault() is None]


def parse(label: str, key: str = "recipes") -> Recipe:
    """The recipe of a label; flags in any order.

    Raises UserError, naming ``key``, the part that is not known and the nearest that is, or the
    flag that does not go with the rest.
    """
    parts = str(label).split("+")
    if len(parts) < 3:
        raise UserError(
            f"{key}: '{label}' is neither <precision>+<norm>+<optimizer>[+compile][+cudagraph]… "
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
    recipe = Recipe(precision, norm, optimizer, *(flag in flags for flag in FLAGS))
    if (fault := recipe.fault()) is not None:
        raise UserError(f"{key}: '{label}' cannot be trained: {fault}.")
    return recipe


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
    # Each adds one thing, so that a reader sees what it brings.
    "best": (
        "bf16+torch+fused",
        "bf16+torch+fused+compile",
        "bf16+torch+fused+compile+cudagraph",
        "bf16+torch+compiled+compile+cudagraph+master",
        "bf16+torch+compiled+compile+cudagraph+master+cudnn",
    ),
    # What else was thought of: the loss in chunks, the other attention, autotuned kernels.
    "best_further": (
        "bf16+torch+compiled+compile+cudagraph+cudnn",
        "bf16+torch+compiled+compile+cudagraph+master+flash",
        "bf16+torch+compiled+compile+cudagraph+master+chunked+cudnn",
        "bf16+torch+compiled+compile+autotune+cudagraph+master+cudnn",
    ),
    # For models of a billion parameters: no graph, whose memory none of them can spare.
    "best_large": (
        "bf16+torch+fused+compile",
        "bf16+torch+compiled+compile+master+cudnn",
        "bf16+torch+compiled+compile+master+chunked+cudnn",
    ),
    "apex_compiled": ("bf16+torch+apex+compile", "bf16+apex+apex+compile"),
    "tutorial": ("fp32+torch+default", "fp16+apex+apex"),
    # One piece of the tutorial's recipe after the other: claim C6 follows each over the sizes. In
    # this order groups of three pair Apex with torch's own, and each optimizer with the other.
    "ladder": (
        "fp32+torch+default",
        "fp16+torch+fused",
        "fp16+apex+apex",
        "fp16+torch+default",
        "fp16+torch+apex",
        "bf16+torch+fused",
        "bf16+torch+fused+compile",
    ),
    "scaling": ("bf16+torch+fused", "bf16+torch+fused+compile", "fp16+apex+apex"),
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


def divided(case: Mapping[str, Any], at_once: int | None) -> list[dict[str, Any]]:
    """The case, or where it has more than ``at_once`` recipes, as many cases as they need.

    Each holds FP32, or else the first recipe, so that every recipe is paired with the baseline.
    """
    labels = [entry.label for entry in recipes_for(case["recipes"])]
    if at_once is None or len(labels) <= at_once:
        return [dict(case)]
    first = Recipe().label if Recipe().label in labels else labels[0]
    others = [label for label in labels if label != first]
    step = at_once - 1
    return [
        {**case, "recipes": [first, *others[begin : begin + step]], "group": begin // step}
        for begin in range(0, len(others), step)
    ]
