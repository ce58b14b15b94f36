"""The workload that LayerNorm and RMSNorm share: inputs, directions, bytes, parity.

Shapes: x, y and their gradients are (rows, width); weight and bias are (width,). Outside autocast
all tensors have the case's dtype. Under autocast x, weight and bias are float32, as in a
Transformer's residual stream, and the operation includes the cast of y to the case's dtype, which
the next Linear needs: Apex's norms return that dtype themselves, torch's LayerNorm returns float32.

Directions: ``forward`` runs as in training, with what backward needs saved; ``backward`` is
``torch.autograd.grad`` with a dense random gradient on a forward built before the window;
``forward_backward`` is both.

Bytes that must move, with s bytes a value of x and t of y: forward reads x and writes y,
N (s + t); backward reads dy and x and writes dx, N (t + 2 s); both: the sum. The vectors are left
out: they are below a thousandth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.measuring import parity
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Parity, Work

Norm = Callable[[torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"], torch.Tensor]
Reference = Callable[..., dict[str, torch.Tensor]]
EPS = 1e-5
PARITY_CHUNK = 2**25


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``16384×4096 bfloat16 forward``."""
    parts = [f"{case['rows']}×{case['width']}", case["dtype"], case["direction"].replace("_", "+")]
    if case["autocast"]:
        parts.append("autocast")
    if not case["affine"]:
        parts.append("no affine")
    return " ".join(parts)


def work(case: Case) -> Work:
    """Least bytes of one call, bounded by the copy ceiling."""
    size = torch.finfo(getattr(torch, case["dtype"])).bits // 8
    inner = 4 if case["autocast"] else size
    elements = case["rows"] * case["width"]
    passes = {
        "forward": inner + size,
        "backward": size + 2 * inner,
        "forward_backward": 2 * size + 3 * inner,
    }[case["direction"]]
    return Work(elements * passes, None, f"N × {passes} B, N = rows × width", "copy")


class NormArm(Arm):
    """One norm in one direction; buffers belong to the workload."""

    def __init__(self, function: Norm, workload: NormWorkload):
        self.function = function
        self.workload = workload
        self.outputs: list[Any] = []

    def forward(self, index: int) -> torch.Tensor:
        """y of the ``index``-th buffers, in the dtype that the consumer takes."""
        x, weight, bias, _ = self.workload.buffers[index]
        if not self.workload.autocast:
            return self.function(x, weight, bias)
        with torch.autocast(self.workload.device, dtype=self.workload.dtype):
            return self.function(x, weight, bias).to(self.workload.dtype)

    def backward(self, y: torch.Tensor, index: int) -> tuple[torch.Tensor, ...]:
        """Gradients of x, weight and bias."""
        buffers = self.workload.buffers[index]
        leaves = [tensor for tensor in buffers[:3] if tensor is not None]
        return torch.autograd.grad(y, leaves, buffers[3])

    def prepare(self, calls: int) -> None:
        if self.workload.direction == "backward":
            self.outputs = [self.forward(index) for index in range(calls)]

    def call(self, index: int) -> None:
        direction = self.workload.direction
        if direction == "forward":
            self.outputs.append(self.forward(index))
        elif direction == "backward":
            self.outputs[index] = self.backward(self.outputs[index], index)
        else:
            self.outputs.append(self.backward(self.forward(index), index))

    def finish(self) -> None:
        self.outputs = []


class NormWorkload(Workload):
    """One case of a norm; ``reference`` gives y, dx, dweight, dbias in float64, by rows."""

    quantities: ClassVar[tuple[str, ...]] = ("device_time",)

    def __init__(self, case: Case, device: str, seed: int, reference: Reference, bias: bool):
        self.case = case
        self.device = device
        self.dtype = getattr(torch, case["dtype"])
        self.autocast = bool(case["autocast"])
        self.direction = case["direction"]
        self.work = work(case)
        self.reference = reference
        self.has_bias = bias and case["affine"]
        self.generator = torch.Generator(device).manual_seed(seed)
        self.buffers: list[tuple[Any, Any, Any, Any]] = []

    def _tensor(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        inner = torch.float32 if self.autocast else self.dtype
        return torch.randn(
            *shape, device=self.device, dtype=dtype or inner, generator=self.generator
        )

    def _buffers(self, rows: int) -> tuple[Any, Any, Any, Any]:
        width = self.case["width"]
        x = self._tensor(rows, width).requires_grad_()
        weight = bias = None
        if self.case["affine"]:
            weight = self._tensor(width).mul_(0.1).add_(1).requires_grad_()
        if self.has_bias:
            bias = self._tensor(width).mul_(0.1).requires_grad_()
        return x, weight, bias, self._tensor(rows, width, dtype=self.dtype)

    def buffer_bytes(self) -> int:
        inner = 4 if self.autocast else self.dtype.itemsize
        return int(self.case["rows"] * self.case["width"] * (inner + self.dtype.itemsize))

    def allocate(self, calls: int) -> None:
        self.buffers = []
        self.buffers = [self._buffers(self.case["rows"]) for _ in range(calls)]

    def arm(self, implementation: Implementation) -> Arm:
        return NormArm(implementation.build(self.case), self)

    def check(self, arm: Arm) -> Parity:
        """y, dx, dweight, dbias of the full size against the float64 reference, by row chunks."""
        assert isinstance(arm, NormArm)
        kept, self.buffers = self.buffers, [self._buffers(self.case["rows"])]
        try:
            y = arm.forward(0)
            gradients = arm.backward(y, 0)
            return self._compare(y.detach(), gradients)
        finally:
            self.buffers = kept

    def _compare(self, y: torch.Tensor, gradients: tuple[torch.Tensor, ...]) -> Parity:
        x, weight, bias, dy = self.buffers[0]
        rows, width = x.shape
        chunk = max(1, PARITY_CHUNK // width)
        vectors: dict[str, torch.Tensor] = {}
        worst: dict[str, float | None] = {"y": 0.0, "dx": 0.0}
        for begin in range(0, rows, chunk):
            part = slice(begin, begin + chunk)
            expected = self.reference(x[part], weight, bias, dy[part], EPS)
            for name, result in (("y", y), ("dx", gradients[0])):
                value = parity.error(result[part], expected[name])
                before = worst[name]
                worst[name] = None if value is None or before is None else max(before, value)
            for name in ("dweight", "dbias"):
                if name in expected:
                    vectors[name] = vectors.get(name, 0) + expected[name]
        inner = torch.float32 if self.autocast else self.dtype
        checks = [
            parity.Check("y", worst["y"], parity.tolerance(self.dtype, width)),
            parity.Check("dx", worst["dx"], parity.tolerance(self._gradient_dtype(inner), width)),
        ]
        for (name, expected_vector), result in zip(vectors.items(), gradients[1:], strict=True):
            limit = parity.tolerance(self._gradient_dtype(inner), rows)
            checks.append(parity.Check(name, parity.error(result, expected_vector), limit))
        passed = all(entry.passed for entry in checks)
        return Parity(
            passed, parity.FORMULA + ", n = width (y, dx) or rows (dweight, dbias)", checks
        )

    def _gradient_dtype(self, inner: torch.dtype) -> torch.dtype:
        """Under autocast an implementation may work in that dtype and cast gradients back."""
        return self.dtype if self.autocast else inner

    def close(self) -> None:
        self.buffers = []
