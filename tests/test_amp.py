"""The amp component: every precision that runs here is right, fair and honest about its losses."""

import pytest
import torch

from apexbench.components.amp import component
from apexbench.components.amp_workload import Recipe, Training
from apexbench.errors import UserError
from apexbench.measuring.arms import Diverged, Unsupported

torch.set_num_threads(1)
MLP = {"model": "mlp", "batch": 32}
BLOCK = {"model": "transformer_block", "batch": 1}
HERE = ["torch_fp32", "torch_fp16_gradscaler", "torch_bf16"]


def arm_of(case: dict, name: str, seed: int = 0):
    workload = component.workload(case, "cpu", seed)
    workload.allocate(2)
    return workload, workload.arm(component.implementations[name])


@pytest.mark.parametrize("case", [MLP, BLOCK])
@pytest.mark.parametrize("name", HERE)
def test_parity(case: dict, name: str) -> None:
    workload, arm = arm_of(case, name)
    parity = workload.check(arm)
    assert parity.passed, parity.checks
    assert len(parity.checks) == 1 + len(list(workload.module.parameters()))


@pytest.mark.parametrize("name", HERE)
def test_a_gradient_wrong_by_a_factor_fails_parity(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, arm = arm_of(MLP, name)

    def forgotten(self: Training) -> None:
        for p in self.module.parameters():
            p.grad *= 1.5

    monkeypatch.setattr(Training, "unscale", forgotten)
    assert not workload.check(arm).passed


def test_a_forgotten_unscaling_fails_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, arm = arm_of(MLP, "torch_fp16_gradscaler")
    monkeypatch.setattr(Training, "unscale", lambda self: None)
    parity = workload.check(arm)
    assert parity.checks[0].passed
    assert not any(entry.passed for entry in parity.checks[1:])


def test_every_arm_starts_from_the_same_weights_and_learns_the_same_batch() -> None:
    first = {}
    for name in HERE:
        workload, arm = arm_of(MLP, name)
        details = workload.details(arm)
        first[name] = details["first_loss"]
        assert details["loss"] < 0.8 * details["first_loss"]
    assert max(first.values()) - min(first.values()) < 0.02


def test_the_scaler_reports_scale_and_skipped_steps() -> None:
    workload, arm = arm_of(MLP, "torch_fp16_gradscaler")
    details = workload.details(arm)
    assert details["scale"] == 2.0**16
    assert details["skipped_steps"] == 0
    assert arm.synchronises


def test_a_scale_that_overflows_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: real(device, init_scale=2.0**34))
    workload, arm = arm_of(MLP, "torch_fp16_gradscaler")
    details = workload.details(arm)
    assert details["skipped_steps"] > 0
    assert details["scale"] == 2.0 ** (34 - details["skipped_steps"])


def test_skipping_every_step_is_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: real(device, init_scale=2.0**100))
    with pytest.raises(Diverged, match="32 steps"):
        arm_of(MLP, "torch_fp16_gradscaler")
    workload, arm = arm_of(MLP, "torch_fp32")
    arm.recipe = Recipe("float16", grad_scaler=True)
    with pytest.raises(Diverged, match="20 steps"):
        workload.details(arm)


def test_no_timed_step_is_skipped_though_the_first_scale_overflows() -> None:
    workload, arm = arm_of({**MLP, "batch": 1}, "torch_fp16_gradscaler")
    parameter = next(arm.training.module.parameters())
    for _ in range(3):
        arm.prepare(1)
        scale, before = arm.training.scaler.get_scale(), parameter.detach().clone()
        arm.call(0)
        arm.finish()
        assert arm.training.scaler.get_scale() == scale
        assert not torch.equal(parameter, before)
    assert workload.check(arm).passed


def test_the_timed_steps_leave_the_loss_where_it_was() -> None:
    _, arm = arm_of(MLP, "torch_fp32")
    losses = []
    for _ in range(50):
        arm.prepare(2)
        arm.call(0)
        losses.append(float(arm.last))
        arm.call(1)
        arm.finish()
    assert losses[-1] != losses[0]
    assert abs(losses[-1] - losses[0]) < 0.05


def test_windows_set_tf32_and_put_it_back() -> None:
    workload = component.workload(MLP, "cpu", 0)
    workload.allocate(1)
    entry = component.implementations["torch_tf32"]
    arm = workload.arm(entry)
    before = torch.get_float32_matmul_precision()
    arm.prepare(1)
    assert torch.get_float32_matmul_precision() == "high"
    arm.finish()
    assert torch.get_float32_matmul_precision() == before
    plain = workload.arm(component.implementations["torch_fp32"])
    torch.set_float32_matmul_precision("high")
    try:
        plain.prepare(1)
        assert torch.get_float32_matmul_precision() == "highest"
        plain.finish()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_apex_amp_is_unavailable_here_and_never_shares_a_process() -> None:
    entry = component.implementations["apex_amp_o2"]
    assert entry.missing("cpu")[0] == "needs an NVIDIA GPU"
    assert entry.build(MLP) == Recipe("float16", opt_level="O2")
    with pytest.raises(Unsupported, match="whole process"):
        component.workload(MLP, "cpu", 0).arm(entry)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model": "mlpp"}, "mlp"), ({"batch": 0}, "batch"), ({"batch": "8"}, "8")],
)
def test_bad_cases_are_named(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        component.workload({**MLP, **change}, "cpu", 0)


def test_buffers_are_counted_in_bytes() -> None:
    workload = component.workload(MLP, "cpu", 0)
    assert workload.buffer_bytes() == 32 * 256 * 4 + 32 * 8
