"""How many compilers run side by side, within the machine's cores and memory.

ninja starts ``MAX_JOBS`` compilers for one extension, Apex's setup.py builds
``APEX_PARALLEL_BUILD`` extensions at once, so their product is what runs in the worst case. Apex's
largest extension has fifteen sources and most have two, so neither alone keeps the cores busy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from apexbench.image.problem import Problem

JOB_BYTES = 2 * 1024**3
"""What one nvcc on a file of Apex takes at its peak."""


def jobs(cores: int, memory_bytes: int | None) -> dict[str, int]:
    """``MAX_JOBS`` and ``APEX_PARALLEL_BUILD`` for a machine of that size.

    ``memory_bytes`` None is unknown and does not limit.
    """
    fit = max(1, memory_bytes // JOB_BYTES) if memory_bytes else cores
    wanted = max(1, min(cores, fit))
    extensions = math.ceil(math.sqrt(wanted))
    each = math.ceil(wanted / extensions)
    if each * extensions > fit:
        each = max(1, fit // extensions)
    return {"MAX_JOBS": each, "APEX_PARALLEL_BUILD": extensions}


def memory_problem(
    memory_bytes: int | None, environment: Mapping[str, str] | None = None
) -> Problem | None:
    """What is wrong when the machine's memory cannot hold the compilers asked for.

    ``environment`` may hold the user's own MAX_JOBS and APEX_PARALLEL_BUILD.
    """
    if memory_bytes is None:
        return None
    has = f"{memory_bytes / 1024**3:.1f} GiB"
    if memory_bytes < JOB_BYTES:
        return Problem(
            f"one nvcc on Apex's sources takes about 2 GiB and this machine allows {has}",
            "build on a machine with more memory, or raise the container's limit",
        )
    asked = [_number((environment or {}).get(key)) for key in ("MAX_JOBS", "APEX_PARALLEL_BUILD")]
    if asked == [None, None]:
        return None
    together = (asked[0] or 1) * (asked[1] or 1)
    if together * JOB_BYTES > memory_bytes:
        return Problem(
            f"MAX_JOBS and APEX_PARALLEL_BUILD ask for {together} compilers at once, about "
            f"{together * JOB_BYTES / 1024**3:.0f} GiB, and this machine allows {has}",
            "unset both, and they are computed from cores and memory",
        )
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None
