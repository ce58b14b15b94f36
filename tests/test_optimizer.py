"""The optimizer component: shapes, calls, parity of every implementation that runs here."""

import gc
import weakref

import pytest
import torch

from apexbench.components import adamw_parity, models, names
from apexbench.components.optimizer import component
from apexbench.components.optimizer_steps import SCALE, Update, set_lr
from apexbench.components.optimizer_workload import learning_rate, work
from apexbench.errors import UserError
from apexbench.measuring.arms import Unsupported
from conftest import require_compiled_torch

torch.set_num_threads(1)
CASE = {"model": "tiny", "algorithm": "adamw", "dtype": "float32", "grad_scaler": False}
EAGER = ["torch_default", "torch_forloop", "torch_foreach", "torch_fused"]


@pytest.mark.parametrize(
    ("model", "tensors", "elements"),
    [
        ("linear60x512", 120, 15_759_360),
        ("gpt2-124M", 148, 124_439_808),
        ("gpt2-1.5B", 580, 1_557_611_200),
        ("llama-1B", 146, 1_235_814_400),
        ("many-small", 4096, 2**26),
        ("few-huge", 4, 2**26),
    ],
)
def test_published_sizes(model: str, tensors: int, elements: int) -> None:
    shapes = models.parameter_shapes(model)
    assert (len(shapes), models.elements(shapes)) == (tensors, elements)


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"gpt3-124M.*gpt2-124M"):
        models.parameter_shapes("gpt3-124M")


@pytest.mark.parametrize(("key", "value"), [("dtype", "float8"), ("algorithm", "adamax")])
def test_unknown_values_are_named(key: str, value: str) -> None:
    with pytest.raises(UserError, match=value):
        component.workload({**CASE, key: value}, "cpu", 0)


def test_the_names_are_found_without_importing_torch() -> None:
    assert names.implementation_names()["optimizer"] == list(component.implementations)
    assert component.baselines(CASE)["torch_default"] == ["torch_default"]
    assert "apex" not in component.baselines()["torch_best"]


@pytest.mark.parametrize(
    ("dtype", "scaler", "each"),
    [("float32", False, 28), ("float32", True, 32), ("bfloat16", False, 14)],
)
def test_bytes_per_parameter(dtype: str, scaler: bool, each: int) -> None:
    case = {**CASE, "model": "gpt2-124M", "dtype": dtype, "grad_scaler": scaler}
    assert work(case).bytes == each * 124_439_808


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("name", EAGER)
def test_eager_implementations_pass_parity(name: str, dtype: str, scaler: bool) -> None:
    workload = component.workload({**CASE, "dtype": dtype, "grad_scaler": scaler}, "cpu", 3)
    if dtype == "float16" and scaler and name != "torch_fused":
        with pytest.raises(Unsupported, match="float16"):
            workload.arm(component.implementations[name])
        return
    parity = workload.check(workload.arm(component.implementations[name]))
    assert parity.passed, parity.checks
    assert parity.undetectable == []


@pytest.mark.slow
def test_the_compiled_implementation_passes_parity_and_follows_the_rate() -> None:
    require_compiled_torch()
    entry = component.implementations["torch_compiled"]
    workload = component.workload(CASE, "cpu", 3)
    arm = workload.arm(entry)
    parity = workload.check(arm)
    assert parity.passed, parity.checks


def test_parity_is_checked_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    check = adamw_parity.check
    monkeypatch.setattr(
        adamw_parity, "check", lambda *args, **kwargs: calls.append(1) or check(*args, **kwargs)
    )

    def parity(name: str, **changes: object):
        workload = component.workload({**CASE, **changes}, "cpu", 91)
        return workload.check(workload.arm(component.implementations[name]))

    first = parity("torch_fused")
    assert parity("torch_fused", model="linear60x512") == first
    assert len(calls) == 1
    parity("torch_forloop")
    parity("torch_fused", dtype="bfloat16")
    parity("torch_fused", grad_scaler=True)
    assert len(calls) == 4


def test_a_case_s_own_implementations_narrow_those_wanted() -> None:
    case = {**CASE, "implementations": ["apex", "torch_fused"]}
    assert component.names(case, None) == ["torch_fused", "apex"]
    assert component.names(case, ["torch_fused", "torch_default"]) == ["torch_fused"]
    assert component.names(CASE, None) == [
        name for name, entry in component.implementations.items() if entry.suits(CASE)
    ]


