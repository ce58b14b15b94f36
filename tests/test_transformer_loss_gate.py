"""The loss gate on real training: sound recipes pass it, two planted faults do not."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from apexbench.report import loss_gate  # noqa: E402
from apexbench.report.cases import merge  # noqa: E402
from apexbench.transformer.models import PRESETS  # noqa: E402
from apexbench.transformer.workload import component  # noqa: E402

import record_factory as factory  # noqa: E402  isort: skip

MODEL = {
    **dataclasses.asdict(PRESETS["tiny"]),
    "name": "mini", "layers": 1, "d_model": 32, "heads": 2, "vocabulary": 64, "sequence": 32,
    "batch": 8, "ffn_width": 128, "learning_rate": 5e-3,
}  # fmt: skip
UNSCALED = 2.0**-11
"""The gradients of this model's 256 tokens a step as small as those of 524,288, unscaled."""


def held_out(label, scale=None, **model):
    case = {"model": {**MODEL, **model}, "recipes": ["cpu"], "loss_steps": 40, "seeds": 5}
    work = component.workload(case, "cpu", 0)
    trained = work.arm(component.implementations[label])
    if scale is not None:
        fixed = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**9)
        trained.scaler, trained.new_scaler = fixed, lambda: fixed
    return work.details(trained)["held_out_losses"]


def test_two_planted_faults_fail_the_gate_that_sound_recipes_pass():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {
        "fp32+torch+default": held_out("fp32+torch+default"),
        "fp16+torch+fused": held_out("fp16+torch+fused"),
        "bf16+torch+fused": held_out("bf16+torch+fused"),
        "fp32+torch+fused": held_out("fp32+torch+default", learning_rate=2.5e-3),
        "fp16+torch+default": held_out("fp16+torch+fused", UNSCALED),
    }
    torch.set_num_threads(threads)
    [record] = factory.transformer()
    record.cells = [cell for cell in record.cells if cell.implementation in found]
    for cell in record.cells:
        cell.details["held_out_losses"] = found[cell.implementation]
    [case] = merge([record])
    verdicts = {
        label: loss_gate.judge(case, case.arm(label)).verdict
        for label in found
        if label != loss_gate.BASELINE
    }
    assert verdicts == {
        "fp16+torch+fused": loss_gate.NON_INFERIOR,
        "bf16+torch+fused": loss_gate.NON_INFERIOR,
        "fp32+torch+fused": loss_gate.DIVERGED,  # half the learning rate
        "fp16+torch+default": loss_gate.DIVERGED,  # no loss scaling
    }
