"""Compilers, container engines and the host, with programs and files made for the test."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from apexbench import plan
from apexbench.jobs import worker
from apexbench.machine import describe, engines, host, install, toolchain


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """An otherwise empty PATH (with /bin's sh) and no compiler variables."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "CC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    clear()
    yield folder
    clear()


def clear() -> None:
    for cached in (toolchain.cxx_compiler, toolchain.c_compiler, toolchain.nvcc):
        cached.cache_clear()


def test_no_cxx_compiler(programs):
    assert toolchain.cxx_compiler() is None
    expected = ("needs a C++ compiler", "sudo apt-get install g++")
    assert toolchain.compile_missing("cpu") == expected
    assert toolchain.compile_missing("cuda")[0] == "needs a C compiler"


def test_cxx_as_torch_compile_chooses_it(programs, monkeypatch):
    program(programs, "clang++", "echo clang version 19")
    assert toolchain.compile_missing("cpu")[1] == "export CXX=clang++"
    program(programs, "g++", "echo 'g++ (Debian) 12.2.0'; echo more")
    clear()
    assert toolchain.cxx_compiler().identity == "g++ (Debian) 12.2.0"
    monkeypatch.setenv("CXX", "clang++")
    clear()
    assert toolchain.cxx_compiler().identity == "clang version 19"
    monkeypatch.setenv("CXX", "gone++")
    clear()
    assert toolchain.cxx_compiler() is None
    assert "gone++" in toolchain.compile_missing("cpu")[1]


def test_python_headers_are_needed_too(programs, monkeypatch):
    program(programs, "g++", "echo g++ 12")
    monkeypatch.setattr(toolchain, "python_headers", lambda: None)
    assert toolchain.compile_missing("cpu")[1] == "sudo apt-get install python3-dev"


def test_nvcc_and_the_mismatch_names_both_versions(programs, monkeypatch):
    program(programs, "nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    assert toolchain.nvcc().version == "12.4"
    assert toolchain.nvcc().build == "12.4.131"
    build = install.TorchBuild("2.11.0+cu130", "13.0", None, Path("torch"))
    monkeypatch.setattr(toolchain, "torch_build", lambda: build)
    assert "nvcc is 12.4 but torch was built with CUDA 13.0" in toolchain.nvcc_mismatch()
    program(programs, "nvcc", "echo 'release 13.0, V13.0.88'")
    clear()
    assert toolchain.nvcc_mismatch() is None


def test_a_program_that_does_not_answer(programs):
    slow = program(programs, "slow", "exec /bin/sleep 30")
    assert toolchain.ask_program(str(slow), time_limit=0.2) == (None, "no answer within 0.2 s")
    assert toolchain.ask_program("gone")[0] is None


@pytest.mark.parametrize(
    ("body", "usable", "words", "remedy"),
    [
        ("echo 28.2.2", True, None, None),
        (
            "echo 'permission denied while trying to connect to the docker API' >&2; exit 1",
            False,
            "docker group",
            "usermod -aG docker",
        ),
        (
            "echo 'Cannot connect to the Docker daemon at x' >&2; exit 1",
            False,
            "daemon",
            "systemctl",
        ),
        ("echo surprise >&2; exit 1", False, "surprise", "info"),
    ],
)
def test_docker(programs, body, usable, words, remedy):
    program(programs, "docker", body)
    found = engines.engine("docker")
    assert found.usable is usable
    if words:
        assert words in found.problem
        assert remedy in found.remedy
    else:
        assert found.version == "28.2.2"


def test_engines_that_are_not_installed(programs):
    found = engines.engines()
    assert [engine.name for engine in found] == ["docker", "podman", "apptainer"]
    assert {engine.problem for engine in found} == {"not installed"}


def test_rootless_podman_without_subordinate_ids(programs, monkeypatch):
    program(programs, "podman", "echo podman version 4.3.1")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setenv("USER", "nobody-here")
    found = engines.engine("podman")
    assert found.version == "4.3.1"
    assert "/etc/subuid" in found.problem


def test_singularity_counts_as_apptainer(programs):
    program(programs, "singularity", "echo singularity-ce version 4.1.0")
    assert engines.engine("apptainer").version == "4.1.0"


def test_cores_and_memory_follow_the_cgroup(monkeypatch):
    def limits(controller: str, v1: str, v2: str) -> list[str]:
        return {"cpu": ["max 100000", "150000 100000"], "memory": ["max", "1048576"]}[controller]

    monkeypatch.setattr(host, "_cgroup_values", limits)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert host.cores() == 1
    assert host.memory_bytes() == 1048576


@pytest.mark.parametrize(
    ("cgroup", "files", "kills"),
    [
        ("4:memory:/a/b", {"memory/a/b/memory.oom_control": "under_oom 0\noom_kill 2"}, 2),
        ("0::/a", {"a/memory.events": "low 0\noom 9\noom_kill 3\noom_group_kill 7"}, 3),
        ("0::/a/b", {"a/memory.events": "oom_kill 4", "memory.events": "oom_kill 9"}, 4),
        ("0::/", {}, 5),
        ("4:memory:/", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0"}, 5),
    ],
    ids=["v1", "v2", "the nearest level", "no cgroup", "a kernel before 4.13"],
)
def test_the_kernels_kills_for_lack_of_memory_are_counted(
    monkeypatch, tmp_path, cgroup, files, kills
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    given = {"/proc/self/cgroup": cgroup, "/proc/vmstat": "nr_free_pages 8\noom_kill 5"}
    read = host._read
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_read", lambda p: given[p] if p in given else read(p))
    assert host.oom_kills() == kills
    given["/proc/vmstat"] = ""
    assert host.oom_kills() == (kills if kills != 5 else None)


def test_cgroup_limits_of_every_level_are_read(monkeypatch, tmp_path):
    inner = tmp_path / "slice" / "job"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("200000 100000\n")
    read = host._read
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    lines = "0::/slice/job"
    monkeypatch.setattr(host, "_read", lambda p: lines if p == "/proc/self/cgroup" else read(p))
    assert host._cgroup_values("cpu", "cpu.cfs_quota_us", "cpu.max") == [
        "max 100000",
        "200000 100000",
    ]


def test_writable_or_why_not(tmp_path):
    assert host.why_not_writable(tmp_path / "not" / "there") is None
    file = tmp_path / "file"
    file.touch()
    assert host.why_not_writable(file) == f"{file} is not a folder"
    assert host.free_disk_bytes(tmp_path / "not" / "there") > 0
    assert host.why_not_writable("/proc/self") is not None


@pytest.mark.parametrize("asked", ["abc", "1e3", "-1", "²", "9" * 30])
def test_what_is_no_number_of_threads_gets_a_sentence(monkeypatch, tmp_path, asked):
    """Before the first job, and in a measuring process that somebody starts without Snakemake."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("APEXBENCH_THREADS", asked)
    sentence = f"APEXBENCH_THREADS is '{asked}', which is no number of threads: unset it, or "
    (tmp_path / "config.yaml").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        plan.load(tmp_path, {"preset": "quick", "device": "cpu"})
    assert str(caught.value).startswith(f"apexbench: {sentence}")

    reading, writing = os.pipe()
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"request": {"device": "cpu"}, "events": writing}))
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    assert worker.main(str(job)) == worker.EXIT_REFUSED
    assert json.loads(os.read(reading, 4096))["text"].startswith(sentence)
    os.close(reading)


def test_surroundings(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-07")
    found = host.surroundings()
    assert (found["slurm_job_id"], found["slurm_node"]) == ("42", "gpu-07")


def test_the_description_is_json_and_tells_no_secrets(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    described = describe.describe()
    text = json.dumps(described, allow_nan=False)
    assert described["environment_variables"]["OMP_NUM_THREADS"] == "2"
    assert "secret" not in text.lower()
    assert described["torch"].get("version") or described["torch"]["error"]
    assert described["host"]["cpu"]


def test_a_description_does_not_say_where_the_user_keeps_the_repository() -> None:
    root = Path("/srv/someone/apexbench")
    told = {"TRITON_CACHE_DIR": f"{root}/results/.cache/triton", "list": [f"{root}"], "n": 1}
    assert describe.portable(told, root) == {
        "TRITON_CACHE_DIR": "./results/.cache/triton",
        "list": ["."],
        "n": 1,
    }


def test_the_description_names_no_folder_of_the_repository(monkeypatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(describe.REPOSITORY / "results" / ".cache"))
    told = describe.describe()["environment_variables"]
    assert told["TRITON_CACHE_DIR"] == "./results/.cache"
