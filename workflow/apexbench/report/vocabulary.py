"""The names a reader knows: components, what Apex calls its part, a case in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from apexbench.report.cases import Case

ORDER = (
    "optimizer",
    "layer_norm",
    "rms_norm",
    "amp",
    "transformer",
    "grad_clip",
    "dense",
    "cross_entropy",
    "softmax",
    "rope",
    "compatibility",
    "tutorial",
    "ceiling",
    "selfcheck",
)
TITLES = {
    "optimizer": "Optimizer step",
    "grad_clip": "Gradient clipping",
    "layer_norm": "LayerNorm",
    "rms_norm": "RMSNorm",
    "dense": "Dense layers",
    "cross_entropy": "Cross entropy",
    "softmax": "Softmax",
    "rope": "Rotary embedding",
    "compatibility": "What else decides",
    "tutorial": "The tutorial's way and ours",
    "amp": "Mixed precision",
    "transformer": "Transformer training",
    "ceiling": "Ceilings of this machine",
    "selfcheck": "Self-check of the measurement",
}
APEX_PART = {
    "optimizer": "FusedAdam",
    "grad_clip": "Apex's clip_grad_norm_",
    "layer_norm": "FusedLayerNorm",
    "rms_norm": "FusedRMSNorm",
    "dense": "FusedDense",
    "cross_entropy": "Apex's xentropy",
    "softmax": "Apex's fused softmax",
    "rope": "Apex's fused RoPE",
    "amp": "apex.amp",
    "transformer": "Apex in training",
}
BUILD_FOR = {"transformer": "training end to end"}
RELATION = {
    "faster": "faster than",
    "slower": "slower than",
    "same": "as fast as",
    "unclear": "unclear against",
}
"""A verdict in a sentence: the implementation is … its rival."""
BASELINE_NAMES = {
    "torch_default": "torch's default",
    "torch_eager_best": "torch's best eager",
    "torch_best": "torch's best (torch.compile included)",
}
BASELINE_COLUMNS = {
    "torch_default": "vs torch default",
    "torch_eager_best": "vs best eager",
    "torch_best": "vs best, compiled too",
}
STATUS_MARKS = {
    "ok": "●",
    "unavailable": "○",
    "unsupported": "⊘",
    "out_of_memory": "▣",
    "parity_failed": "≠",
    "diverged": "↯",
    "failed": "✕",
}
DIRECTIONS = {"forward_backward": "forward + backward"}


UNTIMED = ("compatibility",)
"""Components that record facts and time nothing."""

NO_TILE = (*UNTIMED, "tutorial")
"""Components that answer nothing of their own: others' cases do."""


def order(component: str) -> tuple[int, str]:
    """Sort key of a component: the story's order, then the alphabet."""
    return (ORDER.index(component) if component in ORDER else len(ORDER), component)


def title(component: str) -> str:
    """A component's heading."""
    return TITLES.get(component, component.replace("_", " "))


def status(name: str) -> str:
    """A status in words."""
    return name.replace("_", " ")


def in_words(case: Case, rows: bool = False) -> str:
    """A norm's case as ``bfloat16, width 4096, forward``; any other case by its name.

    ``rows`` names them too, where two cases differ in nothing else.
    """
    config = case.config
    if not {"width", "dtype", "direction"} <= config.keys():
        return case.name
    direction = str(config["direction"])
    dtype = str(config["dtype"]) + (" autocast" if config.get("autocast") else "")
    parts = [dtype, f"width {config['width']}", DIRECTIONS.get(direction, direction)]
    parts += [] if config.get("affine", True) else ["no affine"]
    return ", ".join(parts + ([f"{config['rows']} rows"] if rows and "rows" in config else []))


def distinct(cases: Sequence[Case]) -> dict[str, str]:
    """Every case's name in words, with its rows where other cases would read alike."""
    plain = Counter(in_words(case) for case in cases)
    return {case.name: in_words(case, rows=plain[in_words(case)] > 1) for case in cases}
