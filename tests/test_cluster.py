"""A run on a cluster: its profile, what is asked of the login node, what a job checks."""

from __future__ import annotations

import dataclasses
import os
import types

import pytest
import yaml

from apexbench import execute, owner, plan
from apexbench.cluster import allocation, fingerprint
from apexbench.config import loader
from apexbench.errors import UserError
from apexbench.jobs import provenance
from apexbench.jobs.request import Request
from apexbench.machine.gpu import Gpu
from conftest import ROOT

PROFILE = ROOT / "profiles/slurm/config.yaml"
H200 = Gpu(0, "GPU-1", "NVIDIA H200", None, "9.0", None)


def request_for(device: str = "cuda", **changed) -> Request:
    environment = fingerprint.planned({"python": "3.11.7", "torch": "2.13.0"}, device)
    values = {
        "component": "layer_norm",
        "device": device,
        "seed": 0,
        "measuring": {},
        "environment": environment,
        "cases": [{"width": 8}],
    }
    return Request(**{**values, **changed})


def test_the_profile_repeats_every_safety_key_of_the_default_one():
    ours = yaml.safe_load(PROFILE.read_text())
    default = yaml.safe_load((ROOT / "profiles/default/config.yaml").read_text())
    del default["shared-fs-usage"]  # no safety: on a cluster that cache lies on a shared disk
    assert default.keys() <= ours.keys()
    assert {key: ours[key] for key in default if key != "resources"} == {
        key: value for key, value in default.items() if key != "resources"
    }
    assert default["resources"].keys() == ours["resources"].keys()
    assert ours["config"].keys() >= {"cluster", "device", "preset", "gpu_model"}


def test_the_profiles_config_is_valid(tmp_path):
    (tmp_path / "config.yaml").write_text("{}\n")
    stated = yaml.safe_load(PROFILE.read_text())["config"]
    config = loader.load(tmp_path, {key: str(value) for key, value in stated.items()})
    assert (config.cluster, config.device, config.preset) == ("slurm", "cuda", "full")
    assert config.gpu_model == "NVIDIA H200"
    # What Snakemake makes of `gpu_model: null` in a profile.
    assert loader.load(tmp_path, {**stated, "gpu_model": "None"}).gpu_model is None


def test_auto_is_refused_where_jobs_run_elsewhere(tmp_path):
    (tmp_path / "config.yaml").write_text("{}\n")
    with pytest.raises(UserError, match="device is 'auto', but the jobs run on other machines"):
        loader.load(tmp_path, {"cluster": "slurm"}, has_gpu=True)


def test_a_plug_in_that_nobody_asked_for_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("{}\n")
    known = loader.schemas.root()["properties"]["components"]["properties"]
    monkeypatch.setitem(known, "toy", {"$ref": "#/$defs/plugin"})
    monkeypatch.setattr(loader.schemas, "plugins", lambda: ("toy",))
    assert "toy" not in loader.load(tmp_path, {"preset": "quick"}).components


def test_a_plan_for_a_cluster_asks_nothing_of_the_login_node(monkeypatch):
    monkeypatch.setattr(
        fingerprint,
        "environment",
        lambda device: {"driver": "580.1", "gpus": "1x NVIDIA H200", "cxx": "g++ 12", "cpu": None},
    )
    planned = request_for()
    assert set(planned.environment.values()) == {"3.11.7", "2.13.0", fingerprint.ON_NODE}
    settled = fingerprint.settled(planned)
    assert settled.environment == {
        "python": "3.11.7",
        "torch": "2.13.0",
        "driver": "580.1",
        "gpus": "1x NVIDIA H200",
        "cxx": "g++ 12",
    }
    local = dataclasses.replace(planned, environment=settled.environment)
    assert fingerprint.settled(local) is local
    assert [task.key for task in settled.tasks()] == [task.key for task in local.tasks()]


@pytest.mark.parametrize("found", ["NVIDIA H20", "NVIDIA H200 NVL", "NVIDIA H100"])
@pytest.mark.parametrize("how", [{"gpu_model": "NVIDIA H200"}, {"gpus": "2x NVIDIA H200"}])
def test_another_gpu_than_the_one_stated_is_refused(monkeypatch, found, how):
    monkeypatch.setattr("apexbench.machine.gpu.visible_gpus", lambda: [H200])
    stated = request_for(
        gpu_model=how.get("gpu_model"), environment={"gpus": how.get("gpus", "1x NVIDIA H200")}
    )
    assert provenance.gpu(stated)["device_name"] == "NVIDIA H200"
    other = dataclasses.replace(H200, name=found)
    monkeypatch.setattr("apexbench.machine.gpu.visible_gpus", lambda: [other])
    with pytest.raises(UserError, match=r"planned for NVIDIA H200 but .* has NVIDIA H"):
        provenance.gpu(stated)


