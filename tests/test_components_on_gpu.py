"""The components on a real GPU: every implementation's parity, and what it claims of itself."""

import pytest
import torch

from apexbench.components import (
    amp,
    ceiling,
    compatibility,
    cross_entropy,
    dense,
    grad_clip,
    layer_norm,
    optimizer,
    rms_norm,
    rope,
    softmax,
    tutorial,
)
from apexbench.components.component import Component
from apexbench.measuring import evidence
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


BOTH = {"direction": "forward_backward"}
NORM = {"rows": 512, "width": 1024, "autocast": False, "affine": True, "mixed": False, **BOTH}
SCORES = {"batch": 4, "heads": 4, "sequence": 256, **BOTH}
OPERATIONS = [
    (component, {**case, "dtype": dtype})
    for dtype in ("bfloat16", "float16", "float32")
    for component, case in (
        (layer_norm.component, NORM),
        (rms_norm.component, NORM),
        (layer_norm.component, {**NORM, "mixed": True}),
        (rms_norm.component, {**NORM, "mixed": True}),
        (dense.component, {"operation": "linear", "rows": 512, "width": 256, **BOTH}),
        (dense.component, {"operation": "gelu_ffn", "rows": 512, "width": 256, **BOTH}),
        (dense.component, {"operation": "relu_ffn", "rows": 512, "width": 256, **BOTH}),
        (cross_entropy.component, {"rows": 256, "vocabulary": 32000, "smoothing": 0.1, **BOTH}),
        (softmax.component, {"scope": "softmax", "mask": "causal", **SCORES}),
        (softmax.component, {"scope": "softmax", "mask": "padding", **SCORES}),
        (softmax.component, {"scope": "attention", "mask": "none", **SCORES}),
        (rope.component, {"batch": 2, "heads": 8, "sequence": 512, **BOTH}),
    )
    if dtype != "float32" or not case.get("mixed")
]
CLIPS = [
    (grad_clip.component, {"model": "tiny", "dtype": dtype, "clipping": clipping})
    for dtype in ("float32", "bfloat16")
    for clipping in (True, False)
]
PARTS = [(tutorial.component, {"part": part}) for part in ("A", "B_layer_norm", "B_rms_norm")]
CELLS = [
    pytest.param(component, case, name, id=f"{component.name} {component.label(case)} {name}")
    for component, case in [*OPERATIONS, *CLIPS, *PARTS]
    for name in component.names(case, None)
]


@pytest.mark.parametrize(("component", "case", "name"), CELLS)
def test_parity_and_own_kernels(component: Component, case: dict, name: str) -> None:
    workload, arm = built(component, case, name)
    parity = workload.check(arm)
    assert parity.passed, parity.checks
    kernels = evidence.kernel_names(arm)
    if (wanted := component.implementations[name].kernel) is not None:
        assert evidence.matches(kernels, wanted), kernels
    workload.details(arm)
    arm.close()
    workload.close()


@pytest.mark.parametrize("name", list(compatibility.component.implementations))
def test_what_else_decides_is_answered(name: str) -> None:
    workload, arm = built(compatibility.component, {}, name)
    arm.call(0)
    answers = workload.details(arm)["probes"]
    assert {entry["answer"] for entry in answers.values()} <= {"yes", "no", "n/a"}
    print(name, answers)
