"""Dense layers, cross entropy, softmax, rotary embedding: torch's ways and Apex's interfaces.

Apex's extensions need a GPU; here they are played by fakes that take what the C++ takes, refuse
what it refuses, and overwrite what it overwrites.
"""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F

from apexbench.components import cross_entropy, dense, rope, softmax
from apexbench.components.operations import OperationArm, Overwriting
from apexbench.measuring.arms import Unsupported

torch.set_num_threads(1)
BOTH = {"dtype": "float32", "direction": "forward_backward"}
DENSE = {"operation": "linear", "rows": 33, "width": 24, **BOTH}
LOSS = {"rows": 17, "vocabulary": 130, "smoothing": 0.0, **BOTH}
SCORES = {"scope": "softmax", "mask": "causal", "batch": 2, "heads": 3, "sequence": 12, **BOTH}
ROPE = {"batch": 2, "heads": 3, "sequence": 12, **BOTH}
CASES = [
    *((dense.component, {**DENSE, "operation": o}) for o in ("linear", "gelu_ffn", "relu_ffn")),
    *((cross_entropy.component, {**LOSS, "smoothing": s}) for s in (0.0, 0.1)),
    *(
        (softmax.component, {**SCORES, "scope": scope, "mask": mask})
        for scope in ("softmax", "attention")
        for mask in ("causal", "padding", "none")
    ),
    (rope.component, ROPE),
]
IDS = [component.label(case) for component, case in CASES]


