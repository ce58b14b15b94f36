"""The gate of AdamW sees every planted fault, in every dtype, and lets rounding pass."""

import pytest
import torch

from apexbench.components import adamw_parity as gate
from apexbench.components import adamw_reference as reference
from apexbench.components.adamw_reference import FAULTS, Settings

torch.set_num_threads(1)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Planted(torch.optim.Optimizer):
    """AdamW written out a second time, independently, with a fault to be planted."""

    def __init__(self, params: list[torch.nn.Parameter], fault: str | None):
        super().__init__(params, {"lr": 0.1})
        self.fault, self.steps = fault, 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        settings = gate.SETTINGS
        (group,) = self.param_groups
        for place, p in enumerate(group["params"]):
            last = place == len(group["params"]) - 1
            gradient = p.grad.float()
            if self.fault == "dropped gradient" and last and self.steps == 7:
                gradient = torch.zeros_like(gradient)
            if self.fault == "coupled weight decay":
                gradient = gradient + settings.weight_decay * p.float()
            state = self.state[p]
            m = state["m"] = torch.lerp(state.get("m", torch.zeros_like(gradient)), gradient, 0.1)
            v = state["v"] = torch.lerp(
                state.get("v", torch.zeros_like(gradient)), gradient**2, 0.001
            )
            first, second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
            if self.fault == "no bias correction":
                first = second = 1.0
            if self.fault == "eps inside the square root":
                update = m / first / (v / second + settings.eps).sqrt()
            else:
                update = m / first / ((v / second).sqrt() + settings.eps)
            kept = 1 - group["lr"] * settings.weight_decay
            if self.fault in ("no weight decay", "coupled weight decay"):
                kept = 1.0
            p.copy_(p.float() * kept - group["lr"] * update)


def run(fault: str | None, dtype: torch.dtype, seed: int = 0):
    from apexbench.components.optimizer_steps import Update

    return gate.check(lambda params: Update(Planted(params, fault), None), dtype, "cpu", seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_honest_implementation_passes(dtype: torch.dtype) -> None:
    for seed in range(3):
        parity = run(None, dtype, seed)
        assert parity.passed, parity.checks
        # Room to spare, so that another order of rounding passes too.
        assert all(entry.error < 0.75 * entry.tolerance for entry in parity.checks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_fails(fault: str, dtype: torch.dtype) -> None:
    parity = run(fault, dtype)
    assert not parity.passed
    assert fault not in parity.undetectable
    largest = max(entry.error / entry.tolerance for entry in parity.checks)
    assert largest >= 10 or largest == pytest.approx(10, rel=0.1)


def test_an_infinite_result_fails_with_no_error_value() -> None:
    right = gate.yardstick(torch.float32, "cpu", 0)
    ends = reference.flat(right.start)
    ends[0] = float("nan")
    checks = gate.compare(ends, right)
    assert checks[0].error is None
    assert not any(entry.passed for entry in checks)


def test_the_reference_agrees_with_torch_in_float64() -> None:
    start, gradients = gate.inputs(torch.float64, "cpu", 5)
    params = [torch.nn.Parameter(p.clone()) for p in start]
    optimizer = torch.optim.AdamW(params, lr=0.1, foreach=False, **gate.SETTINGS.as_case())
    for lr, step in zip(gate.SETTINGS.learning_rates, gradients, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        for p, g in zip(params, step, strict=True):
            p.grad = g
        optimizer.step()
    truth = reference.adamw(start, gradients, gate.SETTINGS, torch.float64)
    torch.testing.assert_close(reference.flat(params), truth.params, rtol=1e-12, atol=1e-14)


def test_what_a_dtype_hides_is_declared_and_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyday settings: in bfloat16 a decay of 1e-9 a step drowns, and the record must say so."""
    monkeypatch.setattr(gate, "SETTINGS", Settings((1e-5,) * 12, eps=1e-8, weight_decay=1e-4))
    right = gate.yardstick.__wrapped__(torch.bfloat16, "cpu", 0)
    assert "no weight decay" in right.undetectable
    names = [entry.tensor for entry in gate.compare(reference.flat(right.start), right)]
    assert "share of: no weight decay" not in names


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_methods_settings_hide_nothing(dtype: torch.dtype) -> None:
    assert gate.yardstick(dtype, "cpu", 0).undetectable == []


def test_float32s_bound_alone_sees_every_fault() -> None:
    right = gate.yardstick(torch.float32, "cpu", 0)
    for planted in right.planted.values():
        assert reference.displacement(planted, right.truth) > 1000


def test_the_inputs_are_the_methods() -> None:
    start, gradients = gate.inputs(torch.float32, "cpu", 0)
    assert len(gradients) == len(gate.SETTINGS.learning_rates) >= 10
    assert len(set(gate.SETTINGS.learning_rates)) == len(gradients)
    magnitudes = torch.cat([g.abs().flatten() for g in gradients[0]])
    assert 0.99e-4 <= float(magnitudes.min()) < 1.1e-4
    assert 0.9 < float(magnitudes.max()) <= 1
    assert abs(float(magnitudes.log10().mean()) + 2) < 0.02
    assert not torch.equal(gradients[0][0], gradients[1][0])
    assert len(start) > 110 or len(gate.shapes("cuda")) > 110


def test_an_unknown_fault_is_refused() -> None:
    start, gradients = gate.inputs(torch.float32, "cpu", 0)
    with pytest.raises(ValueError, match="typo"):
        reference.adamw(start, gradients, gate.SETTINGS, torch.float32, "typo")
