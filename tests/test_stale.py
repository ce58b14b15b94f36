"""Outdated indexes are taken back by a run that measures, and by nothing else."""

from __future__ import annotations

import json
import os

import pytest

from apexbench import disk, inherited, locks, owner, records, stale
from apexbench.errors import UserError
from apexbench.plan import Plan
from apexbench.report import evidence
from apexbench.runtimes.decide import NATIVE


@pytest.fixture
def index(tmp_path):
    """An index older than the record it names, in a results folder."""
    folder = tmp_path / "results/records/toy"
    folder.mkdir(parents=True)
    (folder / "a-1.json").write_text("{}")
    path = folder / "index.json"
    path.write_text(json.dumps({"records": [{"file": "a-1.json"}]}))
    later = path.stat().st_mtime_ns + 1
    os.utime(folder / "a-1.json", ns=(later, later))
    assert records.outdated(path)
    return path


def taken(index, *argv):
    stale.take_back([str(index)], index.parents[2], argv)
    return not index.exists()


@pytest.mark.parametrize(
    "option",
    ["-n", "-np", "--dry-run", "--dryrun", "--report", "--report=r.zip", "--rulegraph", "--list"],
)
def test_what_runs_no_job_leaves_the_index(index, option):
    assert not taken(index, "--cores", "1", option)


@pytest.mark.parametrize(
    "argv", [("--cores", "1", "all"), ("-c1", "--config", "a=b"), ("--nolock",)]
)
def test_a_run_takes_it_back(index, argv):
    assert taken(index, *argv)


@pytest.mark.parametrize(
    ("target", "gone"),
    [
        ("report", "report.html"),
        ("{}/report.html", "report.html"),
        ("{}/figures", "figures"),
        ("table", "summary.csv"),
        ("all", None),
        ("{}/machine.json", None),
    ],
)
@pytest.mark.parametrize("missing", [False, True], ids=["outdated", "gone"])
def test_what_is_asked_for_by_name_and_is_made_of_it_goes_with_it(index, target, gone, missing):
    results = index.parents[2]
    (results / "figures").mkdir()
    (results / "figures/a.svg").touch()
    names = {"figures", "report.html", "summary.csv", "machine.json"}
    for name in names - {"figures"}:
        (results / name).touch()
    if missing:
        index.unlink()
    assert taken(index, "--cores", "1", "--", target.format(results))
    assert {name for name in names if not (results / name).exists()} == ({gone} - {None})


def test_a_whole_index_leaves_what_is_asked_for(index):
    os.utime(index)
    (index.parents[2] / "report.html").touch()
    assert not taken(index, "report")
    assert (index.parents[2] / "report.html").exists()


def test_a_folder_of_another_run_is_left_alone(index):
    with locks.run_lock(index.parents[2]):
        assert not taken(index, "--cores", "1")
    assert taken(index, "--cores", "1")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_an_index_that_is_no_file_is_named(index, make):
    index.unlink()
    make(index)
    for reads in (
        taken,
        records.read_index,
        lambda path: evidence.load(path.parents[2]),
    ):
        with pytest.raises(UserError, match=r"index.json is not a regular file: delete it"):
            reads(index)


@pytest.mark.parametrize(
    ("asked", "threads"), [("", None), ("0", None), (" 2", 2), ("4,2", 4), ("3", 3)]
)
def test_the_first_level_of_openmp_counts(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert inherited._threads() == threads


@pytest.mark.parametrize("asked", ["zz", "1e3", "-1", "4,x", "\u00b2", "9" * 30])
def test_what_is_no_number_of_threads_is_named(monkeypatch, asked):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    with pytest.raises(UserError, match="is no number of threads: unset it"):
        inherited._threads()


def test_a_disk_without_room_for_more_files_is_named(tmp_path, monkeypatch):
    class Disk:
        f_files, f_favail = 20, 3

    monkeypatch.setattr(disk.os, "statvfs", lambda path: Disk)
    with pytest.raises(UserError, match="can hold 3 more files"):
        disk.check_space(tmp_path)


def test_a_record_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a-1.json")
    with pytest.raises(UserError, match="is not a regular file: delete it"):
        records.read(tmp_path / "a-1.json")


def test_two_trainings_of_one_name_are_refused():
    class Config:
        @staticmethod
        def cases(component):
            return [{"model": {"name": "m-x2"}}, {"model": "m", "gpus": 2}]

    with pytest.raises(UserError, match="would both be called 'm-x2': rename a model"):
        _ = Plan(Config(), None, "", NATIVE).models


def test_the_last_word_on_a_full_disk_is_ours(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    owner._say_if_full()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(disk, "LEAST_FREE_BYTES", 2**62)
    owner._say_if_full()
    assert "free some space, then run the same command again" in capsys.readouterr().err
