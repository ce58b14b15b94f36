"""A measuring job with a toy: faults cost their own cells only, nothing is measured twice."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import record_factory as factory
from apexbench import records
from apexbench.errors import UserError
from apexbench.jobs import retry, supervisor
from apexbench.jobs.request import Request, Task
from apexbench.machine import host
from apexbench.measuring.contention import BUSY_CPU

TESTS = Path(__file__).parent
MEASURING = {
    "case_seconds": 0.4,
    "pilot_rounds": 10,
    "confidence": 0.99,
    "margin": 0.01,
    "throttle_retries": 0,
    "implementation_seconds": 2,
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy, installed as an entry point that child processes find too."""
    site = tmp_path / "site"
    info = site / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[apexbench.components]\ntoy = toy_component:component\n"
    )
    (site / "toy_component.py").write_text((TESTS / "toy_component.py").read_text())
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(TESTS.parent / "workflow")]))
    return tmp_path


def request(*names, **values):
    return Request(
        component="toy",
        device="cpu",
        seed=0,
        measuring={**MEASURING, **values.pop("measuring", {})},
        environment={},
        cases=[{"name": name} for name in names],
        **values,
    )


def run(folder, wanted):
    out = folder / "results" / "records" / "toy" / "index.json"
    supervisor.run(wanted, out, folder / "log")
    return {record.config["name"]: record for record in records.read_index(out)}, json.loads(
        out.read_text()
    )


def test_faults_cost_their_own_cells_only(toy):
    acts = {
        "none": "ok",
        "crash": "failed",
        "hang": "failed",
        "memory": "out_of_memory",
        "kill": "failed",
        "sticky": "failed",
    }
    found, _ = run(toy, request(*acts, measuring={"implementation_seconds": 4}))
    assert {name: record.cell("faulty").status for name, record in found.items()} == acts
    crash, hang, sticky = (found[name].cell("faulty") for name in ("crash", "hang", "sticky"))
    assert "SIGSEGV" in crash.reason
    assert "window" in crash.reason
    assert "an illegal memory access" in sticky.reason
    assert "hung" in hang.reason
    assert "4 s" in hang.reason
    # What has no room beside the others is tried once more beside torch's default alone.
    memory = found.pop("memory")
    assert [cell.implementation for cell in memory.cells] == ["steady", "faulty"]
    assert memory.cell("steady").status == "ok"
    for record in found.values():
        assert record.cell("steady").status == record.cell("quick").status == "ok"
        assert 199_000 < record.cell("steady").quantities["step_time"].value < 10_000_000
        assert record.cell("wrong").status == "parity_failed"
        assert not record.cell("wrong").quantities
        verdicts = {entry.implementation: entry for entry in record.comparisons}
        quick = verdicts["quick"]
        assert quick.verdict == ("unclear" if BUSY_CPU in quick.flags else "faster")
        assert "wrong" not in verdicts


def test_a_kill_from_outside_is_measured_again_by_the_same_command(toy):
    """Nothing shows that memory ended: the cell is no property of the implementation."""
    found, index = run(toy, request("none", "kill"))
    cell = found["kill"].cell("faulty")
    assert cell.status == "failed"
    assert cell.reason == "killed by signal 9 from outside during window step_time, twice"
    assert cell.remedy.startswith("the same command measures it again")
    assert index["killed"] == [found["kill"].key]
    assert records.outdated(toy / "results" / "records" / "toy" / "index.json")
    assert run(toy, request("none", "kill"))[1]["measured"] == 1


