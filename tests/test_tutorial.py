"""The tutorial's parts: its timer, ours beside it, the faults named where the answer changes."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import record_factory as factory
from apexbench.components import tutorial_workload
from apexbench.components.tutorial import component
from apexbench.report import tutorial
from apexbench.report.cases import merge

torch.set_num_threads(1)
SMALL = {
    "A": {"part": "A", "layers": 3, "width": 16, "batch": 4},
    "B_layer_norm": {"part": "B_layer_norm", "rows": 8, "width": 32},
    "B_rms_norm": {"part": "B_rms_norm", "rows": 8, "width": 32},
}


def built(part: str, name: str):
    workload = component.workload(SMALL[part], "cpu", 0)
    workload.allocate(1)
    return workload, workload.arm(component.implementations[name])


@pytest.mark.parametrize("part", list(SMALL))
def test_torch_s_arms_pass_and_have_the_tutorial_s_time(part: str) -> None:
    for name in component.names(SMALL[part], None):
        if component.implementations[name].package == "torch":
            workload, arm = built(part, name)
            parity = workload.check(arm)
            assert parity.passed, (name, parity.checks)
            arm.prepare(1)
            arm.call(0)
            arm.finish()
            assert workload.details(arm)["tutorial_ns"] > 0


def test_the_timer_warms_up_ten_times_and_times_fifty() -> None:
    calls = []
    assert tutorial_workload.tutorial_timer(lambda: calls.append(1), "cpu") >= 0
    assert len(calls) == 60


def test_its_way_piles_gradients_up_and_ours_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, arm = built("B_layer_norm", "torch_default")
    kept = []
    real = workload._buffers
    monkeypatch.setattr(workload, "_buffers", lambda rows: kept.append(real(rows)) or kept[-1])
    workload.details(arm)
    assert float(kept[0][2].grad[0]) == pytest.approx(60 * 8)  # dbias of y.sum() is the rows
    assert all(tensor.grad is None for tensor in workload.buffers[0][:3])


def test_each_library_s_own_decay_is_its_way_and_one_decay_ours(monkeypatch) -> None:
    given = []

    def adam(params, lr, **settings):
        given.append(settings)
        return torch.optim.AdamW(params, lr=lr, **{"weight_decay": 0.0, **settings})

    for name in ("apex", "apex.optimizers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["apex.optimizers"].FusedAdam = adam
    workload, arm = built("A", "apex")
    assert workload.check(arm).passed
    assert given == [{"weight_decay": 0.01}] * 2
    workload.details(arm)
    assert given[-1] == {}


def test_a_step_that_does_nothing_fails_the_gate() -> None:
    workload, arm = built("A", "torch_default")
    arm.build = lambda params, **settings: torch.optim.SGD(params, lr=0.0)
    assert not workload.check(arm).passed


def test_the_faults_are_named_where_the_answer_changes() -> None:
    def record(theirs: float, value: float):
        made = factory.optimizer()[0]
        made.component, made.case, made.config = "tutorial", "part A", {"part": "A"}
        base = factory.cell("torch_default", 1e6, kind="step_time", details={"tutorial_ns": 1e6})
        fused = factory.cell("torch_fused", 0.9e6, kind="step_time", details={"tutorial_ns": 1e6})
        apex = factory.cell(
            "apex", value, "apex", "step_time", details={"tutorial_ns": 1e6 / theirs}
        )
        made.cells = [base, fused, apex]
        made.comparisons = [
            factory.compare("step_time", "apex", "torch_default", [base], apex),
            factory.compare("step_time", "apex", "torch_eager_best", [base, fused], apex),
        ]
        made.baselines = {}
        return merge([made])

    (same,) = tutorial.lines(record(1.5, 0.5e6))
    assert "1.50× torch" in same
    assert "The answer changes" not in same
    (changed,) = tutorial.lines(record(1.05, 0.95e6))
    assert "The answer changes: its baseline is AdamW as it comes" in changed
    assert "against torch's best" in changed
