"""apexbench selfcheck on the CPU: the proofs hold here, and a proof that does not hold is told."""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import record_factory as factory
from apexbench import records
from apexbench.components.adamw_reference import FAULTS
from apexbench.components.names import component_files
from apexbench.jobs import reference
from apexbench.measuring import statistics
from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import Comparison
from apexbench.report import render
from apexbench.report import selfcheck as section
from apexbench.report.cases import identity
from apexbench.selfcheck import cases, proofs, repeating, repeats, run
from conftest import ROOT

GIB = 2**30
ONE_CASE = {
    "rows": [64],
    "widths": [256],
    "directions": ["forward"],
    "dtypes": ["float32"],
    "implementations": ["torch_eager", "formula"],
}


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
            entry.verdict = statistics.verdict(entry.low, entry.high, entry.margin)
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


def test_the_gpus_cases_are_those_that_the_method_asks_for():
    pairs = cases.pairs("cuda", 140 * GIB)
    assert len(pairs) == 200
    assert {case["width"] for case in pairs} >= {256, 1024, 4096, 16384}
    assert max(case["rows"] * case["width"] for case in pairs) >= 2**28
    small = cases.pairs("cuda", 8 * GIB)
    assert max(case["rows"] * case["width"] for case in small) * cases.BYTES_PER_ELEMENT <= 8 * GIB
    slow = cases.slowdowns("cuda")
    assert len(slow) == 50
    assert all(case["extra"] / case["pieces"] == 0.02 for case in slow)
    assert len(cases.pairs("cpu", 0)) == 40
    for device in ("cpu", "cuda"):
        everything = [
            *cases.pairs(device, 140 * GIB),
            *cases.slowdowns(device),
            *cases.faults(device),
            *cases.waits(),
            *cases.do_bench(),
        ]
        labels = [cases.label(case) for case in everything]
        assert len(set(labels)) == len(labels)
        assert {case["fault"] for case in cases.faults(device)} == {*FAULTS, *cases.NORM_FAULTS}


def gpu_record(case: dict, cells: list, **changed):
    return factory.record("selfcheck", cases.label(case), cells, config=case, **changed)


def judged(*found) -> dict[str, proofs.Proof]:
    return {proof.name: proof for proof in proofs.judge(proofs.Evidence(list(found)))}


@pytest.mark.parametrize(
    ("seen", "state"), [(501_000, "passed"), (504_000, "passed"), (490_000, "failed")]
)
def test_a_sleep_must_be_seen_at_its_length(seen, state):
    case = next(case for case in cases.waits() if case.get("cycles") == 1_000_000)
    cell = factory.cell("sleep", seen, details={"expected_ns": 500_000})
    assert judged(gpu_record(case, [cell]))["planted torch.cuda._sleep"].state == state


@pytest.mark.parametrize(
    ("seen", "empty", "state"),
    [(212_000, 11_000, "passed"), (212_000, 0, "failed"), (190_000, 0, "failed")],
)
def test_a_wait_of_the_host_is_seen_beside_its_synchronisations(seen, empty, state):
    case = next(case for case in cases.waits() if case.get("ns") == 200_000)
    cell = factory.cell("wait", seen, kind="step_time", details={"expected_ns": 200_000})
    cell.quantities["step_time"].samples = [seen + 50 * index for index in range(30)]
    sampling = {"step_time": {"null_window_ns": empty, "stop": "target"}}
    found = judged(gpu_record(case, [cell], kind="step_time", sampling=sampling))
    assert found["planted wait of the host"].state == state


@pytest.mark.parametrize(("seen", "state"), [(2_000_000, "passed"), (12_000, "failed")])
def test_work_that_nobody_waits_for_must_be_seen_whole(seen, state):
    case = next(case for case in cases.waits() if case["what"] == "missing synchronize")
    details = {"expected_ns": 2_000_000, "unsynchronised_ns": 9_000}
    cell = factory.cell("unsynchronised", 2_000_000, details=details)
    cell.quantities["step_time"] = factory.quantity(seen)
    assert judged(gpu_record(case, [cell]))["planted missing synchronize"].state == state


@pytest.mark.parametrize(("status", "state"), [("failed", "passed"), ("ok", "failed")])
def test_work_on_a_stream_of_its_own_must_be_refused(status, state):
    case = next(case for case in cases.waits() if case["what"] == "unjoined stream")
    cell = factory.cell("unjoined", 2_000_000)
    cell.status, cell.reason = status, "1900 µs of its work run on a stream that it does not join"
    assert judged(gpu_record(case, [cell]))["planted unjoined stream"].state == state


