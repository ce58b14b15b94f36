"""Cross entropy of logits (rows, vocabulary) and labels (rows), the mean over rows.

Case: ``rows`` (tokens), ``vocabulary`` V, ``dtype`` of the logits, ``smoothing`` ε, ``direction``.
With q = softmax(logits): the loss of a row with label k is -(1 - ε) log q_k - (ε / V) Σ_j log q_j,
and dlogits = (q - (1 - ε) [j = k] - ε / V) · dloss / rows. dloss is 1 as in training, and 2^15 for
float16 as under a GradScaler, without which such gradients vanish in that dtype.

Bytes that must move, N = rows × V values of s bytes: forward reads the logits, s N; backward reads
them and writes their gradient, 2 s N; both together also 2 s N, since a row's gradient can be
written while the row is at hand (Liger does so: its forward overwrites the logits with it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.components.operations import (
    BYTES,
    Function,
    Inputs,
    OperationWorkload,
    Overwriting,
    allowed,
)
from apexbench.measuring.arms import Unsupported
from apexbench.records import Work

FLOAT16_SCALE = 2.0**15
"""A power of two that float16 can hold."""

PARITY_ELEMENTS = 2**25
IGNORE = -100
NEEDS = (requirements.apex("xentropy_cuda"),)
KERNEL = "SoftMaxXEntropy"


def label(case: Case) -> str:
    """Unique name of a case, e.g. ``8192×50257 bfloat16 smoothing 0.1 forward+backward``."""
    smooth = f" smoothing {case['smoothing']:g}" if case["smoothing"] else ""
    direction = case["direction"].replace("_", "+")
    return f"{case['rows']}×{case['vocabulary']} {case['dtype']}{smooth} {direction}"


class CrossEntropyWorkload(OperationWorkload):
    """Logits N(0, 1) and labels of equal chance."""

    # Liger waits for the device, so that it has a step_time only.
    quantities: ClassVar[tuple[str, ...]] = ("device_time", "step_time")
    summed: ClassVar[tuple[str, ...]] = ("y",)

    def __init__(self, case: Case, device: str, seed: int):
        super().__init__(case, device, seed)
        self.chunk = max(1, PARITY_ELEMENTS // case["vocabulary"])

    @staticmethod
    def least(case: Case) -> Work:
        values = 1 if case["direction"] == "forward" else 2
        moved = values * BYTES[case["dtype"]]
        what = f"{moved} B × rows × vocabulary"
        return Work(case["rows"] * case["vocabulary"] * moved, None, what, "copy")

    def make(self) -> Inputs:
        rows, vocabulary = self.case["rows"], self.case["vocabulary"]
        labels = torch.randint(vocabulary, (rows,), device=self.device, generator=self.generator)
        scale = FLOAT16_SCALE if self.dtype == torch.float16 else 1.0
        tensors = {"logits": self.normal(rows, vocabulary), "labels": labels}
        return Inputs(tensors, torch.tensor(scale, device=self.device))

    def reference(self, **tensors: torch.Tensor) -> torch.Tensor:
        logits, labels, smoothing = tensors["logits"], tensors["labels"], self.case["smoothing"]
        log_q = logits - logits.exp().sum(-1, keepdim=True).log()
        kept = log_q.gather(1, labels[:, None])[:, 0]
        losses = -(1 - smoothing) * kept - smoothing * log_q.mean(-1)
        return losses.sum() / self.case["rows"]

    def limits(self) -> Mapping[str, float]:
        limit = allowed(self.dtype, 2, self.case["vocabulary"])
        return {"y": limit, "dlogits": limit}


component = Component("cross_entropy", CrossEntropyWorkload, label)


@component.implementation(role="default")
def torch_eager(case: Case) -> Function:
    """torch.nn.functional.cross_entropy on the logits as they are, eager."""
    return lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=case["smoothing"])


@component.implementation(role="eager")
def torch_upcast(case: Case) -> Function:
    """torch.nn.functional.cross_entropy on float32 logits, as under autocast, eager."""
    return lambda logits, labels: F.cross_entropy(
        logits.float(), labels, label_smoothing=case["smoothing"]
    )


@component.implementation(role="compiled", requires=(requirements.compiler,))
def torch_compiled(case: Case) -> Function:
    """torch.compile of torch.nn.functional.cross_entropy on float32 logits, static shapes."""
    return torch.compile(torch_upcast(case), dynamic=False)


@component.implementation(package="apex", requires=NEEDS, kernel=KERNEL)
def apex(case: Case) -> Function:
    """apex.contrib.xentropy.SoftmaxCrossEntropyLoss on the logits as they are, then the mean."""
    function = _apex(case, half_to_float=case["dtype"] == "float16")
    if case["dtype"] == "bfloat16":
        _refuses(function, torch.bfloat16)
    return function


@component.implementation(
    package="apex", requires=NEEDS, kernel=KERNEL, only={"dtype": ("bfloat16", "float16")}
)
def apex_upcast(case: Case) -> Function:
    """apex.contrib.xentropy.SoftmaxCrossEntropyLoss on float32 logits, then the mean."""
    function = _apex(case, half_to_float=False)
    return lambda logits, labels: function(logits.float(), labels)


@component.implementation(
    package="liger-kernel",
    requires=(requirements.cuda, requirements.package("liger_kernel", "liger-kernel")),
)
def liger(case: Case) -> Function:
    """liger_kernel.ops.LigerCrossEntropyFunction: forward overwrites the logits by the gradient."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # (logits, labels, class weights, ignore_index, z loss, label smoothing, reduction)
        result = LigerCrossEntropyFunction.apply(
            logits, labels, None, IGNORE, 0.0, case["smoothing"], "mean"
        )
        return result[0] if isinstance(result, tuple) else result

    return Overwriting(loss)


def _apex(case: Case, half_to_float: bool) -> Function:
    from apex.contrib.xentropy import SoftmaxCrossEntropyLoss

    # Its padding index is 0 unless told, which would ignore every label 0.
    return lambda logits, labels: SoftmaxCrossEntropyLoss.apply(
        logits, labels, case["smoothing"], IGNORE, half_to_float
    ).mean()


def _refuses(function: Function, dtype: torch.dtype) -> None:
    """Raise Unsupported where backward does not take a dtype that forward takes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.ones(2, 64, device=device, dtype=dtype, requires_grad=True)
    try:
        loss = function(logits, torch.zeros(2, device=device, dtype=torch.int64))
        torch.autograd.grad(loss, logits)
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        raise Unsupported(f"backward refuses {dtype} logits: {line}", "see apex_upcast") from error
