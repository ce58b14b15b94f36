"""The workflow through profiles/slurm on a real Slurm: jobs, GPUs, failures, kills, resume."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import slurm_toys
from cluster import SlurmProject, Watcher, ask, python_with_toys, running_slurm

from apexbench import records

CASES = [{"name": "a"}, {"name": "b"}]
INDEXES = ["--", *(f"results/records/{name}/index.json" for name in slurm_toys.NAMES)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Slurm on this machine while these tests run."""
    with running_slurm(tmp_path_factory.mktemp("slurm")) as folder:
        yield folder


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with_toys(tmp_path_factory.mktemp("python") / "venv")


@pytest.fixture(scope="module")
def faulty(slurm, python, tmp_path_factory):
    """A run with one job cancelled and one that will pass its time limit, under way meanwhile."""
    made = SlurmProject(
        tmp_path_factory.mktemp("faulty") / "bench", python, "  toy_b:\n    runtime: 1\n"
    )
    hold = made.folder / "hold"
    hold.touch()
    kept, held = {"name": "kept"}, {"name": "held", "hold": str(hold)}
    made.measure(toy_a=[kept], toy_b=[kept, held], toy_c=[kept, held])
    running = made.start(*INDEXES)
    cancelled = made.wait_until_held("toy_c")
    ask("scancel", cancelled)
    yield made, hold, running, cancelled
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def finished(faulty, slurm, python, tmp_path_factory):
    """An undisturbed run of three measuring jobs, at most two GPUs at a time."""
    made = SlurmProject(tmp_path_factory.mktemp("finished") / "bench", python)
    made.edit({"  gpu: 8\n": "  gpu: 2\n"})
    made.measure(toy_a=CASES, toy_b=CASES, toy_c=CASES)
    with Watcher(made) as watcher:
        done = made.run()
    assert done.returncode == 0, done.stdout
    return made, done.stdout, watcher.samples


def test_every_measuring_job_went_through_slurm(finished):
    project, told, _ = finished
    jobs = project.jobs("COMPLETED")
    assert sorted(jobs.values()) == ["machine", "toy_a", "toy_b", "toy_c"]
    assert "its jobs go to Slurm" in told
    for job, rule in jobs.items():
        fields = ask("scontrol", "--oneliner", "show", "job", job)
        assert "TresPerJob=gres:gpu:1 " in f"{fields} "
        assert f"TimeLimit={'00:10:00' if rule == 'machine' else '01:00:00'} " in fields
        assert "JobState=COMPLETED" in fields
    for name in ("toy_a", "toy_b", "toy_c"):
        for path in project.records(name).values():
            place = records.read(path).provenance
            assert jobs[place["slurm_job"]] == name
            assert place["node"] == place["slurm_node"] == "node1"
            assert place["slurm_partition"] == "gpu"
            assert place["slurm_gpus"] in {"0", "1", "2", "3"}
    page = (project.folder / "results/report.html").read_text()
    assert "Slurm jobs" in page
    assert (project.folder.parent / "scratch/apexbench/native").is_dir()


def test_what_the_login_node_cannot_know_is_asked_on_the_node(finished):
    project, *_ = finished
    path = next(iter(project.records("toy_a").values()))
    environment = records.read(path).environment
    assert environment["threads"] == "1"
    assert environment["cpu"]
    assert "asked on the node" not in path.read_text()


def test_jobs_share_no_gpu_and_no_more_are_used_than_allowed(finished):
    _, _, samples = finished
    assert any(len(held) == 2 for held in samples), "no two jobs ran at once"
    for held in samples:
        assert len(held) <= 2
        assert len(set(held.values())) == len(held), f"two jobs on one GPU: {held}"


def test_a_second_run_sends_nothing(finished):
    project, *_ = finished
    before = project.jobs()
    again = project.run()
    assert again.returncode == 0, again.stdout
    assert "Nothing to be done" in again.stdout
    assert project.jobs() == before


def test_config_on_the_command_line_without_the_profiles_own_is_one_sentence(finished):
    project, *_ = finished
    refused = project.run("--forceall", "--config", "device=cpu")
    assert refused.returncode != 0
    assert "--config replaces the profile's whole `config:` list" in refused.stdout
    assert "Traceback" not in refused.stdout


