"""The same failures on a Slurm with slurmdbd, watched with sacct, and an image built by a job."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import accounting
import pytest
from cluster import SlurmProject, ask, python_with_toys, running_slurm

from conftest import require

pytestmark = pytest.mark.soak
WATCH = {
    "slurm-status-command: squeue": "slurm-status-command: sacct",
    "  slurm_account: none ": f"  slurm_account: {accounting.ACCOUNT} ",
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Slurm with accounting on this machine while these tests run."""
    with running_slurm(tmp_path_factory.mktemp("slurm"), "accounting") as folder:
        yield folder


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with_toys(tmp_path_factory.mktemp("python") / "venv")


def states(*jobs: str) -> dict[str, str]:
    """What sacct says became of these jobs."""
    told = ask("sacct", "-X", "--noheader", "--parsable2", "-oJobID,State", f"-j{','.join(jobs)}")
    rows = [line.split("|") for line in told.splitlines()]
    return {job: state.split()[0] for job, state in rows}


def kill(job: str) -> None:
    """End every process of a job at once, as a person or the kernel would."""
    mark = f"\0SLURM_JOB_ID={job}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in b"\0" + (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def test_what_sacct_knows_of_lost_jobs_is_reported_and_the_rest_resumes(slurm, python, tmp_path):
    require(accounting.keeps_limits(), "no cgroups of version 1, with which Slurm limits memory")
    short = "  toy_b:\n    runtime: 1\n  toy_c:\n    mem_mb: 900\n"
    project = SlurmProject(tmp_path / "bench", python, short)
    project.edit(WATCH | {"  mem_mb: 300 ": "  mem_mb: 2000 "})
    hold = project.folder / "hold"
    hold.touch()
    kept, held = {"name": "kept"}, {"name": "held", "hold": str(hold)}
    greedy = {"name": "greedy", "hoard": 3 << 30}
    project.measure(toy_a=[kept, held], toy_b=[kept, held], toy_c=[kept, greedy])
    names = [f"results/records/toy_{letter}/index.json" for letter in "abc"]
    running = project.start("--", *names)
    try:
        killed = project.wait_until_held("toy_a")
    except AssertionError:
        running.kill()
        raise AssertionError(running.communicate()[0]) from None
    # Not cancelled: the plugin waits for ever for "CANCELLED by 0" (docs/slurm.md).
    kill(killed)
    told = running.communicate(timeout=400)[0]
    assert running.returncode != 0, told
    jobs = {rule: job for job, rule in project.jobs().items()}
    found = states(*jobs.values())
    assert found[jobs["toy_a"]] == "FAILED"
    assert found[jobs["toy_b"]] == "TIMEOUT"
    assert f"toy_a: Slurm job {jobs['toy_a']} ended as FAILED on node1 (" in told
    assert f"toy_b: Slurm job {jobs['toy_b']} ended as TIMEOUT on node1 (limit 00:01:00)" in told
    assert f"toy_c: Slurm job {jobs['toy_c']} ended as OUT_OF_MEMORY on node1 (memory 900M)" in told
    assert "raise mem_mb for toy_c under set-resources in the profile" in told

    hold.unlink()
    project.edit({"    mem_mb: 900\n": "    mem_mb: 6000\n"})
    resumed = project.run("--", *names)
    assert resumed.returncode == 0, resumed.stdout
    assert [project.index(f"toy_{letter}")["measured"] for letter in "ab"] == [1, 1]


def test_an_image_that_the_profile_gives_to_a_node_is_a_slurm_job(slurm, python, tmp_path):
    project = SlurmProject(tmp_path / "bench", python)
    project.edit(WATCH)
    sif = tmp_path / "apexbench.sif"
    sif.touch()
    project.configure(f"image: {{sif: {sif}, build_on: node}}\nruntime: apptainer\n")
    done = project.run("--", "results/image.json")
    assert done.returncode == 0, done.stdout
    [(job, rule)] = project.jobs("COMPLETED").items()
    assert (rule, states(job)) == ("image", {job: "COMPLETED"})
    assert (project.folder / "results/image.json").is_file()
