"""Training over several nodes: what is asked of Slurm, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess

import pytest

from apexbench import owner
from apexbench.cluster import steps
from apexbench.config import load
from apexbench.errors import UserError
from apexbench.jobs import ranks
from apexbench.jobs.child import MeasuringOnNodes
from apexbench.machine import host
from apexbench.machine.gpu import Gpu
from apexbench.measuring.beat import Beat
from apexbench.plan import Plan
from apexbench.runtimes.apptainer import Apptainer
from apexbench.runtimes.decide import NATIVE, Decision
from apexbench.runtimes.runtime import Job
from conftest import ROOT
from pipeline import Project, python_with_toy

# What the job 7 of nodes n1 and n2 is told; both are this machine.
SCONTROL = """\
case "$*" in
  *"show job"*) echo 'JobId=7 NodeList=n[1-2] NumNodes=2 CPUs/Task=1 Comment=NodeListless' ;;
  *"show hostnames"*) printf 'n1\\nn2\\n' ;;
  *"show node"*) echo 'NodeName=n1 NodeAddr=127.0.0.1 Port=1' ;;
esac
"""


@pytest.fixture
def job_of_two_nodes(tmp_path, monkeypatch):
    """The Slurm job of n1 and n2 around this process."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(f"#!/bin/sh\n{SCONTROL}")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def test_a_rank_that_dies_on_the_second_node_is_told_by_its_own_signal(tmp_path):
    (tmp_path / "status-0").write_text("20.5 1 1")
    (tmp_path / "status-1").write_text("20.25 -11 0")
    assert ranks.first_failure(tmp_path) == (-11, False)
    (tmp_path / "status-1").write_text("21.25 -11 0")
    assert ranks.first_failure(tmp_path) == (1, True)
    (tmp_path / "status-1").unlink()
    assert ranks.first_failure(tmp_path) == (1, True)
    assert ranks.first_failure(tmp_path / "none") is None