def checked(component, case, name):
    workload = component.workload(case, "cpu", 0)
    workload.allocate(1)
    return workload.check(workload.arm(component.implementations[name]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("component", "case"), CASES, ids=IDS)
def test_torch_s_eager_ways_match_float64(component, case, dtype) -> None:
    case = {**case, "dtype": dtype}
    names = [
        n for n in component.names(case, None) if n in component.baselines(case)["torch_eager_best"]
    ]
    assert component.baselines(case)["torch_default"] == ["torch_eager"]
    for name in names:
        parity = checked(component, case, name)
        assert parity.passed, (name, parity.checks)
        assert parity.checks[0].tensor == "y"
        assert len(parity.checks) > 1


@pytest.mark.parametrize(("component", "case"), CASES, ids=IDS)
def test_a_wrong_result_or_gradient_is_refused(component, case) -> None:
    right = component.implementations["torch_eager"].build(case)

    class Scaled(torch.autograd.Function):
        """The identity, whose backward is off by a hundredth."""

        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.01

    def check(function):
        workload = component.workload(case, "cpu", 0)
        workload.allocate(1)
        return workload.check(OperationArm(function, workload))

    assert check(right).passed
    backward = check(lambda *tensors: Scaled.apply(right(*tensors)))
    assert backward.checks[0].passed
    assert not any(entry.passed for entry in backward.checks[1:])
    assert not check(lambda *tensors: right(*tensors) * 1.01).checks[0].passed
    assert check(lambda *tensors: right(*tensors) * float("nan")).checks[0].error is None


def test_one_wrong_row_is_seen() -> None:
    """Of all rows the last: what parity looks at in pieces it looks at to the end."""
    for component, case in CASES:
        workload = component.workload(case, "cpu", 0)
        workload.chunk = 5 if component.name != "softmax" else 1
        workload.allocate(1)
        right = component.implementations["torch_eager"].build(case)

        def spoiled(first, *rest, right=right, one=component.name == "cross_entropy"):
            scale = torch.ones(len(first), *[1] * (first.dim() - 1))
            scale[-1] = 1.5
            return right(first * scale, *rest)

        assert not workload.check(OperationArm(spoiled, workload)).passed, workload.case


def refuse(condition: bool, message: str) -> None:
    if condition:
        raise RuntimeError(message)


def triangle(scores, scale):
    """The causal kernel takes (batch · heads, n, n)."""
    refuse(scores.dim() != 3, "expected 3D tensor")
    hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
    return (scores * scale).masked_fill(hidden, float("-inf")).softmax(-1)


def masked(scores, mask, scale):
    refuse(mask.shape[1] != 1 or mask.dtype.itemsize != 1, "expected a mask of one byte")
    return (scores * scale).masked_fill(mask.bool(), -10000.0).softmax(-1)


def softmax_backward(gradient, p, scale):
    """In place, as the kernels do it."""
    inner = (gradient * p).sum(-1, keepdim=True)
    return gradient.sub_(inner).mul_(p).mul_(scale)


class Xentropy:
    """apex.contrib.xentropy.SoftmaxCrossEntropyLoss, which returns a loss a row in float32."""

    @staticmethod
    def apply(logits, labels, smoothing, padding_idx, half_to_float):
        assert padding_idx < 0, "the default would ignore label 0"
        refuse(half_to_float and logits.dtype != torch.float16, "supported for Half type only")

        class Half(torch.autograd.Function):
            @staticmethod
            def forward(ctx, losses):
                return losses.clone()

            @staticmethod
            def backward(ctx, gradient):
                refuse(logits.dtype == torch.bfloat16, "expected input and grad types to match")
                return gradient

        losses = F.cross_entropy(
            logits.float(), labels, reduction="none", label_smoothing=smoothing
        )
        return Half.apply(losses)


class LigerLoss:
    """The documented call: forward leaves the gradient where the logits were."""

    @staticmethod
    def apply(logits, labels, weight, ignore_index, z, smoothing, reduction):
        assert (weight, ignore_index, z, reduction) == (None, -100, 0.0, "mean")

        class Loss(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                with torch.enable_grad():
                    own = x.detach().requires_grad_()
                    loss = F.cross_entropy(own, labels, label_smoothing=smoothing)
                    (gradient,) = torch.autograd.grad(loss, own)
                x.detach().data.copy_(gradient)
                ctx.gradient = x.detach()
                return loss.detach()

            @staticmethod
            def backward(ctx, gradient):
                return ctx.gradient * gradient

        return Loss.apply(logits), None, None, None


def mlp(bias, activation, x, *rest):
    assert (bias, activation, len(rest)) == (1, 1, 4)
    w1, w2, b1, b2 = rest
    return F.relu(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2))


def rotated(x, theta, transposed):
    assert transposed is False
    return x * theta.cos() + rope.rotate(x) * theta.sin()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apex's extensions and Liger by their interfaces."""
    found = {
        "apex.fused_dense.fused_dense": {
            "_fused_dense": F.linear,
            "_fused_dense_gelu_dense": lambda x, w1, b1, w2, b2: F.linear(
                F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2
            ),
        },
        "apex.mlp.mlp": {"mlp_function": mlp},
        "apex.contrib.xentropy": {"SoftmaxCrossEntropyLoss": Xentropy},
        "liger_kernel.ops.cross_entropy": {"LigerCrossEntropyFunction": LigerLoss},
        "scaled_upper_triang_masked_softmax_cuda": {
            "forward": triangle, "backward": softmax_backward
        },
        "scaled_masked_softmax_cuda": {"forward": masked, "backward": softmax_backward},
        "generic_scaled_masked_softmax_cuda": {"forward": masked, "backward": softmax_backward},
        "scaled_softmax_cuda": {
            "forward": lambda scores, scale: (scores * scale).softmax(-1),
            "backward": softmax_backward,
        },
        "fused_rotary_positional_embedding": {
            "forward": rotated,
            "backward": lambda g, theta, flag: rotated(g, -theta, flag),
            "forward_cached": lambda x, c, s, flag: x * c + rope.rotate(x) * s,
            "backward_cached": lambda g, c, s, flag: g * c - rope.rotate(g) * s,
        },
    }  # fmt: skip
    for name, members in found.items():
        parts = name.split(".")
        for stop in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:stop]), types.ModuleType("fake"))
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("component", "case"), CASES, ids=IDS)
def test_the_other_packages_pass_or_say_why_not(component, case, dtype, fakes) -> None:
    case = {**case, "dtype": dtype}
    names = [
        n for n in component.names(case, None) if component.implementations[n].package != "torch"
    ]
    assert names
    refused = {}
    for name in names:
        assert component.implementations[name].missing("cpu")[0] == "needs an NVIDIA GPU"
        try:
            parity = checked(component, case, name)
        except Unsupported as error:
            refused[name] = error.reason
            continue
        assert parity.passed, (name, parity.checks)
    bf16 = dtype == "bfloat16"
    expected = {"cross_entropy": ["apex"], "dense": ["apex_mlp"] if "apex_mlp" in names else []}
    assert list(refused) == (expected.get(component.name, []) if bf16 else [])
    assert all("bfloat16" in reason for reason in refused.values())


