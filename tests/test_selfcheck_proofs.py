"""The proofs of the self-check on records of a GPU, and the component stage again."""

from __future__ import annotations

import itertools
import json

import pytest

import record_factory as factory
from apexbench import records
from apexbench.components.adamw_reference import FAULTS
from apexbench.components.names import component_files
from apexbench.jobs import reference
from apexbench.records import Comparison
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
    assert (stage.cases + stage.disturbed, stage.planned) == (1, 1)
    assert len(stage.differences) == 2 * stage.cases  # none beside a busy neighbour
    assert stage.seconds > 0
    states = {proof.state for proof in proofs.repeats_of(stage)}
    assert states <= {"passed", "failed", "noted", "incomplete"}
    assert ("incomplete" in states) == (stage.disturbed == 1)


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
        (results / name).write_text("{}")
    reference.keep(results, tmp_path / "reference")
    (kept,) = (tmp_path / "reference").iterdir()
    (record,) = proofs.load(kept / "selfcheck", kept).records
    assert record.case == "do_bench copy"
    assert (kept / "selfcheck" / "plan.json").is_file()
