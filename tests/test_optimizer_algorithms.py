"""Adam, SGD, Adagrad, LAMB and NovoGrad: right on the CPU, planted faults seen, fair beside Apex.

Apex's optimizers need a GPU, so what they do is played here by fakes of their documented interface.
"""

from __future__ import annotations

import sys
import types

import pytest
import torch

from apexbench.components import adamw_parity, optimizer_formulas, optimizer_parity
from apexbench.components.optimizer import component
from apexbench.components.optimizer_steps import Update
from apexbench.components.optimizer_workload import label, work
from apexbench.measuring.arms import Unsupported
from conftest import require_compiled_torch

torch.set_num_threads(1)
RULES = list(optimizer_formulas.RULES)


def case_of(algorithm: str, **changes: object) -> dict:
    case = {"model": "tiny", "algorithm": algorithm, "dtype": "float32", "grad_scaler": False}
    return {**case, **changes}


class Planted(torch.optim.Optimizer):
    """Any rule by its formula in float32, with a fault; ``gradients`` may be overwritten."""

    def __init__(self, params, algorithm: str, fault: str | None):
        super().__init__(params, {"lr": 0.1})
        self.algorithm, self.fault, self.t = algorithm, fault, 0
        rule, settings = optimizer_formulas.RULES[algorithm], optimizer_parity.SETTINGS[algorithm]
        self.settings, self.rules = settings, [rule(p.detach(), settings, fault) for p in params]

    @torch.no_grad()
    def step(self) -> None:
        self.t += 1
        (group,) = self.param_groups
        grads = [p.grad.clone() for p in group["params"]]
        if self.fault == "dropped gradient" and self.t == 7:
            grads[-1].zero_()
        if self.algorithm == "lamb" and self.fault != "gradients not clipped":
            size = torch.stack([g.norm() for g in grads]).norm()
            grads = [g / max(1.0, float(size)) for g in grads]
        for p, g, rule in zip(group["params"], grads, self.rules, strict=True):
            p.sub_(rule.update(p.clone(), g, group["lr"], self.t))


def gate(algorithm: str, fault: str | None):
    def build(params):
        return Update(Planted(params, algorithm, fault), None)

    return optimizer_parity.check(algorithm, build, torch.float32, "cpu", 0)


@pytest.mark.parametrize("algorithm", RULES)
def test_every_planted_fault_is_refused_and_an_honest_step_passes(algorithm: str) -> None:
    honest = gate(algorithm, None)
    assert honest.passed, honest.checks
    assert honest.undetectable == []
    for fault in optimizer_formulas.FAULTS[algorithm]:
        planted = gate(algorithm, fault)
        assert planted.checks[0].error >= 10 * planted.checks[0].tolerance, fault


@pytest.mark.parametrize("algorithm", ["adam", "sgd", "adagrad"])
def test_torch_s_eager_ways_pass_and_one_is_the_default(algorithm: str) -> None:
    case = case_of(algorithm)
    names = component.names(case, None)
    assert len(component.baselines(case)["torch_default"]) == 1
    eager = [name for name in names if name in component.baselines(case)["torch_eager_best"]]
    assert len(eager) == 4
    for name in eager:
        workload = component.workload(case, "cpu", 3)
        parity = workload.check(workload.arm(component.implementations[name]))
        assert parity.passed, (name, parity.checks)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sgd", "adagrad"])
def test_the_compiled_steps_pass_too(algorithm: str) -> None:
    entry = component.implementations[f"torch_{algorithm}_compiled"]
    require_compiled_torch()
    workload = component.workload(case_of(algorithm), "cpu", 3)
    parity = workload.check(workload.arm(entry))
    assert parity.passed, parity.checks


def test_the_formulas_agree_with_torch_in_float64() -> None:
    start, gradients = adamw_parity.inputs(torch.float64, "cpu", 5)
    rates = adamw_parity.SETTINGS.learning_rates
    for algorithm, rule in (
        ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad)
    ):  # fmt: skip
        settings = optimizer_parity.SETTINGS[algorithm]
        params = [torch.nn.Parameter(p.clone()) for p in start]
        optimizer = rule(params, lr=0.1, foreach=False, **settings)
        for lr, step in zip(rates, gradients, strict=True):
            optimizer.param_groups[0]["lr"] = lr
            for p, g in zip(params, step, strict=True):
                p.grad = g
            optimizer.step()
        right = optimizer_formulas.run(algorithm, start, gradients, rates, settings)
        torch.testing.assert_close(
            params, [*map(torch.nn.Parameter, right)], rtol=1e-10, atol=1e-12
        )


