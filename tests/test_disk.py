"""A full, read-only or lost disk: one sentence, and what is measured stays."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

import kills
from apexbench import disk, records
from apexbench.errors import UserError
from apexbench.jobs import supervisor
from pipeline import Project, python_with_toy, toy_config
from test_supervisor import request, run, toy

__all__ = ["toy"]

SHORT = {"case_seconds": 0.1}
INTACT = "then run the same command again; earlier records are intact."


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "(No space left on device): free space on its disk"),
        (errno.EDQUOT, "(Disk quota exceeded): free space or have the quota raised"),
        (errno.EROFS, "(Read-only file system): make its folder writable"),
        (errno.ESTALE, "(Stale file handle): check that its disk is mounted and well"),
    ],
)
def test_a_disk_that_fails_while_measuring_loses_its_case_only(toy, monkeypatch, number, remedy):
    monkeypatch.setenv("TOY_ERRNO", str(number))
    with pytest.raises(UserError) as caught:
        run(toy, request("a", "lose", "b", measuring=SHORT))
    folder = toy / "results/records/toy"
    assert f"{folder}/toy-lose-" in str(caught.value)
    assert str(caught.value).endswith(f"{remedy}, {INTACT}")
    (kept,) = folder.glob("*.json")
    assert records.read(kept).config == {"name": "a"}
    assert not list(folder.glob(f"{records.WRITING}*"))
    assert "Traceback" not in (toy / "log").read_text()
    monkeypatch.delenv("TOY_ERRNO")
    found, index = run(toy, request("a", "lose", "b", measuring=SHORT))
    assert index["measured"] == 2
    assert found["lose"].cell("faulty").status == "ok"


def test_a_full_compile_cache_is_the_disk_s_fault_and_no_implementation_s(toy, monkeypatch):
    monkeypatch.setenv("TOY_ERRNO", str(errno.ENOSPC))
    with pytest.raises(UserError, match=r"^/cache/x.so cannot be written \(No space left on"):
        run(toy, request("a", "cache"))
    (kept,) = (toy / "results/records/toy").glob("*.json")
    assert records.read(kept).config == {"name": "a"}


def test_an_index_that_cannot_be_written_costs_no_record(toy, monkeypatch):
    def fail(handle):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    real = os.fsync
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"index\.json cannot be written \(Disk quota exceeded"):
        run(toy, request("a"))
    monkeypatch.setattr(os, "fsync", real)
    assert run(toy, request("a"))[1]["measured"] == 0


def test_a_mount_that_vanishes_after_a_record_leaves_no_index_that_names_it(toy, monkeypatch):
    measure = supervisor._measure

    def vanish(job, *arguments):
        measure(job, *arguments)
        job.folder.rename(toy / "the disk")

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "_measure", vanish)
        with pytest.raises(UserError, match=r"toy-a-\w+\.json was written and is gone: check that"):
            run(toy, request("a", measuring=SHORT))
    assert not (toy / "results/records/toy").exists()
    (toy / "the disk").rename(toy / "results/records/toy")
    assert run(toy, request("a", measuring=SHORT))[1]["measured"] == 0


def mounts() -> bool:
    """Whether this user may mount in a namespace of its own."""
    try:
        mounted = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(mounted, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


# First the disk fills in the middle; then it is read-only; then it has room again.
ON_A_SMALL_DISK = """
set -e
results="$1"; copy="$2"; shift 2
mount -t tmpfs -o size=80m none "$results"
"$@" && exit 90
ls -A "$results/records/toy"
cp -r "$results" "$copy"
mount -o remount,ro "$results"
"$@" && exit 91
mount -o remount,rw "$results"
rm "$results/fill"
TOY_FILL=/dev/null "$@"
rm -r "$copy"
cp -r "$results" "$copy"
"""


@pytest.mark.skipif(not mounts(), reason="needs the right to mount in a namespace (root has it)")
def test_a_run_on_a_disk_that_fills_then_is_read_only_then_has_room(tmp_path):
    project = Project(tmp_path / "my bench (1)", python_with_toy(tmp_path / "python"))
    project.configure(toy_config("a", "fill", "b"))
    results, copy = project.folder / "results", tmp_path / "copy"
    results.mkdir(exist_ok=True)
    project.environment["TOY_FILL"] = str(results / "fill")
    command = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", str(results), str(copy)]
    project.argv = lambda *more, argv=project.argv: [*command, *argv(*more)]
    done = project.run("results/records/toy/index.json")
    assert done.returncode == 0, done.stdout
    full, rest = done.stdout.split("results cannot be written", 1)
    assert "cannot be written (No space left on device): free space on its disk" in full
    assert "(Read-only file system): make it writable" in rest
    assert "1 measured before and kept" in rest
    assert "Traceback" not in done.stdout
    results.rmdir()
    copy.rename(results)
    assert len(kills.outcome(project)) == 3


def test_a_nearly_full_disk_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    disk.check_space(tmp_path)
    monkeypatch.setattr(disk, "LEAST_FREE_BYTES", 1 << 62)
    with pytest.raises(UserError, match=r"on a disk with \d+ MiB free, and a run needs at"):
        disk.check_space(tmp_path)


def test_a_project_that_cannot_be_written_is_one_sentence(tmp_path):
    disk.check_folder(tmp_path)
    with pytest.raises(UserError, match=r"/proc/\.snakemake cannot be written"):
        disk.check_folder(Path("/proc"))


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path):
    for name in (".writing-old", "toy-a-1.json", ".cache/.writing-x", "reference/.writing-y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".writing-new").touch()
    records.sweep(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == [".cache/.writing-x", ".writing-new", "reference/.writing-y", "toy-a-1.json"]


def test_the_disk_is_found_behind_what_a_library_made_of_it():
    inner = OSError(errno.ENOSPC, "No space left on device")
    outer = RuntimeError("the backend failed")
    outer.__cause__ = inner
    assert disk.disk_fault(outer) is inner
    assert disk.disk_fault(PermissionError(errno.EACCES, "Permission denied")) is None
    assert disk.disk_fault(ValueError("x")) is None
    inner.__cause__ = outer
    inner.errno = errno.ENOENT
    assert disk.disk_fault(outer) is None


def test_results_that_cannot_be_written_are_named_before_a_run(tmp_path, monkeypatch):
    """By their mode alone, as after a copy made by another user; root may write all the same."""
    place = tmp_path / "results/records/toy"
    place.mkdir(parents=True)
    disk.check_folder(tmp_path)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place and may(path, mode))
    with pytest.raises(UserError, match=f"{place} cannot be written .*make it writable"):
        disk.check_folder(tmp_path)


def test_a_write_protected_output_is_found_before_the_run_begins(tmp_path, monkeypatch):
    results = tmp_path / "my results"
    record = results / "records/toy/toy-a-0123456789abcdef.json"
    figure = results / "report/figures/ratio.svg"
    for path in (record, figure):
        path.parent.mkdir(parents=True)
        path.touch()
    protected = {record}
    monkeypatch.setattr(disk.os, "access", lambda path, mode: Path(path) not in protected)
    disk.check_outputs(results)  # a record is written once
    protected.add(figure)
    with pytest.raises(UserError) as caught:
        disk.check_outputs(results)
    assert str(caught.value).startswith(f"{figure} is write-protected")
    assert f"`chmod u+w '{figure}'`" in str(caught.value)
    assert str(caught.value).endswith(INTACT)
