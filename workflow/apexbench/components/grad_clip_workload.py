"""What the arms of a clipping case share, and the gate they must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.components.models import elements, parameter_shapes
from apexbench.measuring import parity
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Check, Parity, Work

FORMULA = (
    "norm: relative error <= 8 sqrt(n) eps(float32) + 2 eps(dtype), n the longest gradient; "
    "gradients: max |g - ref| / (|ref| + rms(ref)) <= the same + 2 eps(dtype)"
)


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``gpt2-124M float32 active``."""
    return f"{case['model']} {case['dtype']} {'active' if case['clipping'] else 'inactive'}"


def work(case: Case) -> Work:
    """Least bytes of one call, bounded by the copy ceiling."""
    size = getattr(torch, case["dtype"]).itemsize
    values = 3 if case["clipping"] else 1
    what = "read g for the norm" + ("; read and write g" if case["clipping"] else "")
    moved = elements(parameter_shapes(case["model"])) * values * size
    return Work(moved, None, f"{values * size} B × parameters: {what}, {size} B each", "copy")


class CapturedClip:
    """A clipping function as a CUDA graph of one set of parameters and one limit."""

    def __init__(self, clip: Callable[..., torch.Tensor]):
        self.clip = clip
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: torch.Tensor | None = None
        self.key: tuple[Any, ...] = ()

    def __call__(self, params: list[torch.nn.Parameter], limit: float) -> torch.Tensor:
        key = (id(params), limit)
        if self.graph is None or key != self.key:
            kept = [p.grad.clone() for p in params if p.grad is not None]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.clip(params, limit)
            torch.cuda.current_stream().wait_stream(side)
            self.graph, self.key = torch.cuda.CUDAGraph(), key
            with torch.cuda.graph(self.graph):
                self.result = self.clip(params, limit)
            with torch.no_grad():
                torch._foreach_copy_([p.grad for p in params if p.grad is not None], kept)
        self.graph.replay()
        assert self.result is not None
        return self.result


class ClipArm(Arm):
    """One clipping function over the shared gradients."""

    def __init__(self, clip: Callable[..., torch.Tensor], workload: ClipWorkload):
        self.clip, self.workload = clip, workload
        # Clipped gradients have the limit as their norm: the next call would have nothing to do.
        self.max_calls = 1 if workload.case["clipping"] else None
        self.norm: torch.Tensor | None = None

    def prepare(self, calls: int) -> None:
        self.workload.restore()

    def call(self, index: int) -> None:
        self.norm = self.clip(self.workload.params, self.workload.limit)

    def close(self) -> None:
        self.norm = None
        del self.clip  # and with it a graph's memory


class ClipWorkload(Workload):
    """Gradients of one model, N(0, 1)-like; parameters are there to hold them."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time", "device_time")

    def __init__(self, case: Case, device: str, seed: int):
        self.case, self.device = case, device
        self.dtype = getattr(torch, case["dtype"])
        self.work = work(case)
        generator = torch.Generator(device).manual_seed(seed)
        self.params: list[torch.nn.Parameter] = []
        self.shared: list[torch.Tensor] = []
        for shape in parameter_shapes(case["model"]):
            p = torch.nn.Parameter(torch.empty(shape, device=device, dtype=self.dtype))
            p.grad = torch.randn(shape, device=device, dtype=self.dtype, generator=generator)
            self.params.append(p)
            self.shared.append(p.grad)
        self.pristine = [g.clone() for g in self.shared] if case["clipping"] else []
        self.norm = float(torch.stack([g.double().norm() for g in self.shared]).norm())
        self.limit = self.norm * (0.5 if case["clipping"] else 2.0)

    def restore(self) -> None:
        """Undo what a call did to the shared gradients."""
        if self.pristine:
            with torch.no_grad():
                torch._foreach_copy_(self.shared, self.pristine)

    def arm(self, implementation: Implementation) -> Arm:
        return ClipArm(implementation.build(self.case), self)

    def check(self, arm: Arm) -> Parity:
        """The norm and every gradient after one call against float64."""
        assert isinstance(arm, ClipArm)
        arm.prepare(1)
        before = [g.clone() for g in self.shared]
        arm.call(0)
        assert arm.norm is not None
        norm = float(arm.norm)
        factor = min(1.0, self.limit / (self.norm + 1e-6))
        longest = max(g.numel() for g in before)
        allowed = parity.tolerance(self.dtype, longest)
        off = abs(norm - self.norm) / self.norm
        worst: float | None = 0.0
        for result, g in zip(self.shared, before, strict=True):
            error = parity.error(result, g.double() * factor)
            worst = None if error is None or worst is None else max(worst, error)
        self.restore()
        more = allowed + 2 * torch.finfo(self.dtype).eps
        checks = [
            Check("norm", off if off == off else None, allowed),
            Check("gradients", worst, more),
        ]
        return Parity(all(entry.passed for entry in checks), FORMULA, checks)

    def details(self, arm: Arm) -> dict[str, Any]:
        """Sizes of the model, and the norm beside its limit."""
        return {
            "tensors": len(self.params),
            "parameters": elements(parameter_shapes(self.case["model"])),
            "norm": self.norm,
            "limit": self.limit,
            "clipping": bool(self.case["clipping"]),
        }

    def close(self) -> None:
        for p in self.params:
            p.grad = None
        self.params, self.shared, self.pristine = [], [], []
