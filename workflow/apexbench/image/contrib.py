"""Apex's contrib extensions that a component can use, by the names of config.yaml."""

from __future__ import annotations

from collections.abc import Iterable

CORE = ("APEX_CPP_EXT", "APEX_CUDA_EXT")

CONTRIB = {
    "xentropy": ("APEX_XENTROPY", ("xentropy_cuda",)),
    "fast_layer_norm": ("APEX_FAST_LAYER_NORM", ("fast_layer_norm",)),
    "focal_loss": ("APEX_FOCAL_LOSS", ("focal_loss_cuda",)),
    "group_norm": ("APEX_GROUP_NORM", ("group_norm_cuda",)),
    "index_mul_2d": ("APEX_INDEX_MUL_2D", ("fused_index_mul_2d",)),
    "distributed_adam": ("APEX_DISTRIBUTED_ADAM", ("distributed_adam_cuda",)),
    "distributed_lamb": ("APEX_DISTRIBUTED_LAMB", ("distributed_lamb_cuda",)),
}
"""Name -> (switch of Apex's setup.py, modules it builds). clip_grad is Python over amp_C."""


def switches(names: Iterable[str]) -> dict[str, str]:
    """The environment that makes Apex's setup.py build the core and these extensions."""
    return dict.fromkeys((*CORE, *(CONTRIB[name][0] for name in names)), "1")


def modules(names: Iterable[str]) -> list[str]:
    """The compiled modules that these extensions bring."""
    return [module for name in names for module in CONTRIB[name][1]]
