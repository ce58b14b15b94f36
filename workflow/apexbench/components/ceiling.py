"""What this machine can do at most: bytes a second of a copy, FLOP a second of matrix products.

One case, ``sustained``. Every implementation is loaded alone, first until its clocks have settled,
then sampled; a second sustained run, in which power and SM clock are read, gives the rate over the
whole time. Copy: out = in between two buffers of at least 4 × the last-level cache each, 2 bytes
moved per byte of the buffer. Matrix products C = A B with A (m, k), B (k, n) of N(0, 1) values (the
power they draw, and so the clocks, is not that of zeros): 2 m n k FLOP; the shape with the most
FLOP/s of the listed ones. Nothing is compared: each number is the limit that other components are
held against.
"""

from __future__ import annotations

import torch

from apexbench.components import requirements
from apexbench.components.ceiling_workload import CeilingWorkload, Copy, Load, MatMul
from apexbench.components.component import Case, Component


def label(case: Case) -> str:
    """The case's name: there is one, ``sustained``."""
    return str(case.get("name", "sustained"))


component = Component("ceiling", CeilingWorkload, label)


@component.implementation()
def copy(case: Case, device: str, generator: torch.Generator) -> Load:
    """Copy of a buffer in device memory, reads and writes counted."""
    return Copy(device, generator)


@component.implementation()
def matmul_bfloat16(case: Case, device: str, generator: torch.Generator) -> Load:
    """bfloat16 matrix product, float32 accumulation."""
    return MatMul(torch.bfloat16, device, generator)


@component.implementation()
def matmul_float16(case: Case, device: str, generator: torch.Generator) -> Load:
    """float16 matrix product."""
    return MatMul(torch.float16, device, generator)


@component.implementation(requires=(requirements.cuda,))
def matmul_tf32(case: Case, device: str, generator: torch.Generator) -> Load:
    """float32 matrix product with inputs rounded to TF32."""
    return MatMul(torch.float32, device, generator, tf32=True)


@component.implementation()
def matmul_float32(case: Case, device: str, generator: torch.Generator) -> Load:
    """float32 matrix product, TF32 off."""
    return MatMul(torch.float32, device, generator)