def test_a_case_has_the_cells_of_its_own_rule_only() -> None:
    assert component.names(case_of("lamb"), None) == ["apex_lamb"]
    assert component.names(case_of("novograd"), None) == ["apex_novograd"]
    assert component.baselines(case_of("lamb"))["torch_best"] == []
    assert "apex_sgd" not in component.names(case_of("adamw"), None)
    assert {"apex", "apex_cudagraph"} <= set(component.names(case_of("adam"), None))
    assert set(component.names(case_of("sgd"), None)) == {
        "torch_sgd", "torch_sgd_forloop", "torch_sgd_foreach", "torch_sgd_fused",
        "torch_sgd_compiled", "torch_sgd_cudagraph", "apex_sgd",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "each"),
    [("adam", 28), ("sgd", 20), ("adagrad", 20), ("lamb", 44), ("novograd", 24)],
)
def test_bytes_follow_the_formula(algorithm: str, each: int) -> None:
    case = case_of(algorithm, model="gpt2-124M")
    assert work(case).bytes == each * 124_439_808
    assert work(case).formula.startswith(f"{each} B")
    assert label(case).split()[0].lower() == algorithm


class _Apex:
    """``apex.optimizers`` as documented: keyword settings, no closure, what each dtype meets."""

    def __init__(self, name: str, behaviour: str):
        self.name, self.behaviour = name, behaviour

    def __call__(self, params, lr, **settings):
        algorithm = self.name.removeprefix("Fused").lower()
        outer = self

        class Fake(Planted):
            def __init__(self):
                super().__init__(params, algorithm, None)
                self.given = settings

            def step(self):
                if params[0].dtype == torch.float32:
                    super().step()
                    if algorithm == "lamb":
                        for p in params:
                            p.grad.fill_(7.0)
                elif outer.behaviour == "raises":
                    raise RuntimeError("only support fp16 and fp32.")

        return Fake()


@pytest.fixture
def fake_apex(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    names = {"FusedSGD": "skips", "FusedAdagrad": "raises", "FusedLAMB": "raises",
             "FusedNovoGrad": "raises"}  # fmt: skip
    optimizers = types.SimpleNamespace(**{name: _Apex(name, how) for name, how in names.items()})
    monkeypatch.setitem(sys.modules, "apex", types.SimpleNamespace(optimizers=optimizers))
    return optimizers


@pytest.mark.parametrize("algorithm", ["sgd", "adagrad", "lamb", "novograd"])
def test_apex_gets_the_case_s_settings_and_passes_the_same_gate(algorithm, fake_apex) -> None:
    workload = component.workload(case_of(algorithm), "cpu", 3)
    arm = workload.arm(component.implementations[f"apex_{algorithm}"])
    assert set(arm.update.optimizer.given) == set(optimizer_parity.SETTINGS[algorithm])
    assert workload.check(arm).passed


@pytest.mark.parametrize(
    ("algorithm", "why"), [("sgd", "as they are"), ("adagrad", "fp16"), ("lamb", "fp16")]
)
def test_a_dtype_that_apex_skips_or_refuses_is_unsupported(algorithm, why, fake_apex) -> None:
    workload = component.workload(case_of(algorithm, dtype="bfloat16"), "cpu", 3)
    with pytest.raises(Unsupported, match=why) as raised:
        workload.arm(component.implementations[f"apex_{algorithm}"])
    assert "bfloat16" in raised.value.reason
    assert raised.value.remedy


def test_gradients_that_lamb_overwrites_are_put_back(fake_apex) -> None:
    workload = component.workload(case_of("lamb"), "cpu", 3)
    arm = workload.arm(component.implementations["apex_lamb"])
    assert arm.max_calls == 1
    before = workload.params[0].grad.clone()
    arm.prepare(1)
    arm.call(0)
    assert not torch.equal(workload.params[0].grad, before)
    arm.prepare(1)
    assert torch.equal(workload.params[0].grad, before)