def test_memory_that_ended_on_another_node_is_told_from_there(tmp_path, monkeypatch):
    """The count of the second node's cgroup rises; this one's would say nothing."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(ranks, "die_with_parent", lambda: None)
    monkeypatch.setattr(ranks, "_torchrun", lambda words: -9)
    (tmp_path / "job.json").write_text('{"request": {"device": "cpu"}}')
    beat = Beat(tmp_path / "beat")
    for counts, memory_ended in (([0, 1], True), ([1, 1], False)):
        monkeypatch.setattr(host, "oom_kills", functools.partial(next, iter(counts)))
        assert ranks.on_a_node(1, 2, 1, ["127.0.0.1"] * 2, tmp_path / "job.json") == 1
        srun = subprocess.Popen(["false"])
        process = MeasuringOnNodes(srun, -1, beat, tmp_path, kills=None)
        assert (process.status(), process.memory_ended()) == (-9, memory_ended)


def test_outside_of_a_job_or_on_too_few_nodes_is_one_sentence(job_of_two_nodes, monkeypatch):
    assert steps.nodes(2) == steps.Nodes(("n1", "n2"), ("127.0.0.1", "127.0.0.1"), 1)
    with pytest.raises(UserError, match=r"nodes is 3, but Slurm job 7 has 2 \(n\[1-2\]\)"):
        steps.nodes(3)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UserError, match="this is no Slurm job: run `make slurm`"):
        steps.nodes(2)


def test_a_step_has_the_jobs_identity_and_not_another_steps_defaults(monkeypatch):
    way = steps.entrance(["enter", "--"], {"CUDA_VISIBLE_DEVICES": "0,1"})
    given = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SRUN_CPU_BIND": "x", "HOME": "/root"}
    # A native run shows the first node's GPUs by UUID, which mean nothing on the second.
    found = steps.variables({**given, **way, "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"})
    expected = {"SLURM_JOB_ID": "7", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert found == {**expected, **way}
    monkeypatch.setenv(steps.STEP, way[steps.STEP])
    words = steps.argv(steps.Nodes(("a", "b"), ("a", "b"), 8), ["ranks", "4"])
    assert " ".join(words) == (
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 --overlap --export=ALL "
        "--cpus-per-task=8 enter -- ranks 4"
    )
    assert "CUDA_VISIBLE_DEVICES" not in steps.variables(
        {"CUDA_VISIBLE_DEVICES": "GPU-1"} | steps.entrance([], {})
    )


def planned(tmp_path, runtime=NATIVE, **settings):
    (tmp_path / "config.yaml").write_text("{}\n")
    own = {"models": ["tiny"], "recipes": ["scaling"], "gpus": 4, "nodes": 2}
    config = load(tmp_path, {"preset": "quick", "transformer": own, "device": "cpu", **settings})
    return Plan(config, tmp_path, "", runtime)


def test_a_plan_asks_for_nodes_tasks_and_every_gpu(tmp_path):
    plan = planned(tmp_path, cluster="slurm")
    plan.check_nodes()
    assert list(plan.models) == ["tiny-2x4"]
    assert (plan.nodes("tiny-2x4"), plan.tasks("tiny-2x4"), plan.gpus("tiny-2x4")) == (2, 2, 8)
    assert " --nodes 2 -- " in f"{plan.training_command('tiny-2x4')} "
    one = planned(tmp_path, cluster="slurm", transformer={"models": ["tiny"], "gpus": 1})
    assert (one.nodes("tiny"), one.tasks("tiny"), one.gpus("tiny")) == (1, None, 1)
    assert one.training_command("tiny") == one.command(measuring=True)


def test_several_nodes_without_slurm_or_network_are_refused(tmp_path):
    with pytest.raises(UserError, match="only Slurm starts one training on several nodes: run"):
        planned(tmp_path).check_nodes()
    with pytest.raises(UserError, match="a docker container has no network"):
        planned(tmp_path, Decision("docker", ""), cluster="slurm").check_nodes()
    planned(tmp_path, Decision("apptainer", ""), cluster="slurm").check_nodes()


def test_a_profile_that_allows_fewer_gpus_is_refused(tmp_path):
    plan = planned(tmp_path, cluster="slurm")
    with pytest.raises(UserError, match=r"tiny-2x4 trains on 8 GPUs, but .* set gpu: 8 there"):
        owner._begin_on_cluster(plan, 4)


def test_only_such_a_job_gives_apptainer_the_network():
    job = Job(("machine",), ROOT, ROOT / "r", ROOT / "s", "name", image="/x.sif")
    assert "--network=none" in Apptainer().argv(job)
    several = dataclasses.replace(job, network=True)
    assert not [word for word in Apptainer().argv(several) if "net" in word]


def test_gpus_of_two_models_or_too_few_are_refused(monkeypatch):
    pytest.importorskip("torch")
    from apexbench.transformer.distributed import check_alike

    places = [{"rank": n, "node": f"n{n}", "device_name": name} for n, name in enumerate("AAB")]
    check_alike(places[:2])
    with pytest.raises(UserError, match="rank 2 on n2 has B, rank 0 on n0 has A: ask for nodes"):
        check_alike(places)
    one = Gpu(0, "GPU-1", "NVIDIA H200", None, "9.0", None)
    monkeypatch.setattr("apexbench.machine.gpu.visible_gpus", lambda: [one])
    ranks._check_gpus(1, 2)
    with pytest.raises(UserError, match=r"given 1 GPUs for 4 ranks .*--gpus-per-node=4.* to 8 at"):
        ranks._check_gpus(4, 2)


def test_the_interface_is_the_one_that_leads_there():
    assert ranks.interface("127.0.0.1") == "lo"
    assert ranks.interface("no-such-host.invalid") is None


@pytest.mark.workflow
@pytest.mark.parametrize("where", ["login", "node"])
def test_the_image_is_recorded_where_the_profile_says(tmp_path, where):
    """Stand-ins for Slurm's commands: what counts is whether the image becomes a job."""
    pytest.importorskip("snakemake_executor_plugin_slurm")
    tools, seen = tmp_path / "bin", tmp_path / "seen"
    tools.mkdir()
    for name, text in {
        "sbatch": f'echo "$*" >> {seen}; echo refused >&2; exit 1',
        **dict.fromkeys(("sacctmgr", "scontrol", "sinfo", "squeue", "sshare"), "true"),
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    python = python_with_toy(tmp_path / "venv")  # Slurm takes no spaces, which a clone may have
    project = Project(tmp_path / "bench", python)
    sif = tmp_path / "apexbench.sif"
    sif.touch()
    project.configure(f"image: {{sif: {sif}, build_on: {where}}}\nruntime: apptainer\n")
    project.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    quick = ["--slurm-init-seconds-before-status-checks", "1"]
    asked = ["--workflow-profile", "profiles/slurm", *quick, "--", "results/image.json"]
    done = project.run(*asked, timeout=50)
    made = project.folder / "results/image.json"
    if where == "login":
        assert done.returncode == 0, done.stdout
        assert made.is_file()
        assert not seen.exists()
    else:
        assert done.returncode != 0
        assert not made.exists()
        assert "--comment rule_image" in seen.read_text()
        assert "image: Slurm did not take its job (refused)" in done.stdout
