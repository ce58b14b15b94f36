"""Gradient clipping: right where it clips and where it does not, put back before every window."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from apexbench.components.grad_clip import component
from apexbench.components.grad_clip_workload import ClipArm, label, work

torch.set_num_threads(1)
EAGER = ["torch_default", "torch_forloop", "torch_foreach"]


def workload_of(**changes: object):
    case = {"model": "tiny", "dtype": "float32", "clipping": True, **changes}
    return component.workload(case, "cpu", 0)


@pytest.mark.parametrize("clipping", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", EAGER)
def test_torch_s_ways_pass(name: str, dtype: str, clipping: bool) -> None:
    workload = workload_of(dtype=dtype, clipping=clipping)
    parity = workload.check(workload.arm(component.implementations[name]))
    assert parity.passed, parity.checks


def apex_s(params, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """``apex.contrib.clip_grad.clip_grad_norm_`` as documented."""
    return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite)


def test_apex_is_called_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.SimpleNamespace(clip_grad_norm_=apex_s)
    for name in ("apex", "apex.contrib"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "apex.contrib.clip_grad", fake)
    workload = workload_of()
    assert workload.check(workload.arm(component.implementations["apex"])).passed
    assert component.implementations["apex"].missing("cpu")[0] == "needs an NVIDIA GPU"


def halved(params, limit):
    return apex_s(params, 0.5 * limit)


def one_left_out(params, limit):
    return apex_s(params[:-1], limit)


def half_the_norm(params, limit):
    return apex_s(params, limit) / 2


@pytest.mark.parametrize("wrong", [halved, one_left_out, half_the_norm])
def test_a_wrong_clipping_is_refused(wrong) -> None:
    workload = workload_of()
    assert not workload.check(ClipArm(wrong, workload)).passed


def test_clipped_gradients_are_put_back() -> None:
    workload = workload_of()
    arm = workload.arm(component.implementations["torch_default"])
    assert arm.max_calls == 1
    before = workload.params[0].grad.clone()
    arm.prepare(1)
    arm.call(0)
    torch.testing.assert_close(workload.params[0].grad, before / 2)
    arm.prepare(1)
    assert torch.equal(workload.params[0].grad, before)
    assert (
        workload_of(clipping=False).arm(component.implementations["torch_default"]).max_calls
        is None
    )


@pytest.mark.parametrize(("clipping", "each"), [(True, 12), (False, 4)])
def test_bytes_and_label_say_whether_it_clips(clipping: bool, each: int) -> None:
    case = {"model": "gpt2-124M", "dtype": "float32", "clipping": clipping}
    assert work(case).bytes == each * 124_439_808
    assert label(case).endswith(" active" if clipping else " inactive")