def test_decay_left_at_a_librarys_default_fails_parity() -> None:
    workload = component.workload({**CASE, "dtype": "bfloat16"}, "cpu", 3)
    arm = workload.arm(component.implementations["torch_fused"])

    def forgetful(case: dict, params: list, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=lr, betas=case["betas"], eps=case["eps"])

    arm.implementation = type("Forgetful", (), {"build": staticmethod(forgetful), "requires": ()})
    parity = workload.check(arm)
    assert not parity.passed
    assert "share of: no weight decay" in [c.tensor for c in parity.checks if not c.passed]


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_stay_sane_over_many_timed_steps(name: str, dtype: str) -> None:
    workload = component.workload({**CASE, "dtype": dtype}, "cpu", 1)
    before = [p.detach().clone() for p in workload.params]
    arm = workload.arm(component.implementations[name])
    for _ in range(10):
        arm.prepare(20)
        for index in range(20):
            arm.call(index)
        arm.finish()
    details = workload.details(arm)
    assert details["steps"] == 200
    moved = max(
        float((p.detach() - b).abs().max()) for p, b in zip(workload.params, before, strict=True)
    )
    assert moved < 0.1
    if dtype == "float32":
        assert moved > 0


def test_the_learning_rate_changes_with_every_call() -> None:
    assert len({learning_rate(step) for step in range(1000)}) == 1000
    parameter = torch.nn.Parameter(torch.ones(3))
    tensor = torch.tensor(1.0)
    optimizer = torch.optim.AdamW([parameter], lr=tensor, foreach=False)
    set_lr(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is tensor
    assert float(tensor) == 0.25


def test_an_unscaling_is_undone_before_the_next_window() -> None:
    workload = component.workload({**CASE, "grad_scaler": True}, "cpu", 1)
    arm = workload.arm(component.implementations["torch_foreach"])
    assert arm.synchronises
    assert arm.max_calls == 1
    scaled = [p.grad.clone() for p in workload.params]
    for _ in range(3):
        arm.prepare(1)
        assert all(torch.equal(p.grad, g) for p, g in zip(workload.params, scaled, strict=True))
        arm.call(0)
        assert torch.equal(workload.params[0].grad, scaled[0] / SCALE)
        arm.finish()
    arm.prepare(1)
    assert arm.update.scaler.state_dict()["_growth_tracker"] == 0
    assert arm.update.scaler.get_scale() == SCALE


def test_only_an_optimizer_that_takes_the_scale_on_the_device_does_not_synchronise() -> None:
    workload = component.workload({**CASE, "grad_scaler": True}, "cpu", 1)
    waits = {name: workload.arm(component.implementations[name]).synchronises for name in EAGER}
    assert waits == {name: name != "torch_fused" for name in EAGER}


def test_arms_share_parameters_and_own_their_state() -> None:
    workload = component.workload(CASE, "cpu", 1)
    arms = [workload.arm(component.implementations[name]) for name in EAGER[1:]]
    for arm in arms:
        arm.call(0)
    first, second = arms[0].update.optimizer, arms[1].update.optimizer
    parameter = workload.params[0]
    assert first.param_groups[0]["params"][0] is second.param_groups[0]["params"][0] is parameter
    assert first.state[parameter]["exp_avg"] is not second.state[parameter]["exp_avg"]
    arms[0].close()
    arms[1].call(0)


def test_a_closed_arm_frees_its_state() -> None:
    workload = component.workload(CASE, "cpu", 1)
    arm = workload.arm(component.implementations["torch_foreach"])
    arm.call(0)
    state = weakref.ref(arm.update.optimizer.state[workload.params[0]]["exp_avg"])
    arm.close()
    gc.collect()
    assert state() is None


def test_apex_says_what_it_needs_on_the_cpu() -> None:
    for name in ("apex", "apex_capturable", "apex_master_weights", "torch_cudagraph"):
        reason, remedy = component.implementations[name].missing("cpu")
        assert reason == "needs an NVIDIA GPU"
        assert remedy


def test_master_weights_of_float32_parameters_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="float32"):
        component.implementations["apex_master_weights"].build(CASE, [], 1e-3)


class _WithMasters:
    """An optimizer like Apex's with master weights; ``honest`` False ignores them."""

    def __init__(self, params: list[torch.nn.Parameter], honest: bool):
        self.params, self.honest = params, honest
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in params]
        settings = adamw_parity.SETTINGS.as_case()
        self.inner = torch.optim.AdamW(self.masters if honest else params, lr=0.1, **settings)
        self.param_groups = self.inner.param_groups
        self.param_groups_master = [{"params": self.masters}]
        self.state = self.inner.state

    def step(self) -> None:
        with torch.no_grad():
            for p, master in zip(self.params, self.masters, strict=True):
                master.grad = p.grad.float()
            self.inner.step()
            if self.honest:
                for p, master in zip(self.params, self.masters, strict=True):
                    p.copy_(master)


@pytest.mark.parametrize("honest", [True, False])
def test_master_weights_must_follow_the_formula(honest: bool) -> None:
    parity = adamw_parity.check(
        lambda params: Update(_WithMasters(params, honest), None), torch.bfloat16, "cpu", 0
    )
    assert parity.passed is honest
    assert any(entry.tensor.startswith("master weights") for entry in parity.checks)
