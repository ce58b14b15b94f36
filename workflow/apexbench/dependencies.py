"""What of a machine's fingerprint the measurements of each component depend on."""

from __future__ import annotations

SHARED = (
    "python",
    "torch",
    "torch_cuda",
    "torch_git",
    "triton",
    "cxx",
    "driver",
    "gpus",
    "cpu",
    "threads",
)
APEX = ("apex_commit", "apex_files")
OPTIONAL = ("liger_kernel", "transformer_engine")
DEPENDS = {
    "ceiling": SHARED,
    "layer_norm": (*SHARED, *APEX, *OPTIONAL),
    "rms_norm": (*SHARED, *APEX, *OPTIONAL),
    "amp": (*SHARED, *APEX, "legacy_apex"),
    "cross_entropy": (*SHARED, *APEX, "liger_kernel"),
}
"""Fingerprint keys a component's measurements depend on; the others on SHARED and APEX."""
OUTSIDE = ("driver", "gpus", "cpu", "threads")
"""The keys that hold for a container too; what is in it goes by the image's id."""


def of(component: str) -> tuple[str, ...]:
    """The keys of the fingerprint whose change measures ``component`` again."""
    return DEPENDS.get(component, (*SHARED, *APEX))
