"""The workload of an operation on tensors: its inputs, its directions, its float64 reference.

Directions are those of the norms: ``forward`` runs as in training, with what backward needs saved;
``backward`` is ``torch.autograd.grad`` on a forward built before the window; ``forward_backward``
is both. A component's subclass gives the inputs, the formula in float64 and the tolerances; the
gradients of the reference are autograd's through that formula.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.measuring import parity
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Parity, Work

Function = Callable[..., torch.Tensor]
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FORMULA = (
    "max |out - ref| / (|ref| + rms(ref)) <= 2 S eps(dtype) + 8 sqrt(n) eps(float32), S results "
    "rounded to the dtype on the way, n terms in the longest sum"
)

Tensors = dict[str, torch.Tensor]


def allowed(dtype: torch.dtype, stages: int, reduction: int) -> float:
    """Largest error accepted after ``stages`` roundings to ``dtype`` and a sum of so many terms."""
    rounding = 2 * torch.finfo(dtype).eps
    return (stages - 1) * rounding + parity.tolerance(dtype, reduction)


@dataclass(frozen=True)
class Overwriting:
    """A function that overwrites its inputs or its gradient: its arm gets copies, made afresh
    outside every window, so that the other arms' stay as they are."""

    function: Function

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


@dataclass
class Inputs:
    """Tensors by name, in the order that functions take them, and the gradient of the result."""

    tensors: dict[str, torch.Tensor]
    dy: torch.Tensor
    _cast: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        """Those whose gradients are wanted."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.requires_grad}

    def gradient(self, dtype: torch.dtype) -> torch.Tensor:
        """The gradient in the dtype of an implementation's result, cast once."""
        if dtype == self.dy.dtype:
            return self.dy
        if dtype not in self._cast:
            self._cast[dtype] = self.dy.to(dtype)
        return self._cast[dtype]

    def clone(self) -> Inputs:
        """Tensors of the same values."""
        tensors = {
            name: tensor.detach().clone().requires_grad_(tensor.requires_grad)
            for name, tensor in self.tensors.items()
        }
        return Inputs(tensors, self.dy.clone())

    def fill(self, other: Inputs) -> None:
        """Take the values of ``other``."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(other.tensors[name])
            self.dy.copy_(other.dy)
        self._cast.clear()


class OperationArm(Arm):
    """One implementation in one direction; its buffers are the workload's, or copies of them."""

    def __init__(self, function: Function, workload: OperationWorkload):
        self.function, self.workload = function, workload
        self.copies: list[Inputs] = []
        self.outputs: list[Any] = []

    def inputs(self, index: int) -> Inputs:
        """The ``index``-th buffers of this arm."""
        return (self.copies or self.workload.buffers)[index]

    def renew(self, calls: int) -> None:
        """Copy the inputs that the function is going to overwrite."""
        if isinstance(self.function, Overwriting):
            self.copies = self.copies[:calls]
            for index, pristine in enumerate(self.workload.buffers[:calls]):
                if index < len(self.copies):
                    self.copies[index].fill(pristine)
                else:
                    self.copies.append(pristine.clone())

    def forward(self, index: int) -> torch.Tensor:
        """The result for the ``index``-th buffers."""
        return self.function(*self.inputs(index).tensors.values())

    def backward(self, y: torch.Tensor, index: int) -> tuple[torch.Tensor, ...]:
        """Gradients of the leaves."""
        inputs = self.inputs(index)
        return torch.autograd.grad(y, list(inputs.leaves.values()), inputs.gradient(y.dtype))

    def prepare(self, calls: int) -> None:
        self.renew(calls)
        if self.workload.direction == "backward":
            self.outputs = [self.forward(index) for index in range(calls)]

    def call(self, index: int) -> None:
        if self.workload.direction == "forward":
            self.outputs.append(self.forward(index))
        elif self.workload.direction == "backward":
            self.outputs[index] = self.backward(self.outputs[index], index)
        else:
            self.outputs.append(self.backward(self.forward(index), index))

    def finish(self) -> None:
        self.outputs = []

    def close(self) -> None:
        self.copies, self.outputs = [], []