def test_softmax_kernels_take_no_float32(fakes) -> None:
    with pytest.raises(Unsupported, match="float32"):
        softmax.component.implementations["apex"].build(SCORES)


@pytest.mark.parametrize("direction", ["forward", "backward", "forward_backward"])
def test_what_one_arm_overwrites_the_others_keep(direction, fakes) -> None:
    for component, case, name in (
        (softmax.component, {**SCORES, "dtype": "bfloat16"}, "apex"),
        (cross_entropy.component, LOSS, "liger"),
    ):
        workload = component.workload({**case, "direction": direction}, "cpu", 0)
        workload.allocate(2)
        before = [inputs.clone() for inputs in workload.buffers]
        arm = workload.arm(component.implementations[name])
        assert isinstance(arm.function, Overwriting)
        for _ in range(2):
            arm.prepare(2)
            for mine, pristine in zip(arm.copies, before, strict=True):
                if direction != "backward":
                    assert all(torch.equal(mine.tensors[n], t) for n, t in pristine.tensors.items())
                assert torch.equal(mine.dy, pristine.dy)
            arm.call(0)
            arm.call(1)
            arm.finish()
        for now, then in zip(workload.buffers, before, strict=True):
            assert all(torch.equal(now.tensors[n], t) for n, t in then.tensors.items())
            assert torch.equal(now.dy, then.dy)


def test_least_work_follows_the_formulas() -> None:
    assert dense.DenseWorkload.least(DENSE).flops == 3 * 2 * 33 * 24 * 96
    ffn = {**DENSE, "operation": "gelu_ffn", "direction": "forward", "dtype": "bfloat16"}
    assert dense.DenseWorkload.least(ffn).flops == 2 * 2 * 33 * 24 * 96
    assert dense.DenseWorkload.least(ffn).ceiling == "matmul_bfloat16"
    assert cross_entropy.CrossEntropyWorkload.least(LOSS).bytes == 17 * 130 * 4 * 2
    assert rope.RopeWorkload.least(ROPE).bytes == 12 * 2 * 3 * 128 * 4 * 4
    total, seen = 2 * 3 * 144, 2 * 3 * 12 * 13 // 2
    assert softmax.SoftmaxWorkload.least(SCORES).bytes == 4 * (3 * seen + 2 * total)
    padded = {**SCORES, "mask": "padding"}
    assert softmax.kept(padded) == 3 * 12 * (12 + 6)
    workload = softmax.component.workload(padded, "cpu", 0)
    assert int((~workload.make().tensors["mask"]).sum()) * 3 == softmax.kept(padded)
    whole = {**SCORES, "scope": "attention", "direction": "forward"}
    assert softmax.SoftmaxWorkload.least(whole).flops == 2 * 2 * 64 * seen


def test_labels_are_unique() -> None:
    for component in (dense, cross_entropy, softmax, rope):
        own = [case for other, case in CASES if other is component.component]
        own += [{**case, "dtype": "bfloat16", "direction": "forward"} for case in own]
        assert len({component.label(case) for case in own}) == len(own)
