"""An operation against itself, and against a little more of itself."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from apexbench.components import layer_norm
from apexbench.components.component import Case, Implementation
from apexbench.components.norms import EPS, NormArm, NormWorkload
from apexbench.measuring import parity
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Check, Parity, Work


def one_thread(device: str) -> None:
    """On the CPU a proof is of the method, not of how a busy machine schedules threads."""
    if device == "cpu":
        torch.set_num_threads(1)


class Pair(NormWorkload):
    """torch's LayerNorm, as often as it is asked for.

    On the CPU the cache stays warm: flushing one of hundreds of megabytes would take longer than
    all windows together.
    """

    examined = False

    def __init__(self, case: Case, device: str, seed: int):
        one_thread(device)
        super().__init__(case, device, seed, layer_norm.reference, bias=True)
        self.cold_cache = device == "cuda"

    def arm(self, implementation: Implementation) -> Arm:
        arm: Arm = implementation.build(self)
        return arm

    def honest(self) -> Arm:
        """torch.nn.functional.layer_norm."""
        return NormArm(layer_norm.torch_eager(self.case), self)


class PiecesArm(Arm):
    """LayerNorm of ``count`` equal pieces, one after the other."""

    def __init__(self, workload: Pieces, count: int):
        self.workload, self.count = workload, count
        self.outputs: list[torch.Tensor] = []

    def call(self, index: int) -> None:
        norm, pieces = self.workload.norm, self.workload.buffers[index]
        with torch.no_grad():
            self.outputs += [norm(x, None, None) for x in pieces[: self.count]]

    def finish(self) -> None:
        self.outputs = []


class Pieces(Workload):
    """``pieces`` equal LayerNorms a call; the planted arm does ``extra`` more on data of its own.

    The planted work is known by count: ``extra / pieces`` of the honest arm's.
    """

    examined = False
    quantities: ClassVar[tuple[str, ...]] = ("device_time",)

    def __init__(self, case: Case, device: str, seed: int):
        one_thread(device)
        self.case, self.device = case, device
        self.dtype = getattr(torch, case["dtype"])
        self.cold_cache = device == "cuda"
        self.generator = torch.Generator(device).manual_seed(seed)
        self.norm = layer_norm.torch_eager(case)
        self.total = case["pieces"] + case["extra"]
        size = case["rows"] * case["width"] * self.dtype.itemsize
        self.work = Work(2 * size * case["pieces"], None, "read x, write y of every piece", "copy")
        self.buffers: list[list[torch.Tensor]] = []

    def _pieces(self) -> list[torch.Tensor]:
        shape = (self.total, self.case["rows"], self.case["width"])
        values = torch.randn(shape, device=self.device, dtype=self.dtype, generator=self.generator)
        return list(values.unbind())

    def buffer_bytes(self) -> int:
        return int(self.total * self.case["rows"] * self.case["width"] * self.dtype.itemsize)

    def allocate(self, calls: int) -> None:
        self.buffers = []
        self.buffers = [self._pieces() for _ in range(calls)]

    def arm(self, implementation: Implementation) -> Arm:
        arm: Arm = implementation.build(self)
        return arm

    def honest(self) -> Arm:
        """The pieces."""
        return PiecesArm(self, self.case["pieces"])

    def planted(self) -> Arm:
        """The pieces and the extra ones."""
        return PiecesArm(self, self.total)

    def check(self, arm: Arm) -> Parity:
        """Every output against float64."""
        assert isinstance(arm, PiecesArm)
        self.allocate(1)
        arm.call(0)
        limit, errors = parity.tolerance(self.dtype, self.case["width"]), []
        for x, y in zip(self.buffers[0], arm.outputs, strict=False):
            expected = layer_norm.reference(x, None, None, torch.zeros_like(x), EPS)["y"]
            errors.append(parity.error(y, expected))
        known = [value for value in errors if value is not None]
        worst = max(known) if len(known) == len(errors) == arm.count else None
        arm.finish()
        check = Check("y", worst, limit)
        return Parity(check.passed, parity.FORMULA, [check])

    def details(self, arm: Arm) -> dict[str, Any]:
        """How many pieces a call works on."""
        assert isinstance(arm, PiecesArm)
        return {"pieces": arm.count}

    def close(self) -> None:
        self.buffers = []
