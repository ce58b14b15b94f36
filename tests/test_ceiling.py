"""The ceiling component: loads are right, counted by formula, and settle when they have rested."""

import time

import pytest
import torch

from apexbench.components import ceiling_workload
from apexbench.components.ceiling import component

torch.set_num_threads(1)
CASE = {"name": "sustained"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceiling_workload.SHAPES, "cpu", ((32, 48, 64), (64, 64, 64)))
    monkeypatch.setitem(ceiling_workload.SUSTAIN_S, "cpu", 0.02)
    monkeypatch.setitem(ceiling_workload.SETTLE_S, "cpu", 0.01)
    monkeypatch.setattr(ceiling_workload, "_buffer_bytes", lambda device: 1 << 20)


def arm_of(name: str):
    workload = component.workload(CASE, "cpu", 0)
    return workload, workload.arm(component.implementations[name])


@pytest.mark.parametrize("name", ["copy", "matmul_bfloat16", "matmul_float16", "matmul_float32"])
def test_each_load_is_checked_and_described(name: str) -> None:
    workload, arm = arm_of(name)
    assert workload.check(arm).passed
    details = workload.details(arm)
    launches = details["launches_per_call"]
    if name == "copy":
        assert details["bytes"] == launches * 2 * (1 << 20) // 16
        assert details["flops"] == 0
    else:
        m, n, k = details["shape"]
        size = 4 if name == "matmul_float32" else 2
        assert details["flops"] == launches * 2 * m * n * k
        assert details["bytes"] == launches * size * (m * k + k * n + m * n)
        assert details["sustained_flops_per_second"] > 0
    assert details["sustained_seconds"] >= 0.02
    assert details["power_w"] is None


def test_a_wrong_product_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, arm = arm_of("matmul_float32")
    launch = arm.load.launch

    def wrong() -> None:
        launch()
        arm.load.out.mul_(1.01)

    monkeypatch.setattr(arm.load, "launch", wrong)
    assert not workload.check(arm).passed


def test_a_copy_that_copies_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, arm = arm_of("copy")
    arm.load.target.zero_()
    monkeypatch.setattr(arm.load, "launch", lambda: None)
    assert not workload.check(arm).passed


def test_the_copy_goes_round_the_whole_buffer() -> None:
    _, arm = arm_of("copy")
    arm.load.target.zero_()
    for _ in range(16):
        arm.load.launch()
    assert torch.equal(arm.load.target, arm.load.source)


def test_an_arm_settles_after_a_rest_and_only_while_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload, arm = arm_of("matmul_float32")
    loaded = []
    monkeypatch.setattr(arm, "sustain", loaded.append)
    arm.prepare(1)
    arm.finish()
    assert loaded == []
    workload.allocate(1)
    arm.ended = time.monotonic() - 10
    arm.prepare(1)
    arm.finish()
    arm.prepare(1)
    arm.finish()
    assert loaded == [ceiling_workload.SETTLE_S["cpu"]]


def test_the_fastest_listed_shape_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1e-3, 1e-4])
    monkeypatch.setattr(ceiling_workload, "seconds_of", lambda load, device: next(seconds))
    generator = torch.Generator().manual_seed(0)
    load = ceiling_workload.MatMul(torch.float32, "cpu", generator)
    assert load.facts.shape == [64, 64, 64]


def test_a_shape_too_slow_to_repeat_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling_workload, "seconds_of", lambda load, device: 5.0)
    generator = torch.Generator().manual_seed(0)
    load = ceiling_workload.MatMul(torch.float16, "cpu", generator)
    assert load.facts.shape == [32, 48, 64]


def test_ceilings_are_compared_with_nothing_and_run_alone() -> None:
    assert component.baselines() == {"torch_default": [], "torch_eager_best": [], "torch_best": []}
    assert not component.workload(CASE, "cpu", 0).interleaved
    assert component.label(CASE) == "sustained"
    assert component.implementations["matmul_tf32"].missing("cpu")[0] == "needs an NVIDIA GPU"


def test_precision_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with ceiling_workload.Precision(True):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
