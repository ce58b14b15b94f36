"""Our clock beside triton.testing.do_bench, on the same kernels after the same flush.

do_bench flushes the L2 cache by writing zeros to 256 MB. The lines that this leaves dirty are
written back while the kernel runs, inside do_bench's window. apexbench flushes by reading, so that
nothing is owed. Both are timed here: after the written flush the two clocks must agree, and the
difference between the flushes is what do_bench's costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from apexbench.components.component import Case, Implementation
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Parity, Work

FLUSH_BYTES = 256 * 10**6
WARMUP_MS, REPEAT_MS = 25, 150


class Flushed(Arm):
    """The case's kernel, after a flush of its own."""

    def __init__(self, workload: Flushes, writes: bool):
        self.workload, self.writes = workload, writes
        self.output: torch.Tensor | None = None

    def prepare(self, calls: int) -> None:
        if self.writes:
            self.workload.flush.zero_()
        else:
            self.workload.flush.sum()

    def call(self, index: int) -> None:
        self.output = self.workload.kernel()


class Flushes(Workload):
    """One kernel of torch, above 100 µs on every data-centre GPU."""

    quantities: ClassVar[tuple[str, ...]] = ("device_time",)
    cold_cache = False

    def __init__(self, case: Case, device: str, seed: int):
        self.case, self.device = case, device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
        self.kernel = self._kernel(case["kernel"])
        self.work = Work(None, None, "a proof of the clock", None, "a proof of the clock")

    def _kernel(self, name: str) -> Callable[[], torch.Tensor]:
        def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.randn(shape, device=self.device, dtype=dtype, generator=self.generator)

        if name == "matmul":
            left, right = randn(3072, 3072), randn(3072, 3072)
            out = torch.empty_like(left)
            return lambda: torch.mm(left, right, out=out)
        x = randn(16384, 16384, dtype=torch.bfloat16)
        y = torch.empty_like(x)
        kernels: dict[str, Callable[[], torch.Tensor]] = {
            "copy": lambda: y.copy_(x),
            "exp": lambda: torch.exp(x, out=y),
            "softmax": lambda: torch.softmax(x, -1),
            "layer_norm": lambda: F.layer_norm(x, (x.shape[1],)),
        }
        return kernels[name]

    def arm(self, implementation: Implementation) -> Arm:
        arm: Arm = implementation.build(self)
        return arm

    def check(self, arm: Arm) -> Parity:
        """Both arms run the same kernel of torch."""
        return Parity(True, "n/a: both arms run one kernel", [])

    def details(self, arm: Arm) -> dict[str, Any]:
        """do_bench's median of the same kernel, in ns."""
        assert isinstance(arm, Flushed)
        if not arm.writes:
            return {}
        from triton.testing import do_bench

        median = do_bench(self.kernel, warmup=WARMUP_MS, rep=REPEAT_MS, return_mode="median")
        return {"do_bench_ns": round(float(median) * 1e6)}

    def close(self) -> None:
        del self.flush, self.kernel
