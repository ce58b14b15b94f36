"""What a component's work is held against: the last-level cache, and when a share means anything."""

from __future__ import annotations

import functools
from pathlib import Path

from apexbench.records import Work

CPU_CACHE_DEFAULT = 32 << 20
RESIDENT_MULTIPLE = 4

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def cache_bytes(device: str) -> int:
    """The L2 of a GPU, or the largest cache of CPU 0 as Linux states it (32 MiB if it does not)."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) * _UNITS.get(text[-1], 1))
    return max(sizes, default=CPU_CACHE_DEFAULT)


def memory_bound(moved: int, formula: str, device: str) -> Work:
    """Work bounded by the copy ceiling; no share where ``moved`` bytes fit 4 × the cache."""
    resident = moved < RESIDENT_MULTIPLE * cache_bytes(device)
    reason = None
    if resident:
        reason = f"{'L2' if device == 'cuda' else 'cache'}-resident"
    return Work(bytes=moved, flops=None, formula=formula, ceiling="copy", reason=reason)
