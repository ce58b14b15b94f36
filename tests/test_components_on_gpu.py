"""The components on a real GPU: every implementation's parity, and what it claims of itself."""

import pytest
import torch

from apexbench.components import amp, ceiling, optimizer
from apexbench.components.component import Component
from apexbench.measuring.arms import Unsupported

pytestmark = [
    pytest.mark.needs_gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def built(component: Component, case: dict, name: str):
    entry = component.implementations[name]
    if (missing := entry.missing("cuda")) is not None:
        pytest.skip(missing[0])
    workload = component.workload(case, "cuda", 1)
    workload.allocate(1)
    try:
        return workload, workload.arm(entry)
    except Unsupported as error:
        pytest.skip(error.reason)


ADAM = [name for name, entry in optimizer.component.implementations.items()
        if entry.suits({"algorithm": "adamw"})]  # fmt: skip
OTHERS = [
    (algorithm, name)
    for algorithm in ("adam", "sgd", "adagrad", "lamb", "novograd")
    for name, entry in optimizer.component.implementations.items()
    if entry.suits({"algorithm": algorithm})
]


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ADAM)
def test_optimizer(name: str, dtype: str, scaler: bool) -> None:
    case = {"model": "tiny", "algorithm": "adamw", "dtype": dtype, "grad_scaler": scaler}
    checked_and_stepped(case, name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("algorithm", "name"), OTHERS)
def test_other_algorithms(algorithm: str, name: str, dtype: str) -> None:
    case = {"model": "tiny", "algorithm": algorithm, "dtype": dtype, "grad_scaler": False}
    checked_and_stepped(case, name)


def checked_and_stepped(case: dict, name: str) -> None:
    workload, arm = built(optimizer.component, case, name)
    parity = workload.check(arm)
    assert parity.passed, parity.checks
    arm.prepare(1)
    arm.call(0)  # compilation and autotuning may synchronise
    arm.finish()
    before = workload.params[0].detach().clone()
    torch.cuda.synchronize()
    arm.prepare(1)
    if not arm.synchronises:
        torch.cuda.set_sync_debug_mode("error")
    try:
        arm.call(0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    arm.finish()
    workload.details(arm)
    if case["dtype"] == "float32":
        assert not torch.equal(before, workload.params[0])
    arm.close()


@pytest.mark.parametrize("case", [("mlp", 128), ("transformer_block", 8)])
@pytest.mark.parametrize("name", list(amp.component.implementations))
def test_amp(name: str, case: tuple[str, int]) -> None:
    workload, arm = built(amp.component, {"model": case[0], "batch": case[1]}, name)
    parity = workload.check(arm)
    assert parity.passed, parity.checks
    details = workload.details(arm)
    assert details["loss"] < details["first_loss"]


@pytest.mark.parametrize("name", list(ceiling.component.implementations))
def test_ceiling(name: str) -> None:
    workload, arm = built(ceiling.component, {"name": "sustained"}, name)
    parity = workload.check(arm)
    assert parity.passed, parity.checks
    details = workload.details(arm)
    assert details["sustained_seconds"] >= 2
    assert details["power_w"] > 0
