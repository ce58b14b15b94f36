"""The whole pipeline with the real Snakemake and a toy: results, resume, re-runs, faults, locks."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

import kills
from apexbench import records
from apexbench.jobs import retry
from pipeline import Project, python_with_toy, toy_config

MEASURED = ("--", "results/records/toy/index.json")
"""Snakemake's arguments for a run that ends before the report."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with_toy(tmp_path_factory.mktemp("python") / "venv")


@pytest.fixture
def project(tmp_path, python):
    """A fresh copy in a folder with a space and parentheses in its name."""
    made = Project(tmp_path / "my bench (1)", python)
    made.configure(toy_config("a", "b"))
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory, python):
    """One undisturbed run, for tests that only look."""
    made = Project(tmp_path_factory.mktemp("finished") / "my bench (1)", python)
    made.configure(toy_config("a", "b"))
    done = made.run()
    assert done.returncode == 0, done.stdout
    return made, done.stdout


def test_a_run_ends_with_a_report_whose_numbers_are_the_records(finished):
    project, told = finished
    results = project.folder / "results"
    assert f"report: {results / 'report.html'}" in told
    assert (results / "report.pdf").read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader((results / "summary.csv").open()))
    page = (results / "report.html").read_text()
    checked = 0
    for path in project.records().values():
        record = records.read(path)
        for comparison in record.comparisons:
            row = next(
                row
                for row in rows
                if (row["case"], row["implementation"], row["baseline"])
                == (record.case, comparison.implementation, comparison.baseline)
            )
            assert float(row["ratio"]) == pytest.approx(comparison.ratio, rel=1e-8)
            assert float(row["ratio_low"]) == pytest.approx(comparison.low, rel=1e-8)
            assert float(row["ratio_high"]) == pytest.approx(comparison.high, rel=1e-8)
            assert row["verdict"] == comparison.verdict
            assert f"{comparison.ratio:.3g}"[:3] in page
            checked += 1
    assert checked >= 6


def test_snakemake_s_own_report_holds_ours_with_captions(finished, tmp_path):
    project, _ = finished
    done = project.run("--report", str(tmp_path / "snakemake.html"))
    assert done.returncode == 0, done.stdout
    page = (tmp_path / "snakemake.html").read_text()
    for name in ("report.html", "report.pdf", "summary.csv", "toy-times.svg"):
        assert name in page
    for caption in (project.folder / "workflow/report/captions").glob("*.rst"):
        assert caption.read_text().split("``")[0].split("\n")[0][:60] in page


def test_progress_can_be_followed(finished):
    _, told = finished
    assert "preset quick on cpu" in told
    assert "Measuring toy" in told
    assert re.search(r"toy: case 2 of 2: toy b, \d+ s left", told)


