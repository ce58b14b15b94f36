"""What a recipe's precision means to PyTorch: TF32 both ways, autocast, GradScaler."""

from __future__ import annotations

import contextlib

import torch

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
MATMUL = {"fp32": torch.float32, "tf32": torch.float32, **AUTOCAST}
CEILING = {
    "fp32": "matmul_float32",
    "tf32": "matmul_tf32",
    "fp16": "matmul_float16",
    "bf16": "matmul_bfloat16",
}
EPSILON = {
    "fp32": torch.finfo(torch.float32).eps,
    "tf32": 2.0**-10,
    "fp16": torch.finfo(torch.float16).eps,
    "bf16": torch.finfo(torch.bfloat16).eps,
}


def set_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 in matmuls and cuDNN: the process's state, so set before every window.

    The setters used are those that keep PyTorch's older and newer names of this state in step.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def autocast(precision: str, device: str) -> contextlib.AbstractContextManager[None]:
    """The autocast of a precision, explicitly off for fp32 and tf32."""
    dtype = AUTOCAST.get(precision)
    return torch.autocast(device, dtype=dtype, enabled=dtype is not None)


def missing(precision: str, device: str) -> tuple[str, str | None] | None:
    """Why this device can't compute in ``precision``, or None."""
    if precision == "tf32":
        if device != "cuda":
            return "TF32 is a format of NVIDIA GPUs", "run on an NVIDIA GPU"
        if torch.cuda.get_device_capability() < (8, 0):
            return "TF32 needs compute capability 8.0 or newer", "use fp16"
    if device == "cpu" and precision in AUTOCAST and not _cpu_autocast(AUTOCAST[precision]):
        return f"this torch has no CPU autocast to {precision}", "use torch 2.6 or newer"
    return None


def _cpu_autocast(dtype: torch.dtype) -> bool:
    """Whether a linear layer runs forward and backward under CPU autocast to ``dtype``."""
    layer, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    try:
        with torch.autocast("cpu", dtype=dtype):
            y = layer(x)
        y.float().sum().backward()
    except RuntimeError:
        return False
    return bool(y.dtype == dtype)
