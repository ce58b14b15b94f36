"""Arms without room beside the others: in groups of their own, each beside the baselines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from apexbench import records
from apexbench.errors import UserError
from apexbench.jobs import groups, supervisor
from apexbench.jobs.request import Request
from apexbench.report.cases import merge
from test_supervisor import MEASURING

TESTS = Path(__file__).parent


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where the component is installed as an entry point that child processes find too."""
    site = tmp_path / "site"
    info = site / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[apexbench.components]\ntoy = crowded_component:component\n"
    )
    for name in ("toy_component.py", "crowded_component.py"):
        (site / name).write_text((TESTS / name).read_text())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(TESTS.parent / "workflow")]))
    return tmp_path


def run(place, room, processes=(0,), **sizes):
    """The records of one case, in order, and the index."""
    case = {"name": "crowded", "room": room, "sizes": sizes}
    measuring = {**MEASURING, "case_seconds": 0.2}
    out = place / "results" / "records" / "toy" / "index.json"
    wanted = Request("toy", "cpu", 0, measuring, {}, cases=[case], processes=processes)
    supervisor.run(wanted, out, place / "log")
    return records.read_index(out), json.loads(out.read_text())


def held(found):
    """The implementations of every record."""
    return [[cell.implementation for cell in record.cells] for record in found]


def test_where_all_have_room_there_is_one_record(place):
    [record], _ = run(place, 5)
    assert record.displaced == []
    assert groups.following(record) is None


def test_each_group_holds_every_baseline(place):
    found, index = run(place, 3)
    assert held(found) == [["plain", "other", name] for name in "abc"]
    assert [record.displaced for record in found] == [["b", "c"], ["c"], []]
    assert index["measured"] == len(index["records"]) == 3
    for record, name in zip(found, "abc", strict=True):
        members = {
            comparison.baseline: comparison.members
            for comparison in record.comparisons
            if comparison.implementation == name
        }
        assert members["torch_default"] == ["plain"]
        assert members["torch_eager_best"] == ["plain", "other"]


def test_what_has_no_room_beside_all_baselines_is_measured_beside_torch_s_default(place):
    found, _ = run(place, 3, c=2)
    assert held(found)[-1] == ["plain", "c"]
    assert {cell.status for cell in found[-1].cells} == {"ok"}
    # No record says that it had no room anywhere.
    assert {cell.status for record in found for cell in record.cells} == {"ok"}


def test_what_has_no_room_even_there_is_out_of_memory_and_ends(place):
    found, _ = run(place, 3, b=3, c=2)
    states = {c.implementation: c.status for record in found for c in record.cells}
    assert states == {
        "plain": "ok",
        "other": "ok",
        "a": "ok",
        "b": "out_of_memory",
        "c": "ok",
    }


def test_a_baseline_without_room_gets_a_group_too(place):
    found, _ = run(place, 2)
    assert held(found) == [["plain", name] for name in ("other", "a", "b", "c")]


def test_the_report_takes_the_groups_of_a_process_for_one_case(place):
    found, _ = run(place, 3, processes=(0, 1))
    [case] = merge(found)
    assert len(found) == 6
    assert case.processes == 2
    assert [arm.implementation for arm in case.arms] == ["plain", "other", "a", "b", "c"]
    for arm in case.arms:
        assert (arm.status, arm.reason) == ("ok", None)
        assert case.time(arm).processes == 2
    assert {case.versus(case.arm(name), "torch_default").ratio.processes for name in "abc"} == {2}


def test_a_lost_group_alone_is_measured_again(place):
    _, index = run(place, 3)
    lost = place / "results" / "records" / "toy" / index["records"][1]["file"]
    lost.unlink()
    found, index = run(place, 3)
    assert index["measured"] == 1
    assert held(found) == [["plain", "other", name] for name in "abc"]


KILLS = """
import os, signal
events = getattr(__import__("sys").modules["__main__"], "Events", None)
if events:
    send = events.send
    def killing(self, event, **values):
        send(self, event, **values)
        if event == "record" and not os.path.exists(os.environ["TOY_KILLED"]):
            open(os.environ["TOY_KILLED"], "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
    events.send = killing
"""


def test_a_worker_killed_right_after_its_first_record_loses_no_group(place, monkeypatch):
    monkeypatch.setenv("TOY_KILLED", str(place / "killed"))
    with (place / "site/crowded_component.py").open("a") as module:
        module.write(KILLS)
    found, index = run(place, 3)
    assert (place / "killed").exists()
    assert held(found) == [["plain", "other", name] for name in "abc"]
    assert index["measured"] == 3


@pytest.mark.parametrize(
    ("group", "displaced", "sentence"),
    [
        (0, ["plain"], "'plain' had no room in it and is measured in it"),
        (1, [], "it holds other implementations than its group"),
        (0, ["nosuch", "b"], "names 'nosuch', which toy does not have: delete that file"),
    ],
)
def test_a_record_whose_arms_were_altered_is_named(place, group, displaced, sentence):
    _, index = run(place, 3)
    path = place / "results/records/toy" / index["records"][group]["file"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "displaced": displaced}))
    with pytest.raises(UserError, match=sentence):
        run(place, 3)


def test_a_reason_counts_processes_and_names_the_group(place):
    found, _ = run(place, 3)
    for cell in found[1].cells:
        if cell.implementation == "plain":
            cell.status, cell.reason = "failed", "on purpose"
    [case] = merge(found)
    reason = case.arm("plain").reason
    assert reason == "ok in 1 of 1 process; process 0, beside b, c: failed: on purpose"
