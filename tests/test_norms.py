"""LayerNorm and RMSNorm: parity of what runs here, planted faults refused, compiled arms."""

from __future__ import annotations

import itertools
import sys
import types

import pytest
import torch

from apexbench.components import layer_norm, norms, rms_norm
from apexbench.components.component import Component
from apexbench.measuring import evidence
from apexbench.measuring.arms import Unsupported
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


def one_dtype(x, weight):
    """What Apex's affine kernels say when input and weight differ."""
    if weight is not None and x.dtype != weight.dtype:
        raise RuntimeError(f"expected scalar type {x.dtype} but found {weight.dtype}")


def layer(x, weight, bias, shape, eps, memory_efficient=False):
    one_dtype(x, weight)
    return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)


def rms(x, weight, shape, eps, memory_efficient=False):
    one_dtype(x, weight)
    return torch.nn.functional.rms_norm(x, shape, weight, eps)


def mixed(function):
    """Apex's mixed kernels and FastLayerNorm: computed in float32, y in the weight's dtype."""

    def narrowing(x, *vectors):
        if weight_is_wider(x, vectors[0]):
            raise RuntimeError(f"expected scalar type {x.dtype} but found {vectors[0].dtype}")
        wide = (t if t is None else t.float() for t in vectors)
        return function(x.float(), *wide).to(vectors[0].dtype)

    return narrowing


def weight_is_wider(x, weight):
    return torch.finfo(weight.dtype).bits > torch.finfo(x.dtype).bits


def mixed_layer(x, weight, bias, shape, eps, memory_efficient=False):
    return mixed(lambda x, w, b: layer(x, w, b, shape, eps))(x, weight, bias)


def mixed_rms(x, weight, shape, eps, memory_efficient=False):
    return mixed(lambda x, w: rms(x, w, shape, eps))(x, weight)


def fast(x, weight, bias, eps, memory_efficient):
    assert x.shape[-1] == 768, "the process would be gone"
    return mixed_layer(x, weight, bias, (768,), eps)


class LigerLayerNorm:
    """The documented call; a real one is a Triton kernel that takes two dtypes."""

    @staticmethod
    def apply(x, w, b, eps):
        return layer(x.float(), w.float(), b.float(), (x.shape[-1],), eps).to(x.dtype)


class LigerRMSNorm:
    @staticmethod
    def apply(x, w, eps, offset, casting_mode, in_place):
        assert (offset, casting_mode, in_place) == (0.0, "llama", False)
        weight = None if w is None else w.float()
        return rms(x.float(), weight, (x.shape[-1],), eps).to(x.dtype)


class WideLayerNorm(torch.nn.LayerNorm):
    """A module that works in float32, as a GPU's kernels do."""

    def forward(self, x):
        return layer(
            x.float(), self.weight.float(), self.bias.float(), self.normalized_shape, self.eps
        ).to(x.dtype)


class WideRMSNorm(torch.nn.RMSNorm):
    """The same of RMSNorm."""

    def forward(self, x):
        return rms(x.float(), self.weight.float(), self.normalized_shape, self.eps).to(x.dtype)


def modules(functions: dict[str, dict]) -> dict[str, types.ModuleType]:
    """Modules by dotted name, and every package above them."""
    found: dict[str, types.ModuleType] = {}
    for name, members in functions.items():
        for stop in range(1, name.count(".") + 2):
            found.setdefault(".".join(name.split(".")[:stop]), types.ModuleType("fake"))
        vars(found[name]).update(members)
    return found


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apex, Liger and Transformer Engine by their documented interfaces, on the CPU."""
    wide = {
        "mixed_dtype_fused_layer_norm_affine": mixed_layer,
        "mixed_dtype_fused_rms_norm_affine": mixed_rms,
        "fused_layer_norm_affine": layer,
        "fused_rms_norm_affine": rms,
        "fused_layer_norm": lambda x, *rest: layer(x, None, None, *rest),
        "fused_rms_norm": lambda x, *rest: rms(x, None, *rest),
    }
    fakes = modules(
        {
            "apex.normalization.fused_layer_norm": wide,
            "apex.contrib.layer_norm.layer_norm": {"_fast_layer_norm": fast},
            "liger_kernel.ops.layer_norm": {"LigerLayerNormFunction": LigerLayerNorm},
            "liger_kernel.ops.rms_norm": {"LigerRMSNormFunction": LigerRMSNorm},
            "transformer_engine.pytorch": {
                "LayerNorm": WideLayerNorm, "RMSNorm": WideRMSNorm
            },
        }
    )  # fmt: skip
    fakes["transformer_engine"].pytorch = fakes["transformer_engine.pytorch"]
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    "change",
    [{}, {"affine": False}, {"dtype": "bfloat16", "mixed": True}],
    ids=str,
)
def test_every_cell_passes_or_says_why_not(component, change, others) -> None:
    case = {**CASE, "width": 768, **change}
    names = component.names(case, None)
    assert ("apex_mixed" in names) is bool(change.get("mixed"))
    assert ("transformer_engine" in names) is case["affine"]
    unsupported = []
    for name in names:
        if component.implementations[name].role != "compiled":
            try:
                parity = checked(component, name, case)
            except Unsupported as error:
                unsupported.append((name, "input torch.float32" in error.reason, error.remedy))
                continue
            assert parity.passed, (name, parity.checks)
    remedy = "apex_mixed takes a float32 input with a 16-bit weight"
    refused = ["apex", "apex_memory_efficient"]
    assert unsupported == [(name, True, remedy) for name in refused if change.get("mixed")]


def test_a_width_that_fast_layer_norm_was_not_built_for_is_named(others) -> None:
    entry = layer_norm.component.implementations["apex_fast"]
    with pytest.raises(Unsupported, match=r"FastLayerNorm has no kernel for width 1000"):
        entry.build({**CASE, "width": 1000})


def test_mixed_moves_the_bytes_of_its_dtype() -> None:
    mixed = {**CASE, "dtype": "bfloat16", "mixed": True}
    assert norms.work(mixed).bytes == 64 * 96 * (2 * 2 + 3 * 4)
    assert norms.label(mixed).endswith("float32 input")
    workload = rms_norm.component.workload(mixed, "cpu", 0)
    workload.allocate(1)
    arm = workload.arm(rms_norm.component.implementations["torch_eager"])
    assert arm.forward(0).dtype == torch.bfloat16