@pytest.mark.parametrize(("theirs", "state"), [(301_000, "passed"), (310_000, "failed")])
def test_the_two_clocks_must_agree(theirs, state):
    (case, *_) = cases.do_bench()
    ours = factory.cell("written_flush", 300_000, details={"do_bench_ns": theirs})
    record = gpu_record(case, [factory.cell("read_flush", 290_000), ours])
    proof = judged(record)["triton.testing.do_bench"]
    assert proof.state == state
    assert "flush +3" in proof.found


def compared(ratio: float, half: float, verdict: str) -> Comparison:
    return Comparison(
        "device_time", "apex", "torch_default", ["torch_eager"], ratio, ratio * (1 - half),
        ratio * (1 + half), 0.01, verdict, 40,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("second", "state"),
    [
        ([compared(1.203, 0.004, "faster")], "passed"),
        ([compared(1.23, 0.004, "faster")], "failed"),
        ([compared(0.8, 0.4, "slower")], "failed"),
    ],
    ids=["within both intervals", "further than both allow", "a flip"],
)
def test_a_comparison_may_move_between_processes_as_far_as_its_intervals_say(second, state):
    cells = [factory.cell("torch_eager", 1e6), factory.cell("apex", 1e6, package="apex")]
    one, two = (factory.record("layer_norm", "a case", cells) for _ in range(2))
    one.comparisons, two.comparisons = [compared(1.2, 0.004, "faster")], second
    stage = repeats.Stage(repeats.differences(one, two), 1, planned=1, device="cuda")
    assert proofs.repeats_of(stage)[0].state == state


def test_a_component_stage_is_repeated_from_the_runs_own_records(tmp_path, monkeypatch):
    """The first process is the run's, the second the self-check's; both name the same case."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "workflow"))
    monkeypatch.setenv("APEXBENCH_THREADS", "1")
    monkeypatch.setenv("APEXBENCH_RUN_ID", "test")
    settings = {
        "preset": "quick",
        "device": "cpu",
        "transformer": {"enabled": False},
        "components": {
            **{name: {"enabled": False} for name in component_files()},
            "rms_norm": ONE_CASE,
        },
        "measuring": {"case_seconds": 0.3, "pilot_rounds": 10},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    plan = run.plans.load(tmp_path, {})
    folder, results = tmp_path / "results" / "selfcheck", tmp_path / "results"
    request = repeating.Request.parse(plan.request("rms_norm"))
    index = results / "records" / "rms_norm" / "index.json"
    repeating.supervisor.run(request, index, tmp_path / "log")
    repeating.measure(plan, results, folder, repeating.time.time() + 100)
    assert [record.process for record in records.read_index(index)] == [0]
    stage = repeats.load(folder, results)
    assert (stage.cases, stage.planned, len(stage.differences)) == (1, 1, 2)
    assert stage.seconds > 0
    assert {proof.state for proof in proofs.repeats_of(stage)} <= {"passed", "failed", "noted"}


@pytest.mark.parametrize(("count", "wanted"), [(5, 2), (18, 7), (3, 3), (4, 9), (7, 1)])
def test_a_part_of_the_cases_is_spread_over_all(count, wanted):
    chosen = repeating.spread([{"case": number} for number in range(count)], wanted)
    places = [entry["case"] for entry in chosen]
    assert len(set(places)) == min(count, wanted)
    assert places == sorted(places)
    gaps = [after - before for before, after in itertools.pairwise([-1, *places, count])]
    assert max(gaps) <= 2 * max(1, count // wanted)


def test_a_reference_keeps_the_selfcheck(tmp_path):
    results = tmp_path / "results"
    cells = [factory.cell("torch_eager", 1e6)]
    factory.write_run(results, [factory.record("layer_norm", "a case", cells)])
    (case, *_) = cases.do_bench()
    both = [factory.cell("read_flush", 290_000), factory.cell("written_flush", 300_000)]
    factory.write_run(results / "selfcheck", [gpu_record(case, both)])
    (results / "selfcheck" / "plan.json").write_text('{"cases": 1, "stage": 1, "preset": "full"}')
    for name in reference.FILES:
        (results / name).touch()
    reference.keep(results, tmp_path / "reference")
    (kept,) = (tmp_path / "reference").iterdir()
    (record,) = proofs.load(kept / "selfcheck", kept).records
    assert record.case == "do_bench copy"
    assert (kept / "selfcheck" / "plan.json").is_file()
