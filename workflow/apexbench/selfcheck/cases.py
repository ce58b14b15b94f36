"""The cases of the proofs, by device: plain JSON values, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Case = dict[str, Any]

OPTIMIZER_FAULTS = (
    "coupled weight decay",
    "no weight decay",
    "no bias correction",
    "eps inside the square root",
    "dropped gradient",
)
NORM_FAULTS = ("wrong backward",)
WIDTHS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
DTYPES = ("float32", "bfloat16")
LARGEST = 29
"""Exponent of the most elements of an A/A case: 5 ms of a float32 LayerNorm on an H200."""
BYTES_PER_ELEMENT = 64
"""Room an A/A case needs at its peak: inputs, gradients, outputs and the float64 reference."""
KERNELS = ("copy", "exp", "softmax", "layer_norm", "matmul")
SLEEP_CYCLES = (100_000, 1_000_000, 10_000_000)
WAIT_NS = (200_000, 2_000_000)


def label(case: Mapping[str, Any]) -> str:
    """The case's unique name: ``A/A …``, ``planted …`` or ``do_bench …``."""
    kind = case["proof"]
    if kind == "pair":
        direction = case["direction"].replace("_", "+")
        return f"A/A layer_norm {case['rows']}×{case['width']} {case['dtype']} {direction}"
    if kind == "slowdown":
        shape = f"{case['rows']}×{case['width']} {case['dtype']}"
        return f"planted slowdown {case['extra']} in {case['pieces']} layer_norm {shape}"
    if kind == "fault":
        return f"planted fault {case['fault']} {case['dtype']}"
    if kind == "do_bench":
        return f"do_bench {case['kernel']}"
    return f"planted {case['what']}"


def pairs(device: str, memory: int) -> list[Case]:
    """A/A: LayerNorm against itself; 200 cases on a GPU, 40 small ones on the CPU.

    ``memory`` is the device's in bytes; it bounds the largest case.
    """
    if device != "cuda":
        grid = [
            (width, dtype, exponent, "forward" if exponent % 2 else "forward_backward")
            for exponent in (14, 15, 16, 17, 18)
            for width in (256, 512, 1024, 4096)
            for dtype in DTYPES
        ]
    else:
        top = min(LARGEST, (memory // BYTES_PER_ELEMENT).bit_length() - 1)
        exponents = [20 + round(step * (top - 20) / 4) for step in range(5)]
        grid = [
            (width, dtype, exponent, direction)
            for exponent in exponents
            for direction in ("forward", "forward_backward")
            for width in WIDTHS
            for dtype in DTYPES
        ]
    return [
        {
            "proof": "pair",
            "rows": 2**exponent // width,
            "width": width,
            "dtype": dtype,
            "direction": direction,
            "autocast": False,
            # torch's CPU LayerNorm sums dweight and dbias in bfloat16, which parity refuses.
            "affine": device == "cuda" or dtype == "float32",
            "implementations": ["honest", "again"],
        }
        for width, dtype, exponent, direction in grid
    ]


def slowdowns(device: str) -> list[Case]:
    """The same operation with 2m more work: one piece in fifty on a GPU, one in five on the CPU."""
    pieces, widths = (50 if device == "cuda" else 5), (256, 512, 1024, 2048, 4096)
    exponents = range(18, 23) if device == "cuda" else range(13, 15)
    return [
        {
            "proof": "slowdown",
            "rows": 2**exponent // width,
            "width": width,
            "dtype": dtype,
            "pieces": pieces,
            "extra": 1,
            "implementations": ["honest", "planted"],
        }
        for exponent in exponents
        for width in widths
        for dtype in DTYPES
    ]


def faults(device: str) -> list[Case]:
    """Implementations that compute something else; parity must refuse each."""
    gpu = device == "cuda"
    optimizers = (*DTYPES, "float16") if gpu else DTYPES
    norms = optimizers if gpu else ("float32",)  # see pairs
    planted = [(fault, dtype) for fault in OPTIMIZER_FAULTS for dtype in optimizers]
    planted += [(fault, dtype) for fault in NORM_FAULTS for dtype in norms]
    return [
        {
            "proof": "fault",
            "fault": fault,
            "dtype": dtype,
            "implementations": ["honest", "planted"],
        }
        for fault, dtype in planted
    ]


def waits() -> list[Case]:
    """Waits of known length, work that is not waited for, and work on a stream of its own."""
    cases: list[Case] = [
        {"proof": "wait", "what": f"wait of {ns // 1000} µs", "ns": ns, "implementations": ["wait"]}
        for ns in WAIT_NS
    ]
    cases += [
        {
            "proof": "wait",
            "what": f"torch.cuda._sleep({cycles})",
            "cycles": cycles,
            "implementations": ["sleep"],
        }
        for cycles in SLEEP_CYCLES
    ]
    for what, implementation in (
        ("missing synchronize", "unsynchronised"),
        ("unjoined stream", "unjoined"),
    ):
        cases.append(
            {
                "proof": "wait",
                "what": what,
                "cycles": 4_000_000,
                "implementations": [implementation],
            }
        )
    return cases


def do_bench() -> list[Case]:
    """Kernels above 100 µs, timed by triton.testing.do_bench too."""
    return [
        {
            "proof": "do_bench",
            "kernel": kernel,
            "implementations": ["read_flush", "written_flush"],
        }
        for kernel in KERNELS
    ]
