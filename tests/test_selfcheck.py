"""apexbench selfcheck on the CPU: the proofs hold here, and a proof that does not hold is told."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import record_factory as factory
from apexbench import records
from apexbench.measuring.contention import BUSY_CPU
from apexbench.report import render
from apexbench.report import selfcheck as section
from apexbench.report.cases import identity
from apexbench.selfcheck import proofs, repeats
from conftest import ROOT


def selfcheck(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command inside its runtime, without the lock: other tests may hold it."""
    command = [sys.executable, "-m", "apexbench", "selfcheck", "--inside", "--device", "cpu"]
    return subprocess.run(
        [*command, "--results", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A real self-check of this machine's CPU, all but the repeat of the component stage."""
    folder = tmp_path_factory.mktemp("results")
    only = "faults,waits,do_bench,slowdowns,pairs"
    answer = selfcheck(folder, "--only", only, "--json")
    assert len(json.loads(answer.stdout)) == 10
    index = folder / "selfcheck/records/selfcheck/comparisons/index.json"
    for record in records.read_index(index):
        for entry in record.comparisons:  # what else runs here must not decide these tests
            entry.verdict = records.verdict(entry.low, entry.high, entry.margin)
            entry.flags = [flag for flag in entry.flags if flag != BUSY_CPU]
        records.write(record, index.parent)
    found = {proof.name: asdict(proof) for proof in judge(folder)}
    return folder, answer, found


def judge(folder: Path) -> list[proofs.Proof]:
    return proofs.judge(proofs.load(folder / "selfcheck", folder))


def test_forty_comparisons_of_a_thing_with_itself_find_no_difference(checked):
    _, _, found = checked
    assert found["A/A"]["state"] == "passed", found["A/A"]
    assert "0 false of 40" in found["A/A"]["found"]


def test_a_planted_fifth_more_work_is_found(checked):
    _, _, found = checked
    assert found["planted slowdown of 20 %"]["state"] == "passed", found
    assert "of 20" in found["planted slowdown of 20 %"]["found"]


def test_every_planted_fault_is_refused_and_its_honest_twin_is_not(checked):
    _, _, found = checked
    assert found["planted faults"]["state"] == "passed", found["planted faults"]
    assert "11 of 11" in found["planted faults"]["found"]


def test_a_wait_of_known_length_is_seen_at_its_length(checked):
    _, _, found = checked
    assert found["planted wait of the host"]["state"] == "passed", found


def test_what_needs_a_gpu_says_so_and_fails_nothing(checked):
    folder, answer, found = checked
    assert answer.returncode == 0, answer.stderr
    for name in (
        "planted torch.cuda._sleep",
        "planted missing synchronize",
        "planted unjoined stream",
        "triton.testing.do_bench",
    ):
        assert found[name]["state"] == "unavailable"
        assert "needs an NVIDIA GPU" in found[name]["found"]
    left = proofs.load(folder / "selfcheck", folder).records
    assert {record.component for record in left} == {"selfcheck"}
    assert all(record.case.startswith(("A/A ", "planted ", "do_bench ")) for record in left)


def test_a_second_call_measures_nothing_and_prints_one_table(checked):
    folder, _, _ = checked
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("A-A*.json")}
    answer = selfcheck(folder, "--only", "pairs,slowdowns")
    assert before
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("A-A*.json")} == before
    assert answer.stdout.count("must hold") == 1
    assert "component stage again" in answer.stdout


