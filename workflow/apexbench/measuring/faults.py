"""What an exception of an implementation means: a status, a sentence, a remedy."""

from __future__ import annotations

import re

from apexbench.measuring.arms import Diverged, Unsupported

CUDA_FAULT = re.compile(
    r"CUDA error|CUDNN_STATUS_EXECUTION_FAILED|device-side assert"
    # A capture that broke leaves the generator of random numbers in it, and all captures after it.
    r"|graph capture|INTERNAL ASSERT FAILED",
    re.IGNORECASE,
)

HOST_MEMORY = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")


class DeviceLost(Exception):
    """The device context is gone (a sticky CUDA error): the process must end; names the arm."""

    def __init__(self, implementation: str, reason: str):
        super().__init__(f"{implementation}: {reason}")
        self.implementation = implementation
        self.reason = reason


def _sentence(error: BaseException, limit: int = 300) -> str:
    text = str(error).strip() or type(error).__name__
    line = next((line for line in text.splitlines() if line.strip()), text)
    return " ".join(line.split())[:limit]


def explain(error: BaseException) -> tuple[str, str, str | None]:
    """(status, reason, remedy) of an implementation that raised ``error``."""
    if isinstance(error, Unsupported):
        return "unsupported", error.reason, error.remedy
    if isinstance(error, Diverged):
        return "diverged", _sentence(error), None
    if type(error).__name__ == "OutOfMemoryError":
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        size = f" when {asked.group(1)} was asked for" if asked else ""
        return (
            "out_of_memory",
            ", ".join([f"the device's memory ended{size}", *getattr(error, "__notes__", ())]),
            "use a smaller case or a larger device",
        )
    if asked := HOST_MEMORY.search(str(error)):
        return (
            "out_of_memory",
            f"the host's memory ended when {int(asked.group(1)) / 2**30:.2f} GiB was asked for",
            "use a smaller case",
        )
    if isinstance(error, MemoryError):
        return "out_of_memory", "the host's memory ended", "use a smaller case"
    return "failed", f"{type(error).__name__}: {_sentence(error)}", "see the log of this component"


def device_is_lost(device: str, error: BaseException) -> bool:
    """Whether the CUDA context no longer works after ``error``."""
    if device != "cuda" or explain(error)[0] != "failed":
        return False
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:  # any answer but success means that the context is gone
        return True
    return bool(CUDA_FAULT.search(str(error))) and "out of memory" not in str(error)