def test_one_kill_from_outside_costs_nothing(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_KILL_ONCE", str(tmp_path / "killed"))
    found, index = run(toy, request("kill"))
    assert (tmp_path / "killed").exists()
    assert found["kill"].cell("faulty").status == "ok"
    assert index["killed"] == []
    assert not records.outdated(toy / "results" / "records" / "toy" / "index.json")


KILLS_AT_ITS_IMPORT = """
import glob, os, signal, sys
times, place = int(os.environ["TOY_KILLS"]), os.environ["TOY_KILLED"]
done = len(glob.glob(place + "-*"))
if done < times and hasattr(sys.modules["__main__"], "Events"):
    open(f"{place}-{done}", "x").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("times", [1, 2])
def test_a_kill_while_the_process_starts_is_tried_once_more(toy, monkeypatch, times):
    monkeypatch.setenv("TOY_KILLS", str(times))
    monkeypatch.setenv("TOY_KILLED", str(toy / "killed"))
    with (toy / "site/toy_component.py").open("a") as module:
        module.write(KILLS_AT_ITS_IMPORT)
    if times == 1:
        assert run(toy, request("none"))[1]["measured"] == 1
    else:
        with pytest.raises(UserError, match=r"ends before it measures anything \(.*SIGKILL"):
            run(toy, request("none"))
    assert len(list(toy.glob("killed-*"))) == times


def test_a_kill_by_the_kernel_for_lack_of_memory_is_told_apart(toy, monkeypatch):
    """The count of the cgroup rises by one between the child's start and its end."""
    monkeypatch.setattr(host, "oom_kills", functools.partial(next, itertools.count()))
    found, index = run(toy, request("kill"))
    cell = found["kill"].cell("faulty")
    assert (cell.status, index["killed"]) == ("out_of_memory", [])
    assert "SIGKILL" in cell.reason
    assert not records.outdated(toy / "results" / "records" / "toy" / "index.json")
    assert run(toy, request("kill"))[1]["measured"] == 0


def test_a_crash_of_the_inputs_costs_that_case_only(toy):
    found, _ = run(toy, request("inputs", "allocate", "none"))
    assert {cell.status for cell in found["inputs"].cells} == {"failed"}
    lost = [cell for cell in found["allocate"].cells if cell.implementation != "wrong"]
    assert {cell.status for cell in lost} == {"out_of_memory"}
    assert all("the inputs: the host's memory ended" in cell.reason for cell in lost)
    assert all("SIGSEGV" in cell.reason for cell in found["inputs"].cells)
    assert found["none"].cell("faulty").status == "ok"


def test_a_fault_of_our_own_is_charged_to_no_implementation(toy):
    """The exception comes after the windows, where the heartbeat still names the last arm."""
    with pytest.raises(UserError, match=r"apexbench itself failed while it measured toy") as caught:
        run(toy, request("a", "own", "b", measuring={"case_seconds": 0.1}))
    assert "(LookupError: a fault of our own), which no" in str(caught.value)
    assert f"read {toy / 'log'}; the records written so far stay" in str(caught.value)
    assert "Traceback" in (toy / "log").read_text()
    (kept,) = (toy / "results/records/toy").glob("*.json")
    assert records.read(kept).config == {"name": "a"}


def test_a_second_run_measures_nothing_and_a_changed_request_what_depends_on_it(toy):
    run(toy, request("a", "b"))
    assert run(toy, request("a", "b"))[1]["measured"] == 0
    assert run(toy, request("a", "b", "c"))[1]["measured"] == 1
    assert run(toy, request("a", measuring={"case_seconds": 0.2}))[1]["measured"] == 1
    assert run(toy, request("a", implementations=["steady"]))[1]["measured"] == 1
    assert run(toy, request("a", processes=(0, 1)))[1]["measured"] == 1


def test_a_corrupt_record_is_named_and_nothing_else_is_lost(toy):
    _, index = run(toy, request("a", "b"))
    path = toy / "results/records/toy" / index["records"][0]["file"]
    whole = path.read_text()
    for text, cause in (
        (whole[: len(whole) // 2], "not a valid record"),
        ("", "empty"),
        (whole.replace('"process":0', '"process":NaN'), "NaN"),
        (whole.replace('"schema_version":1', '"schema_version":2'), "schema version 2"),
        ("{}", "not an apexbench record"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=cause) as caught:
            run(toy, request("a", "b"))
        assert str(path) in str(caught.value)
        assert "delete that file" in str(caught.value)
    path.unlink()
    assert run(toy, request("a", "b"))[1]["measured"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"name": "z"}},
        {"environment": {"gpus": "1x NVIDIA H100"}},
        {"provenance": {"device": "cuda"}},
        {"process": 3},
    ],
)
def test_a_record_of_another_machine_or_case_under_this_name_is_refused(toy, change):
    _, index = run(toy, request("a"))
    path = toy / "results/records/toy" / index["records"][0]["file"]
    value = json.loads(path.read_text())
    for key, entry in change.items():
        value[key] = {**value[key], **entry} if isinstance(entry, dict) else entry
    path.write_text(json.dumps(value))
    with pytest.raises(UserError, match=f"{path.name} holds another record than its name says"):
        run(toy, request("a"))


def test_a_record_of_another_gpu_model_is_refused_by_its_own_words():
    entry = factory.optimizer()[0]
    entry.environment = {"gpus": "1x Test GPU 9000"}
    task = Task(entry.config, 0, entry.key)
    asked = Request("optimizer", "cuda", 0, MEASURING, entry.environment)
    assert supervisor._is_of(entry, task, asked)
    entry.provenance["device_name"] = "NVIDIA H200"
    assert not supervisor._is_of(entry, task, asked)


def test_retry_clears_the_cells_of_a_status(toy):
    run(toy, request("none", "memory"))
    assert retry.clear(toy / "results", "out_of_memory").startswith("1 records")
    assert run(toy, request("none", "memory"))[1]["measured"] == 1
    with pytest.raises(UserError, match="did you mean 'failed'"):
        retry.clear(toy / "results", "faild")


def test_a_component_that_cannot_start_is_one_sentence(toy, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent / "workflow"))
    with pytest.raises(UserError, match="'toy' is not a component: write one of amp, "):
        run(toy, request("a"))
    assert "'toy' is not a component" in (toy / "log").read_text()


def test_progress_says_component_case_and_count(toy, capfd):
    run(toy, request("a", "b"))
    told = capfd.readouterr().err
    assert "toy: case 1 of 2: toy a" in told
    assert "toy: case 2 of 2: toy b" in told
    assert "left" in told


def test_the_supervisor_needs_no_torch():
    code = textwrap.dedent(
        """
        import sys
        sys.modules["torch"] = None
        import apexbench.jobs.supervisor, apexbench.plan, apexbench.cli
        assert sys.modules["torch"] is None
        """
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent / "workflow")},
    )


def test_sigterm_ends_the_measuring_process_and_leaves_no_temporary_file(toy):
    scratch = toy / "tmp"
    scratch.mkdir()
    out = toy / "results" / "records" / "toy" / "index.json"
    asked = request("a", "hang", measuring={"implementation_seconds": 60})
    command = [sys.executable, "-m", "apexbench", "measure", "--request", asked.text()]
    running = subprocess.Popen(
        [*command, "--out", str(out), "--log", str(toy / "log")],
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    end = time.monotonic() + 30
    while not list(out.parent.glob("toy-a-*")) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(scratch.iterdir())
    running.terminate()
    assert running.wait(10) == 128 + signal.SIGTERM
    assert not list(scratch.iterdir())
    assert [records.read(path).config for path in out.parent.glob("*.json")] == [{"name": "a"}]
