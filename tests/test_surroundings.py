"""A whole run in the worst surroundings that are still a working machine."""

from __future__ import annotations

import os
import stat
import subprocess
import time

import pytest

from pipeline import Project, python_with_toy, toy_config

HOSTILE = """x'; touch pwned; $(touch pwned) `touch pwned` "</script><b>é"""
EVIL = "raise SystemExit('the jobs import from PYTHONPATH')\n"
# What Snakemake does not import: that it finds its own modules is the caller's business.
NAMES = ("torch", "apex", "typer", "scipy", "typst", "rich", "amp_C")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The finished run, and what it told."""
    place = tmp_path_factory.mktemp("somewhere")
    project = Project(
        place / """my "bench" 'é' $(touch pwned) (1)""", python_with_toy(place / "py")
    )
    project.configure(toy_config("a", HOSTILE))
    evil = place / "evil"
    evil.mkdir()
    for name in NAMES:
        (evil / f"{name}.py").write_text(EVIL)
    for name in ("HOME", "LANG", "LANGUAGE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        project.environment.pop(name, None)
    project.environment |= {
        "HOME": "/proc",  # where nobody can write
        "LC_ALL": "C",
        "PYTHONPATH": str(evil),
        "PYTHONUSERBASE": str(evil),
        "PYTHONSTARTUP": str(evil / "torch.py"),
        "TMPDIR": "/nonexistent",
        "CUDA_VISIBLE_DEVICES": "7",
    }
    before = os.umask(0o077)
    try:
        done = project.run()
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stdout
    return project, done.stdout


@pytest.mark.workflow
def test_it_ends_with_a_report(run):
    project, told = run
    assert "Traceback" not in told
    assert project.index()["measured"] == 2
    assert (project.folder / "results/report.pdf").read_bytes().startswith(b"%PDF")
    assert not list(project.folder.parent.rglob("pwned"))
    assert "</script><b>" not in (project.folder / "results/report.html").read_text()
    assert project.processes() == []


@pytest.mark.workflow
def test_what_it_writes_is_the_user_s_alone_when_the_umask_says_so(run):
    project, _ = run
    for path in (project.folder / "results").rglob("*"):
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077 or path.is_symlink(), path


@pytest.mark.workflow
def test_a_clock_that_was_set_back_costs_no_measurement(run):
    project, _ = run
    tomorrow = time.time() + 86400
    for path in (project.folder / "results").rglob("*"):
        os.utime(path, (tomorrow, tomorrow))
    kept = set(project.records())
    del project.environment["HOME"]
    project.configure(toy_config("a", HOSTILE, "c"))
    done = project.run("results/summary.csv")
    assert done.returncode == 0, done.stdout
    assert project.index()["measured"] == 1
    assert kept < set(project.records())


SHARED_MEMORY = r"/dev/shm|multiprocessing|shared_memory|DataLoader"
# The exception torchrun raises is defined there; it shares no memory.
HARMLESS = "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError"


def test_no_shared_memory_is_needed(root):
    listed = subprocess.run(
        ["git", "grep", "-hE", SHARED_MEMORY, "workflow"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.strip() for line in listed.stdout.splitlines()] == [HARMLESS]


def test_make_gives_snakemake_a_cache_that_needs_no_home(root):
    told = subprocess.run(
        ["make", "--dry-run", "report"],
        cwd=root,
        env={**os.environ, "HOME": "/proc"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'XDG_CACHE_HOME="$PWD/.snakemake/cache"' in told.stdout
