"""Training on a real GPU: graphs, attention kernels, the loss gate's faults, DDP over NCCL."""

import pytest
import torch

from apexbench.measuring.arms import Unsupported
from apexbench.report.loss_gate import MARGIN
from apexbench.transformer.workload import component
from test_transformer_ddp import measured, one_thread  # noqa: F401

pytestmark = [
    pytest.mark.needs_gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CASE = {"model": "small", "recipes": ["factorial"], "loss_steps": 300, "seeds": 5}


def arm(label, **change):
    entry = component.implementations[label]
    if (missing := entry.missing("cuda")) is not None:
        pytest.skip(missing[0])
    work = component.workload({**CASE, **change}, "cuda", 0)
    try:
        return work, work.arm(entry)
    except Unsupported as error:
        pytest.skip(error.reason)


@pytest.mark.parametrize(
    "label",
    ["bf16+torch+fused+cudagraph", "bf16+apex+apex+cudagraph", "bf16+torch+fused+cudnn",
     "bf16+torch+fused+flash", "bf16+torch+fused+chunked", "bf16+torch+apex+master+cudagraph",
     "bf16+torch+compiled+compile+cudagraph+master+cudnn", "bf16+apex+apex+compile",
     "bf16+torch+compiled+compile+cudagraph+master+chunked+cudnn"],
)  # fmt: skip
def test_parity(label):
    work, trained = arm(label, loss_steps=0)
    trained.prepare(1)
    trained.call(0)
    trained.finish()
    parity = work.check(trained)
    assert parity.passed, parity.checks


def test_graphs_of_one_pool_do_not_disturb_each_other():
    work, first = arm("bf16+torch+fused+cudagraph", loss_steps=0)
    entry = component.implementations["bf16+torch+fused+cudagraph+master"]
    second, alone = work.arm(entry), arm("bf16+torch+fused+cudagraph", loss_steps=0)[1]
    for trained in (first, second):
        trained.prepare(1)
    for _ in range(10):
        for trained in (first, second):
            trained.prepare(1)
            trained.call(0)
            trained.finish()
    alone.train_to(first.progress.steps)
    assert first.progress.losses == pytest.approx(alone.progress.losses, rel=1e-2)


@pytest.mark.slow
def test_planted_faults_show_in_the_held_out_loss():
    work, sound = arm("fp32+torch+default")
    expected = dict(work.details(sound)["held_out_losses"])
    fast = work.arm(component.implementations["fp16+torch+fused"])
    assert abs(mean(work.details(fast)["held_out_losses"], expected)) < MARGIN
    fast.new_scaler = lambda: torch.amp.GradScaler("cuda", init_scale=1, growth_interval=10**9)
    fast.restart(work.shared(0))
    assert mean(work.details(fast)["held_out_losses"], expected) > MARGIN


def mean(found, expected):
    return sum(loss - expected[seed] for seed, loss in found) / len(found)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_two_gpus_learn_as_one_with_the_same_global_batch(tmp_path, one_thread):  # noqa: F811
    record = measured(tmp_path, ["bf16+torch+fused+compile"], 2, device="cuda")
    alone, parallel = record.cells
    assert (alone.status, parallel.status) == ("ok", "ok"), record.cells
    for one, two in zip(
        alone.details["held_out_losses"], parallel.details["held_out_losses"], strict=True
    ):
        assert two[1] == pytest.approx(one[1], rel=5e-3)
