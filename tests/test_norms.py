"""LayerNorm and RMSNorm: parity of what runs here, planted faults refused, compiled arms."""

from __future__ import annotations

import itertools

import pytest
import torch

from apexbench.components import layer_norm, norms, rms_norm
from apexbench.components.component import Component
from apexbench.measuring import evidence
from conftest import require_compiled_torch

COMPONENTS = [layer_norm.component, rms_norm.component]
CASE = {
    "rows": 64,
    "width": 96,
    "dtype": "float32",
    "direction": "forward_backward",
    "autocast": False,
    "affine": True,
}
SHAPES = [(1, 769), (7, 1000), (33, 4097), (64, 96)]


def checked(component: Component, name: str, case: dict):
    workload = component.workload(case, "cpu", 0)
    workload.allocate(1)
    return workload.check(workload.arm(component.implementations[name]))


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("shape", "affine"),
    list(itertools.product(SHAPES, (True, False))),
    ids=str,
)
def test_eager_norms_match_float64_forward_and_backward(component, shape, affine):
    case = {**CASE, "rows": shape[0], "width": shape[1], "affine": affine}
    for name, entry in component.implementations.items():
        if entry.role != "compiled" and entry.missing("cpu") is None:
            parity = checked(component, name, case)
            assert parity.passed, (name, parity.checks)
            assert {check.tensor for check in parity.checks} >= {"y", "dx"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rms_norm_matches_in_sixteen_bits_and_under_autocast(dtype):
    for autocast in (False, True):
        case = {**CASE, "dtype": dtype, "autocast": autocast}
        for name in ("torch_eager", "formula"):
            assert checked(rms_norm.component, name, case).passed


def planted(component: Component, function) -> Component:
    """The component with one more implementation, ``planted``."""
    workload = component.workload(CASE, "cpu", 0)
    workload.allocate(1)
    return workload.check(norms.NormArm(function, workload))


def test_a_wrong_forward_or_backward_fails_parity():
    right = layer_norm.torch_eager(CASE)

    class WrongBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight, bias)
            return right(x, weight, bias)

        @staticmethod
        def backward(ctx, gradient):
            x, weight, bias = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                grads = torch.autograd.grad(right(x, weight, bias), (x, weight, bias), gradient)
            return grads[0] * 1.001, grads[1], grads[2]

    assert planted(layer_norm.component, right).passed
    wrong = planted(layer_norm.component, WrongBackward.apply)
    assert [check.tensor for check in wrong.checks if not check.passed] == ["dx"]
    no_eps = planted(layer_norm.component, lambda x, w, b: right(x * 1.0005, w, b) * 1.0005)
    assert not no_eps.passed
    not_finite = planted(layer_norm.component, lambda x, w, b: right(x, w, b) * float("nan"))
    assert not_finite.checks[0].error is None
    assert not not_finite.passed


def test_every_case_of_a_process_is_really_compiled():
    """Past eight shapes of one function dynamo runs it eager, unless a case begins afresh."""
    require_compiled_torch()
    for width in range(8, 8 + 10):
        evidence.forget_compiled()
        function = layer_norm.torch_compiled({**CASE, "width": width})
        before = evidence.graphs_compiled()
        with torch.no_grad():
            function(torch.ones(4, width), torch.ones(width), torch.zeros(width))
        assert evidence.graphs_compiled() > before, width


def test_bytes_follow_the_formula():
    assert norms.work({**CASE, "direction": "forward"}).bytes == 64 * 96 * 8
    assert norms.work({**CASE, "direction": "backward"}).bytes == 64 * 96 * 12
    mixed = {**CASE, "dtype": "bfloat16", "autocast": True}
    assert norms.work(mixed).bytes == 64 * 96 * (2 * 2 + 3 * 4)


def test_labels_are_unique():
    values = itertools.product((8, 9), ("float32", "bfloat16"), ("forward", "backward"))
    cases = [{**CASE, "width": w, "dtype": d, "direction": b} for w, d, b in values]
    cases += [{**CASE, "autocast": True}, {**CASE, "affine": False}]
    assert len({norms.label(case) for case in cases}) == len(cases)