def test_a_proof_that_does_not_hold_is_told(checked):
    folder, _, _ = checked
    whole = proofs.load(folder / "selfcheck", folder)

    def judged(change) -> dict[str, str]:
        found = copy.deepcopy(whole)
        change(found)
        return {proof.name: proof.state for proof in proofs.judge(found)}

    def false_verdict(found):
        found.of("pair")[3].comparisons[0].verdict = "faster"

    def too_wide(found):
        entry = found.of("pair")[0]
        entry.sampling["device_time"]["stop"] = "target"
        entry.comparisons[0].high = 1.1 * entry.comparisons[0].low

    def missed(found):
        for record in found.of("slowdown")[:2]:
            record.comparisons[0].verdict = "same"

    def let_through(found):
        found.of("fault")[0].cell("planted").status = "ok"

    def refused_twin(found):
        found.of("fault")[0].cell("honest").status = "parity_failed"

    def seen_short(found):
        entry = found.of("wait", "wait")[0].cells[0].quantities["step_time"]
        entry.samples = [value // 2 for value in entry.samples]

    def all_broken(found):
        for record in found.of("slowdown"):
            record.cells[1].status, record.comparisons = "failed", []

    def cut_short(found):
        found.missing += 7 * [{"proof": "pair"}]

    assert judged(false_verdict)["A/A"] == "failed"
    assert judged(too_wide)["A/A"] == "failed"
    assert judged(missed)["planted slowdown of 20 %"] == "failed"
    assert judged(let_through)["planted faults"] == "failed"
    assert judged(refused_twin)["planted faults"] == "failed"
    assert judged(seen_short)["planted wait of the host"] == "failed"
    assert judged(all_broken)["planted slowdown of 20 %"] == "failed"
    assert judged(cut_short)["A/A"] == "incomplete"


def test_every_proof_needs_the_same_share_of_its_cases(checked):
    """95 %: 38 of 40 are enough, 37 are not, and of twenty repeated cases nineteen are."""
    folder, _, _ = checked

    def told(kind: str, lost: int, state: str = "out_of_memory") -> proofs.Proof:
        found = proofs.load(folder / "selfcheck", folder)
        for record in found.of(kind)[:lost]:
            if state == "busy":
                record.comparisons[0].verdict = "unclear"
                record.comparisons[0].flags = [BUSY_CPU]
            else:
                record.cells[0].status = state
        name = {"pair": "A/A", "slowdown": "planted slowdown of 20 %"}[kind]
        return {proof.name: proof for proof in proofs.judge(found)}[name]

    assert told("pair", 2).state == "passed"
    assert told("pair", 3).state == "incomplete"
    assert told("pair", 3).found.endswith("37 of 40 cases told, 95% must")
    assert told("pair", 40, "busy").state == "incomplete"
    assert f"40 not measured ({BUSY_CPU})" in told("pair", 40, "busy").found
    assert told("slowdown", 2, "busy").state == "incomplete"
    assert told("slowdown", 2, "failed").state == "failed"
    even = [repeats.Difference(("", "", "", "", ""), 0.0, 0.1, False)]
    for compared_cases, planned, enough in ((1, 14, 0), (13, 14, 0), (14, 14, 1), (19, 20, 1)):
        proof = proofs.repeats_of(repeats.Stage(even, compared_cases, planned=planned))[0]
        assert proof.state == ("passed" if enough else "incomplete")
        told_of = f"{compared_cases} of {planned} cases told, 95% must"
        assert proof.found.endswith(told_of) == (not enough)


def test_a_repeat_beside_busy_processes_is_not_compared(checked, monkeypatch):
    folder, _, _ = checked
    first = proofs.load(folder / "selfcheck", folder).of("pair")[0]
    second = copy.deepcopy(first)
    second.process, second.comparisons[0].flags = 1, [BUSY_CPU]
    monkeypatch.setattr(repeats, "_read", lambda where: [first] if where == folder else [second])
    monkeypatch.setattr(repeats, "_plan", lambda where: {"cases": 1})
    stage = repeats.load(folder / "selfcheck", folder)
    assert (stage.cases, stage.disturbed, stage.differences) == (0, 1, [])
    proof = proofs.repeats_of(stage)[0]
    assert (proof.state, "1 cases not compared" in proof.found) == ("incomplete", True)


def test_the_report_has_a_section_built_from_these_records(checked):
    folder, _, _ = checked
    found = proofs.load(folder / "selfcheck", folder)
    (shown,) = section.section(section.load(folder, identity(found.records[0])[0]))
    rows = [[entry["text"] for entry in row] for row in shown["table"]["rows"]]
    assert rows[0][:3] == ["A/A", rows[0][1], "passed"]
    assert "40" in rows[0][3]
    assert section.section(section.load(folder, "another GPU")) == []
    assert section.section(section.load(folder / "nowhere", None)) == []


def test_the_page_and_the_paper_hold_the_section(checked, tmp_path, monkeypatch):
    folder, _, _ = checked
    whole = section.load
    model = identity(proofs.load(folder / "selfcheck", folder).records[0])[0]
    monkeypatch.setattr(section, "load", lambda path, _: whole(folder, model))
    run_folder = factory.write_run(tmp_path / "run", factory.gpu_records())
    render.report(run_folder, tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    assert 'id="selfcheck"' in page
    assert "0 false of 40" in page
    assert (tmp_path / "out/report.pdf").stat().st_size > 10_000


def test_it_ends_at_its_time_and_says_what_is_missing(tmp_path):
    answer = selfcheck(tmp_path, "--only", "pairs", "--time", "6", "--json")
    found = {proof["name"]: proof for proof in json.loads(answer.stdout)}
    assert answer.returncode == 0
    assert found["A/A"]["state"] == "incomplete"
    index = json.loads(
        (tmp_path / "selfcheck/records/selfcheck/comparisons/index.json").read_text()
    )
    assert index["missing"]
    assert len(index["missing"]) + len(index["records"]) == 40
    if index["records"]:  # a busy machine needs that long to start
        assert f"before {len(index['missing'])} more cases" in found["A/A"]["found"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--only", "pears"), "selfcheck has no part 'pears': use faults, waits"),
        (("--time", "-5"), "--time is -5 but must be more than 0 seconds"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, sentence):
    answer = subprocess.run(
        [sys.executable, "-m", "apexbench", "selfcheck", "--results", str(tmp_path), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert sentence in answer.stderr
    assert "Traceback" not in answer.stderr