class OperationWorkload(Workload):
    """One case of an operation. ``chunk`` entries of the first dimension are checked at a time;
    results named in ``summed`` are sums over it."""

    quantities: ClassVar[tuple[str, ...]] = ("device_time",)
    summed: ClassVar[tuple[str, ...]] = ()
    formula: ClassVar[str] = FORMULA
    chunk: int = 2**31

    def __init__(self, case: Case, device: str, seed: int):
        self.case, self.device = case, device
        self.dtype = getattr(torch, case["dtype"])
        self.direction = case["direction"]
        self.work = self.least(case)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.buffers: list[Inputs] = []

    @staticmethod
    @abstractmethod
    def least(case: Case) -> Work:
        """The least bytes or FLOP of one call."""

    @abstractmethod
    def make(self) -> Inputs:
        """Fresh inputs, N(0, 1)-like."""

    @abstractmethod
    def reference(self, **tensors: torch.Tensor) -> torch.Tensor:
        """The result in float64, of inputs in float64, by formula."""

    @abstractmethod
    def limits(self) -> Mapping[str, float]:
        """The tolerance of ``y`` and of each leaf's gradient, ``d`` before its name."""

    def normal(
        self, *shape: int, scale: float = 1.0, leaf: bool = True, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """scale · N(0, 1)."""
        wanted = dtype or self.dtype
        values = torch.randn(*shape, device=self.device, dtype=wanted, generator=self.generator)
        return values.mul_(scale).requires_grad_(leaf)

    def buffer_bytes(self) -> int:
        inputs = self.buffers[0] if self.buffers else self.make()
        return sum(t.nbytes for t in (*inputs.tensors.values(), inputs.dy))

    def allocate(self, calls: int) -> None:
        self.buffers = []
        self.buffers = [self.make() for _ in range(calls)]

    def arm(self, implementation: Implementation) -> Arm:
        return OperationArm(implementation.build(self.case), self)

    def check(self, arm: Arm) -> Parity:
        """Result and gradients on fresh inputs against float64, the full size."""
        assert isinstance(arm, OperationArm)
        kept, self.buffers = self.buffers, [self.make()]
        try:
            arm.renew(1)
            y = arm.forward(0)
            kept_y = y.detach().clone()
            gradients = arm.backward(y, 0)
            names = [f"d{name}" for name in self.buffers[0].leaves]
            return self._compare(dict(zip(("y", *names), (kept_y, *gradients), strict=True)))
        finally:
            self.buffers = kept
            arm.copies = []

    def _compare(self, results: dict[str, torch.Tensor]) -> Parity:
        inputs = self.buffers[0]
        length = next(iter(inputs.tensors.values())).shape[0]
        worst: dict[str, float | None] = dict.fromkeys(results, 0.0)
        sums: dict[str, torch.Tensor] = {}
        for begin in range(0, length, self.chunk):
            part = slice(begin, min(begin + self.chunk, length))
            expected, sizes = self._expected(inputs, part, length)
            for name, right in expected.items():
                if name in self.summed:
                    sums[name] = sums.get(name, 0) + right
                else:
                    unit = sizes.get(name)
                    error = self.error(results[name][part], right, unit)
                    before = worst[name]
                    worst[name] = None if error is None or before is None else max(before, error)
        for name, right in sums.items():
            worst[name] = self.error(results[name], right)
        limits = self.limits()
        checks = [parity.Check(name, worst[name], limits[name]) for name in results]
        return Parity(all(entry.passed for entry in checks), self.formula, checks)

    def error(
        self, result: torch.Tensor, right: torch.Tensor, sizes: torch.Tensor | None = None
    ) -> float | None:
        """Error of one result; None if it is not finite."""
        return parity.error(result, right, sizes)

    def sizes(self, dy: torch.Tensor, **tensors: torch.Tensor) -> Tensors:
        """Root of the sum of squares of each element's terms, float64, of results whose elements
        differ widely in that; the others are judged by their root mean square."""
        return {}

    def _expected(self, inputs: Inputs, part: slice, length: int) -> tuple[Tensors, Tensors]:
        def piece(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[part] if tensor.dim() and tensor.shape[0] == length else tensor

        wide = {}
        for name, tensor in inputs.tensors.items():
            cut = tensor if name in self.shared else piece(tensor)
            cut = cut.detach().double() if cut.is_floating_point() else cut
            wide[name] = cut.requires_grad_(tensor.requires_grad)
        y = self.reference(**wide)
        leaves = {name: wide[name] for name in inputs.leaves}
        dy = piece(inputs.dy).double()
        gradients = torch.autograd.grad(y, list(leaves.values()), dy)
        expected = {"y": y.detach()} | {
            f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)
        }
        fixed = {name: tensor.detach() for name, tensor in wide.items()}
        return expected, self.sizes(dy, **fixed)

    shared: ClassVar[tuple[str, ...]] = ()
    """Tensors that have no first dimension of their own (weights)."""

    def close(self) -> None:
        self.buffers = []


def root(n: float) -> float:
    """8 sqrt(n) eps(float32): the part of a tolerance that a sum of n terms adds."""
    return 8 * math.sqrt(n) * torch.finfo(torch.float32).eps


def passes(direction: str, forward: int, backward: int) -> int:
    """``forward``, ``backward`` or both, by the direction of a case."""
    return {"forward": forward, "backward": backward}.get(direction, forward + backward)
