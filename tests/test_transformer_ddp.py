"""Two CPU processes under torchrun, through the job that a GPU machine runs."""

import dataclasses
import os

import pytest

torch = pytest.importorskip("torch")

from apexbench import records  # noqa: E402
from apexbench.jobs import supervisor  # noqa: E402
from apexbench.jobs.request import Request  # noqa: E402
from apexbench.report import gpus  # noqa: E402
from apexbench.report.cases import merge  # noqa: E402
from apexbench.transformer.models import PRESETS  # noqa: E402

MODEL = {
    **dataclasses.asdict(PRESETS["tiny"]),
    "name": "mini", "layers": 1, "d_model": 32, "heads": 2, "vocabulary": 64, "sequence": 16,
    "batch": 4, "ffn_width": 64,
}  # fmt: skip
MEASURING = {
    "margin": 0.01,
    "confidence": 0.99,
    "case_seconds": 0.3,
    "pilot_rounds": 10,
    "implementation_seconds": 120,
    "throttle_retries": 0,
}


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setenv("APEXBENCH_THREADS", "1")
    package = os.path.dirname(os.path.dirname(supervisor.__file__))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(package))


def measured(tmp_path, recipes, gpus, device="cpu"):
    case = {"model": MODEL, "recipes": recipes, "gpus": gpus, "loss_steps": 12, "seeds": 2}
    request = Request("transformer", device, 0, MEASURING, {}, cases=[case])
    out = tmp_path / "records" / "index.json"
    supervisor.run(request, out, tmp_path / "log.txt")
    [record] = records.read_index(out)
    return record


@pytest.mark.slow
def test_two_processes_learn_as_one_with_the_same_global_batch(tmp_path, one_thread):
    record = measured(tmp_path, ["fp32+torch+fused", "bf16+torch+fused+master"], 2)
    assert record.case == "mini on 2 GPUs"
    cells = {cell.implementation: cell for cell in record.cells}
    assert [cell.status for cell in cells.values()] == ["ok"] * 4, cells
    for label, tolerance in (("fp32+torch+fused", 1e-5), ("bf16+torch+fused+master", 2e-3)):
        alone, parallel = cells[label].details, cells[f"{label}+ddp"].details
        assert (alone["gpus"], parallel["gpus"]) == (1, 2)
        assert alone["tokens_per_step"] == parallel["tokens_per_step"] == 2 * 4 * 16
        for one, two in zip(alone["held_out_losses"], parallel["held_out_losses"], strict=True):
            assert one[0] == two[0]
            assert two[1] == pytest.approx(one[1], rel=tolerance)
        assert cells[f"{label}+ddp"].parity.passed
    # More GPUs are no faster implementation: no verdict speaks of them, an efficiency does.
    assert not [entry for entry in record.comparisons if "ddp" in entry.implementation]
    found = gpus.scalings(merge([record]))
    assert [entry.recipe for entry in found] == ["fp32+torch+fused", "bf16+torch+fused+master"]
    for entry in found:
        assert entry.efficiency.low <= entry.efficiency.value <= entry.efficiency.high
    sentence = gpus.sentences(merge([record]))[0]
    assert "as fast as on one GPU without DDP, an efficiency of" in sentence