def test_no_gpu_at_all_is_refused_too(monkeypatch, tmp_path):
    """But for a run that states the CPU, or whose jobs go elsewhere."""
    monkeypatch.chdir(tmp_path)
    for variable in ("APEXBENCH_THREADS", "APEXBENCH_RUN_ID"):  # which a plan sets where unset
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("apexbench.machine.environment.visible_gpus", list)
    (tmp_path / "config.yaml").write_text("gpu_model: NVIDIA H200\npreset: quick\n")
    with pytest.raises(SystemExit) as caught:
        plan.load(tmp_path, {})
    assert str(caught.value) == (
        "apexbench: gpu_model is 'NVIDIA H200', but no GPU can be used here (no NVIDIA GPU is "
        "visible): remove gpu_model, or set device: cpu."
    )
    stated = plan.load(tmp_path, {"device": "cpu"})
    assert stated.config.device == "cpu"
    assert stated.why_device == "The configuration asks for the CPU."
    assert plan.load(tmp_path, {"cluster": "slurm", "device": "cuda"}).config.device == "cuda"


def test_a_stated_cpu_is_why(monkeypatch, tmp_path):
    """Also beside a GPU that could be used."""
    monkeypatch.chdir(tmp_path)
    for variable in ("APEXBENCH_THREADS", "APEXBENCH_RUN_ID"):  # which a plan sets where unset
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("apexbench.machine.environment.visible_gpus", lambda: [H200])
    monkeypatch.setattr("apexbench.machine.environment._why_not_cuda", lambda inside: None)
    (tmp_path / "config.yaml").write_text("device: cpu\n")
    assert plan.load(tmp_path, {}).why_device == "The configuration asks for the CPU."


def test_the_allocation_is_read_from_slurms_variables():
    assert allocation.allocation({}) is None
    given = allocation.allocation(
        {
            "SLURM_JOB_ID": "12",
            "SLURMD_NODENAME": "gpu07",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_GPUS": "0,3",
            "SLURM_STEP_GPUS": "3",
            "SLURM_RESTART_COUNT": "1",
        }
    )
    assert given is not None
    assert given.to_dict() == {
        "slurm_job": "12",
        "slurm_node": "gpu07",
        "slurm_partition": "gpu",
        "slurm_gpus": "3",
        "slurm_restarts": 1,
    }
    assert allocation.node({"APEXBENCH_NODE": "host"}) == "host"
    assert allocation.node({}) == os.uname().nodename
    assert allocation.threads({"SLURM_CPUS_PER_TASK": "1"}) == 1


def test_a_job_without_a_gpu_takes_none(monkeypatch):
    with pytest.raises(UserError, match="Slurm job 12 was given no GPU"):
        allocation.gpu_environment({"SLURM_JOB_ID": "12"})
    assert allocation.gpu_environment({}) == {}
    given = {"SLURM_JOB_ID": "12", "CUDA_VISIBLE_DEVICES": "1"}
    assert allocation.gpu_environment(given) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match="no GPU"):
        execute.execute(["machine"], "native", device="cuda")


def test_two_jobs_of_a_node_lock_the_gpu_that_slurm_gave_each(monkeypatch):
    other = dataclasses.replace(H200, index=1, uuid="GPU-2", name="NVIDIA A100")
    monkeypatch.setattr("apexbench.machine.gpu.gpus", lambda: [H200, other])
    monkeypatch.setattr("apexbench.machine.gpu.nvml", lambda: object())
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "removed again after this test")
    del os.environ["CUDA_DEVICE_ORDER"]
    keys = []
    for number in ("0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", number)
        keys += execute._keys("cuda", execute._gpus("cuda"))
    assert keys == ["GPU-1", "GPU-2"]


def test_a_run_whose_config_lost_the_profile_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("device: cpu\n")
    plan = owner.Plan(loader.load(tmp_path), tmp_path, "")
    with pytest.raises(UserError, match="--config replaces the profile's whole"):
        owner._begin_on_cluster(plan)


def test_a_cpu_build_of_torch_is_refused_for_a_gpu(monkeypatch, tmp_path):
    (tmp_path / "config.yaml").write_text("{cluster: slurm, device: cuda}\n")
    plan = owner.Plan(loader.load(tmp_path), tmp_path, "")
    build = types.SimpleNamespace(version="2.13.0+cpu", cuda=None)
    monkeypatch.setattr(owner, "torch_build", lambda: build)
    with pytest.raises(UserError, match=r"torch 2.13.0\+cpu cannot use a GPU: remove .venv"):
        owner._begin_on_cluster(plan)
