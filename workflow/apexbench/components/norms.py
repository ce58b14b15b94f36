"""The workload that LayerNorm and RMSNorm share: inputs, directions, bytes, parity.

Shapes: x, y and their gradients are (rows, width); weight and bias are (width,). Outside autocast
all tensors have the case's dtype. Under autocast x, weight and bias are float32, as in a
Transformer's residual stream, and the operation includes the cast of y to the case's dtype, which
the next Linear needs: Apex's norms return that dtype themselves, torch's LayerNorm returns float32.
Mixed, x is float32 and weight, bias and y have the case's dtype: a 16-bit model whose residual
stream is kept wide. That is what Apex's Mixed norms are for; with a 16-bit x they take no wider
weight.

Directions: ``forward`` runs as in training, with what backward needs saved; ``backward`` is
``torch.autograd.grad`` with a dense random gradient on a forward built before the window;
``forward_backward`` is both.

Bytes that must move, with s bytes a value of x and t of y: forward reads x and writes y,
N (s + t); backward reads dy and x and writes dx, N (t + 2 s); both: the sum. The vectors are left
out: they are below a thousandth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from apexbench.components import requirements
from apexbench.components.component import Case, Implementation
from apexbench.measuring import parity
from apexbench.measuring.arms import Arm, Unsupported, Workload
from apexbench.records import Parity, Work

Norm = Callable[[torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"], torch.Tensor]
Reference = Callable[..., dict[str, torch.Tensor]]
EPS = 1e-5
PARITY_CHUNK = 2**25
MIXED: dict[str, tuple[Any, ...]] = {"mixed": (True,)}
LIGER = (requirements.cuda, requirements.package("liger_kernel", "liger-kernel"))
TRANSFORMER_ENGINE = (
    requirements.cuda,
    requirements.package("transformer_engine", "transformer-engine[pytorch]"),
)


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``16384×4096 bfloat16 forward``."""
    parts = [f"{case['rows']}×{case['width']}", case["dtype"], case["direction"].replace("_", "+")]
    if case["autocast"]:
        parts.append("autocast")
    if case.get("mixed"):
        parts.append("float32 input")
    if not case["affine"]:
        parts.append("no affine")
    return " ".join(parts)


def input_dtype(case: Case) -> torch.dtype:
    """The dtype of x and dx."""
    wide = case["autocast"] or case.get("mixed")
    return torch.float32 if wide else getattr(torch, case["dtype"])


def vector_dtype(case: Case) -> torch.dtype:
    """The dtype of weight and bias."""
    return torch.float32 if case["autocast"] else getattr(torch, case["dtype"])


def widened(vector: torch.Tensor | None) -> torch.Tensor | None:
    """In float32, as torch's norms want the vectors of a float32 x."""
    return None if vector is None else vector.float()


def work(case: Case) -> Work:
    """Least bytes of one call, bounded by the copy ceiling."""
    size = torch.finfo(getattr(torch, case["dtype"])).bits // 8
    inner = input_dtype(case).itemsize
    elements = case["rows"] * case["width"]
    passes = {
        "forward": inner + size,
        "backward": size + 2 * inner,
        "forward_backward": 2 * size + 3 * inner,
    }[case["direction"]]
    return Work(elements * passes, None, f"N × {passes} B, N = rows × width", "copy")


def with_parameters(module: torch.nn.Module, case: Case) -> Norm:
    """A module as a function of the arms' shared weight and bias, in the place of its own."""
    module = module.to(dtype=vector_dtype(case))
    names = [name for name, _ in module.named_parameters()]

    def norm(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        own = {name: bias if "bias" in name else weight for name in names}
        return torch.func.functional_call(module, own, (x,))

    return norm


def tried(function: Norm, case: Case) -> Norm:
    """``function``, after it took two rows of the case forward and backward.

    Kernels are made for lists of widths and dtypes: Unsupported names the case's, with the message.
    """
    dtype = getattr(torch, case["dtype"])
    inner, vectors = input_dtype(case), vector_dtype(case)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.ones(2, case["width"], device=device, dtype=inner, requires_grad=True)
    weight = torch.ones(case["width"], device=device, dtype=vectors, requires_grad=True)
    try:
        with torch.autocast(device, dtype) if case["autocast"] else contextlib.nullcontext():
            y = function(x, weight, torch.zeros_like(weight))
        torch.autograd.grad(y, x, torch.ones_like(y))
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        raise Unsupported(
            f"no kernel for width {case['width']}, input {inner}, weight {vectors}: {line}",
            "apex_mixed takes a float32 input with a 16-bit weight" if case.get("mixed") else None,
        ) from error
    return function


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
            y = self.function(x, weight, bias)
            return y.to(self.workload.dtype) if self.workload.mixed else y
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
        self.autocast, self.mixed = bool(case["autocast"]), bool(case.get("mixed"))
        self.inner, self.vectors = input_dtype(case), vector_dtype(case)
        self.direction = case["direction"]
        self.work = work(case)
        self.reference = reference
        self.has_bias = bias and case["affine"]
        self.generator = torch.Generator(device).manual_seed(seed)
        self.buffers: list[tuple[Any, Any, Any, Any]] = []

    def _tensor(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(
            *shape, device=self.device, dtype=dtype or self.inner, generator=self.generator
        )

    def _buffers(self, rows: int) -> tuple[Any, Any, Any, Any]:
        width = self.case["width"]
        x = self._tensor(rows, width).requires_grad_()
        weight = bias = None
        if self.case["affine"]:
            weight = self._tensor(width, dtype=self.vectors).mul_(0.1).add_(1).requires_grad_()
        if self.has_bias:
            bias = self._tensor(width, dtype=self.vectors).mul_(0.1).requires_grad_()
        return x, weight, bias, self._tensor(rows, width, dtype=self.dtype)

    def buffer_bytes(self) -> int:
        each = self.inner.itemsize + self.dtype.itemsize
        return int(self.case["rows"] * self.case["width"] * each)

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
        inner, vector = map(self._gradient_dtype, (self.inner, self.vectors))
        checks = [
            parity.Check("y", worst["y"], parity.tolerance(self.dtype, width)),
            parity.Check("dx", worst["dx"], parity.tolerance(inner, width)),
        ]
        for (name, expected_vector), result in zip(vectors.items(), gradients[1:], strict=True):
            limit = parity.tolerance(vector, rows)
            checks.append(parity.Check(name, parity.error(result, expected_vector), limit))
        passed = all(entry.passed for entry in checks)
        return Parity(
            passed, parity.FORMULA + ", n = width (y, dx) or rows (dweight, dbias)", checks
        )

    def _gradient_dtype(self, inner: torch.dtype) -> torch.dtype:
        """Under autocast or mixed an implementation may work in the case's dtype and cast back."""
        return self.dtype if self.autocast or self.mixed else inner

    def close(self) -> None:
        self.buffers = []