def test_a_second_run_does_nothing_within_a_second_of_an_empty_snakefile(finished, tmp_path):
    project, _ = finished
    before = {path: path.stat().st_mtime_ns for path in project.records().values()}
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "Snakefile").write_text("rule all:\n    input: []\n")

    def seconds(folder):
        # Processor time: on a busy machine the clock says more about the others.
        begin = sum(os.times()[2:4])
        done = subprocess.run(
            project.argv(),
            cwd=folder,
            env=project.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return sum(os.times()[2:4]) - begin, done.stdout + done.stderr

    ours, bare = [], []
    for _ in range(3):
        bare.append(seconds(empty)[0])
        took, told = seconds(project.folder)
        ours.append(took)
        assert "Nothing to be done" in told
    assert sorted(ours)[1] - sorted(bare)[1] <= 1.0
    assert before == {path: path.stat().st_mtime_ns for path in project.records().values()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory, python):
    """An undisturbed run as far as the table of results."""
    made = Project(tmp_path_factory.mktemp("measured") / "my bench (1)", python)
    made.configure(toy_config(*"abcd"))
    return kills.undisturbed(made, "results/summary.csv")


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_run_resumes_with_the_same_command(seed, project, measured):
    project.configure(toy_config(*"abcd"))
    kills.kill_and_resume(project, seed, measured, "results/summary.csv")


def test_a_run_killed_while_it_writes_the_report_resumes(project, finished):
    shutil.copytree(finished[0].folder / "results", project.folder / "results")
    running = project.start("--forcerun", "figures")
    end = time.monotonic() + 60
    while not (project.folder / "results/.lock").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    assert project.wait_until_gone() == []
    assert project.run().returncode == 0
    assert (project.folder / "results/report.pdf").read_bytes().startswith(b"%PDF")
    assert kills.outcome(project) == kills.outcome(finished[0])


def test_a_run_whose_output_nobody_reads_any_more_ends(project):
    running = project.start()
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()  # as `| head -1` does
    assert running.wait(timeout=120) == 0
    assert project.index()["measured"] == 2
    assert (project.folder / "results/report.html").is_file()


def test_what_changes_is_measured_again_and_nothing_else(project):
    assert project.run(*MEASURED).returncode == 0
    first = set(project.records())
    project.configure(toy_config("a", "b", "c"))
    assert project.run(*MEASURED).returncode == 0
    assert project.index()["measured"] == 1
    assert first < set(project.records())
    project.configure(toy_config("a", "b", "c") + "seed: 5\n")
    assert project.run(*MEASURED).returncode == 0
    assert project.index()["measured"] == 3
    assert not first & set(project.records())
    assert project.run().returncode == 0
    project.configure(
        toy_config("a", "b", "c").replace("reference: false", "pdf: true, reference: false")
        + "seed: 5\n"
    )
    told = project.run().stdout
    assert "Measuring" not in told
    project.configure(toy_config("a", "b", "c"))
    assert project.run(*MEASURED).returncode == 0
    assert project.index()["measured"] == 0
    assert first < set(project.records())


def test_two_runs_in_one_folder_the_second_names_the_first(project):
    # Long enough for the other to come while it measures, however slowly that one starts.
    project.configure(toy_config(*"abcdefghijklmnopqrstuvwxyz"))
    running = project.start(*MEASURED)
    held = project.folder / "results/.lock"
    end = time.monotonic() + 120
    while not held.exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    refused = project.run("--forceall", "results/config.json")
    assert refused.returncode != 0
    assert str(running.pid) in refused.stdout
    assert "Traceback" not in refused.stdout
    assert running.wait(timeout=120) == 0


def test_two_folders_on_one_machine_take_turns(tmp_path, python):
    first, second = (Project(tmp_path / name, python) for name in ("one", "two"))
    # Long enough for the other to come while it measures, however slowly that one starts.
    first.configure(toy_config(*"abcdefghijklmnopqrstuvwxyz"))
    second.configure(toy_config("a", "b"))
    running = [first.start(*MEASURED)]
    while running[0].poll() is None and not list(first.folder.glob("results/records/toy/*-*.json")):
        time.sleep(0.05)
    running.append(second.start(*MEASURED))
    told = [process.communicate(timeout=180)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    assert any("waiting for cpu" in text and "held by pid" in text for text in told)
    spans = sorted((p.index()["started"], p.index()["finished"]) for p in (first, second))
    assert spans[0][1] <= spans[1][0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config", "preset=fulll"], "did you mean 'full'?"),
        (["--config", "seed=1; touch pwned"], "seed"),
        (
            ["--config", "components={layer_norm: {enabled: true, implementations: [apx]}}"],
            "did you mean 'apex'?",
        ),
        (["--config", "components={layer_norm: {widths: [-1]}}"], "components.layer_norm.widths"),
        (["--config", "componens={}"], "did you mean"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_lost(arguments, expected, finished):
    project, _ = finished
    before = sorted(project.records())
    refused = project.run(*arguments)
    assert refused.returncode != 0
    assert expected in refused.stdout
    assert "Traceback" not in refused.stdout
    assert len([line for line in refused.stdout.splitlines() if line.startswith("apexbench:")]) == 1
    assert not list(project.folder.rglob("pwned"))
    assert sorted(project.records()) == before


def test_a_truncated_record_is_named_and_the_rest_is_kept(project):
    target = ("--", "results/report.html")
    assert project.run(*target).returncode == 0
    broken, whole = sorted(project.records().values())
    when = whole.stat().st_mtime_ns
    broken.write_text(broken.read_text()[:500])
    refused = project.run(*target)
    assert refused.returncode != 0
    assert broken.name in refused.stdout
    assert "delete that file" in refused.stdout
    assert "Traceback" not in refused.stdout
    broken.unlink()
    assert project.run(*target).returncode == 0
    assert project.index()["measured"] == 1
    assert whole.stat().st_mtime_ns == when
    # A record, an output, or all of a status, taken from a finished run: the same command again.
    broken.unlink()
    (project.folder / "results/summary.json").unlink()
    (project.folder / "results/machine.json").unlink()
    assert project.run().returncode == 0
    assert project.index()["measured"] == 1
    assert (project.folder / "results/summary.json").exists()
    assert (project.folder / "results/machine.json").exists()
    retry.clear(project.folder / "results", "ok")
    assert not whole.exists()
    assert project.run(*MEASURED).returncode == 0
    assert project.index()["measured"] == 2
    assert "Nothing to be done" in project.run(*MEASURED).stdout


def test_a_lost_job_leaves_a_partial_report_that_names_it(project):
    toy = project.python.parent.parent / "lib"
    module = next(toy.rglob("toy_component.py"))
    text = module.read_text()
    project.configure(toy_config("a").replace("amp: {enabled: false}", "amp: {}"))
    try:
        module.write_text("raise ImportError('broken on purpose')\n")
        lost = project.run()
    finally:
        module.write_text(text)
    assert lost.returncode != 0
    assert project.index("amp")["measured"] == 1
    page = (project.folder / "results/partial/report.html").read_text()
    assert "results/logs/toy.log" in re.sub("<[^>]*>", "", page)  # less where it may break
    assert "broken on purpose" in (project.folder / "results/logs/toy.log").read_text()
    assert project.run().returncode == 0
    assert not (project.folder / "results/partial").exists()  # the whole report replaces it
