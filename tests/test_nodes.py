"""Training over several nodes: what is asked of Slurm, and the ranks of two stand-ins for nodes."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest

from apexbench import owner, records
from apexbench import plan as plans
from apexbench.cluster import steps
from apexbench.config import load
from apexbench.errors import UserError
from apexbench.jobs import ranks, supervisor
from apexbench.jobs.request import Request
from apexbench.machine.gpu import Gpu
from apexbench.plan import Plan
from apexbench.runtimes.apptainer import Apptainer
from apexbench.runtimes.decide import NATIVE, Decision
from apexbench.runtimes.runtime import Job
from conftest import ROOT

# What the job 7 of nodes n1 and n2 is told; both are this machine.
SCONTROL = """\
case "$*" in
  *"show job"*) echo 'JobId=7 NodeList=n[1-2] NumNodes=2 CPUs/Task=1 Comment=NodeListless' ;;
  *"show hostnames"*) printf 'n1\\nn2\\n' ;;
  *"show node"*) echo 'NodeName=n1 NodeAddr=127.0.0.1 Port=1' ;;
esac
"""
# Starts the tasks and, as --kill-on-bad-exit does, ends all when one fails.
SRUN = f"""\
#!{sys.executable}
import os, signal, subprocess, sys, time
open(os.environ["SEEN_SRUN"], "a").write(" ".join(sys.argv[1:]) + chr(10))
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
tasks = []
for number in range(2):
    own = {{"SLURM_PROCID": str(number), "SLURMD_NODENAME": f"n{{number + 1}}"}}
    own["SLURM_JOB_PARTITION"] = "gpu"
    tasks.append(subprocess.Popen(words, env={{**os.environ, **own}}, start_new_session=True))
def end(*_):
    for task in tasks:
        try:
            os.killpg(task.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
while any(task.poll() is None for task in tasks):
    if any(task.poll() for task in tasks):
        time.sleep(0.5)
        end()
    time.sleep(0.05)
sys.exit(max(task.returncode for task in tasks))
"""
MEASURING = {
    "margin": 0.01,
    "confidence": 0.99,
    "case_seconds": 0.3,
    "pilot_rounds": 10,
    "implementation_seconds": 120,
    "throttle_retries": 0,
}


@pytest.fixture
def job_of_two_nodes(tmp_path, monkeypatch):
    """A Slurm job on n1 and n2; returns the file of the srun commands that were seen."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("scontrol", f"#!/bin/sh\n{SCONTROL}"), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "workflow"))
    monkeypatch.setenv("SEEN_SRUN", str(tmp_path / "seen"))
    monkeypatch.setenv("APEXBENCH_THREADS", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "9")  # of another step
    return tmp_path / "seen"


def training(tmp_path, **changed):
    pytest.importorskip("torch")
    from test_transformer_ddp import MODEL

    case = {"model": MODEL, "recipes": ["fp32+torch+fused"], "gpus": 1, "nodes": 2}
    case |= {"loss_steps": 12, "seeds": 1, **changed}
    request = Request("transformer", "cpu", 0, MEASURING, {}, cases=[case])
    out = tmp_path / "records" / "index.json"
    supervisor.run(request, out, tmp_path / "log.txt")
    [record] = records.read_index(out)
    return record


def test_two_nodes_learn_as_one_process_and_the_record_names_both(tmp_path, job_of_two_nodes):
    record = training(tmp_path)
    assert record.case == "mini on 2 GPUs of 2 nodes"
    cells = {cell.implementation: cell for cell in record.cells}
    assert [cell.status for cell in cells.values()] == ["ok", "ok"], cells
    alone, both = (cells[f"fp32+torch+fused{flag}"].details for flag in ("", "+ddp"))
    assert (alone["gpus"], both["gpus"]) == (1, 2)
    assert alone["tokens_per_step"] == both["tokens_per_step"]
    assert both["held_out_loss"] == pytest.approx(alone["held_out_loss"], rel=1e-5)
    named = [(entry["rank"], entry["node"]) for entry in record.provenance["ranks"]]
    assert named == [(0, "n1"), (1, "n2")]
    assert record.provenance["slurm_node"] == record.provenance["node"] == "n1"
    (seen,) = job_of_two_nodes.read_text().splitlines()
    assert seen.startswith(
        "--nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 --overlap --export=ALL "
        "--cpus-per-task=1 "
    )
    assert " ranks 1 2 " in seen
    assert not list((tmp_path / ".cache").glob("apexbench-*"))