def test_gres_and_two_gpus_run_a_job_once(slurm, python, tmp_path):
    gres = "  toy_a:\n    gpu: 0\n    gres: gpu:fake:1\n  toy_b:\n    gpu: 2\n"
    project = SlurmProject(tmp_path / "bench", python, gres)
    project.edit({"slurm-keep-successful-logs: false": "slurm-keep-successful-logs: true"})
    project.measure(toy_a=CASES[:1], toy_b=CASES[:1])
    targets = [f"results/records/{name}/index.json" for name in ("toy_a", "toy_b")]
    done = project.run("--", *targets)
    assert done.returncode == 0, done.stdout
    given = {}
    for job, rule in project.jobs("COMPLETED").items():
        told = (project.folder / f".snakemake/slurm_logs/rule_{rule}/{job}.log").read_text()
        assert told.count("done, 1 measured") == 1
        record = records.read(next(iter(project.records(rule).values())))
        given[rule] = len(record.provenance["slurm_gpus"].split(","))
    assert given == {"toy_a": 1, "toy_b": 2}


def test_a_cancelled_run_cancels_its_jobs_and_a_killed_one_is_taken_over(slurm, python, tmp_path):
    project = SlurmProject(tmp_path / "bench", python)
    hold = tmp_path / "hold"
    hold.touch()
    project.measure(toy_a=[{"name": "kept"}, {"name": "held", "hold": str(hold)}])
    target = ("--", "results/records/toy_a/index.json")

    interrupted = project.start(*target)
    first = project.wait_until_held("toy_a")
    os.killpg(interrupted.pid, signal.SIGINT)
    interrupted.communicate(timeout=60)
    end = time.monotonic() + 20
    while (left := project.jobs("PENDING", "RUNNING", "COMPLETING")) and time.monotonic() < end:
        time.sleep(0.2)
    assert left == {}

    (project.folder / "results/logs/toy_a.log").unlink()
    killed = project.start(*target)
    job = project.wait_until_held("toy_a")
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    assert job in project.jobs("RUNNING")

    resumed = project.start(*target)
    assert project.wait_for("toy_a", "CANCELLED,FAILED", but=first) == job
    hold.unlink()
    told = resumed.communicate(timeout=120)[0]
    assert resumed.returncode == 0, told
    assert f"ending the Slurm jobs that an earlier run left here: {job}" in told
    assert project.index("toy_a")["measured"] == 1
    assert len(project.records("toy_a")) == 2


def test_a_job_over_its_limit_and_a_cancelled_one_are_named_and_resumed(faulty):
    project, hold, running, cancelled = faulty
    told = running.communicate(timeout=240)[0]
    assert running.returncode != 0
    late = next(job for job, rule in project.jobs("TIMEOUT").items() if rule == "toy_b")

    assert project.index("toy_a")["measured"] == 1
    assert f"toy_b: Slurm job {late} ended as TIMEOUT on node1 (limit 00:01:00)" in told
    assert "raise runtime for toy_b under set-resources in the profile" in told
    assert f"toy_c: Slurm job {cancelled} ended as CANCELLED" in told
    log = project.folder / f".snakemake/slurm_logs/rule_toy_b/{late}.log"
    assert f"log: {log}" in told
    assert log.is_file()
    page = (project.folder / "results/partial/report.html").read_text()
    assert f"Slurm job {late} ended as TIMEOUT" in page
    assert "Traceback" not in told

    kept = {path: path.stat().st_mtime_ns for path in project.folder.rglob("toy_*-kept-*.json")}
    assert len(kept) == 3
    hold.unlink()
    resumed = project.run(*INDEXES)
    assert resumed.returncode == 0, resumed.stdout
    for name in ("toy_b", "toy_c"):
        assert project.index(name)["measured"] == 1
        assert len(project.records(name)) == 2
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    assert not (project.folder / "results/lost.json").exists()


@pytest.mark.soak
def test_the_whole_preset_quick_goes_through_slurm(slurm, tmp_path):
    project = SlurmProject(tmp_path / "bench", Path(sys.executable))
    project.edit({"  mem_mb: 300 ": "  mem_mb: 4000 ", "    mem_mb: 300\n": "    mem_mb: 4000\n"})
    project.configure("report: {reference: false}\n")
    done = project.run(timeout=3600)
    assert done.returncode == 0, done.stdout
    jobs = project.jobs("COMPLETED")
    found = set()
    for index in records.indexes(project.folder / "results"):
        for record in records.read_index(index):
            assert jobs[record.provenance["slurm_job"]] == record.component
            found.add(record.component)
    assert found >= {"ceiling", "optimizer", "layer_norm", "rms_norm", "amp", "transformer"}
    assert set(jobs.values()) == found | {"machine"}
    assert (project.folder / "results/report.pdf").read_bytes().startswith(b"%PDF")
