"""Training over two nodes, and an image that a job builds, through profiles/slurm on a Slurm."""

from __future__ import annotations

import pytest
from cluster import SlurmProject, ask, python_with_toys, running_slurm

from apexbench import records
from pipeline import all_disabled

CONFIG = """\
preset: quick
components:
OTHERS
transformer:
  models:
    - {name: mini, layers: 1, d_model: 32, heads: 2, vocabulary: 64, sequence: 16, batch: 4}
  recipes: [fp32+torch+fused]
  nodes: 2
  loss_steps: 8
  seeds: 1
  case_seconds: 0.5
measuring: {case_seconds: 0.2, pilot_rounds: 10, implementation_seconds: 600}
report: {reference: false}
"""
INDEX = "results/records/transformer/mini-2x1-p0/index.json"
ON_BOTH = "    slurm_partition: pair\n    mem_mb: 300\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Slurm on this machine while these tests run."""
    with running_slurm(tmp_path_factory.mktemp("slurm")) as folder:
        yield folder


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with_toys(tmp_path_factory.mktemp("python") / "venv")


def test_two_nodes_train_one_model_with_the_loss_of_one_process(slurm, python, tmp_path):
    pytest.importorskip("torch")
    project = SlurmProject(tmp_path / "bench", python)
    project.edit({"    mem_mb: 300\n": ON_BOTH})
    project.configure(CONFIG.replace("OTHERS", all_disabled()))
    done = project.run("--slurm-init-seconds-before-status-checks", "4", "--", INDEX)
    log = project.folder / "results/logs/transformer-mini-2x1-p0.log"
    assert done.returncode == 0, done.stdout + (log.read_text() if log.exists() else "")
    [(job, rule)] = project.jobs("COMPLETED").items()
    assert rule == "transformer"
    fields = ask("scontrol", "--oneliner", "show", "job", job)
    for field in ("NodeList=node[1-2] ", "NumNodes=2 ", "NumTasks=2 ", "TresPerJob=gres:gpu:2"):
        assert field in fields
    [record] = records.read_index(project.folder / INDEX)
    assert record.case == "mini on 2 GPUs of 2 nodes"
    assert [cell.status for cell in record.cells] == ["ok", "ok"]
    alone, both = (cell.details for cell in record.cells)
    assert (alone["gpus"], both["gpus"]) == (1, 2)
    assert alone["tokens_per_step"] == both["tokens_per_step"]
    assert both["held_out_loss"] == pytest.approx(alone["held_out_loss"], rel=1e-5)
    place = record.provenance
    assert [(entry["rank"], entry["node"]) for entry in place["ranks"]] == [
        (0, "node1"),
        (1, "node2"),
    ]
    assert (place["slurm_job"], place["slurm_partition"]) == (job, "pair")
    assert place["node"] == place["slurm_node"] == "node1"
    assert not list((project.folder / "results/.cache").glob("apexbench-*"))
