"""Slurm's queue: what it must be able to, and what became of a job that left no result."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import record_factory as factory
from apexbench import owner
from apexbench.cluster import lost, queue
from apexbench.errors import UserError
from apexbench.report import placement
from apexbench.report.cases import merge
from apexbench.report.evidence import Evidence, load


def commands(folder: Path, monkeypatch, **scripts: str) -> None:
    """Put shell scripts of these names before everything on PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(queue.sys, "executable", "/opt/bench/.venv/bin/python")


def test_without_slurm_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sbatch is not a command here"):
        queue.check()


def test_a_python_that_a_job_cannot_start_is_refused(monkeypatch, tmp_path):
    commands(tmp_path / "bin", monkeypatch, sbatch="", scontrol="")
    monkeypatch.setattr(sys, "executable", "/srv/my bench (1)/.venv/bin/python")
    with pytest.raises(UserError, match="move this folder"):
        queue.check()


@pytest.mark.parametrize(
    ("kept", "accounting", "remedy"),
    [
        ("300 sec", "accounting_storage/none", None),
        ("60 sec", "accounting_storage/none", "ask its administrators for MinJobAge=300"),
        ("60 sec", "(null)", "ask its administrators for MinJobAge=300"),
        ("60 sec", "accounting_storage/slurmdbd", "set slurm-status-command: sacct"),
        ("0 sec", "(null)", None),
    ],
)
def test_a_slurm_that_forgets_jobs_too_soon_is_named(
    monkeypatch, tmp_path, kept, accounting, remedy
):
    told = f"AccountingStorageType   = {accounting}\\nMinJobAge               = {kept}"
    answer = f"printf '{told}\\n'"
    commands(tmp_path / "bin", monkeypatch, sbatch="", sacct="", scontrol=answer)
    said = queue.check()
    assert len(said) == (0 if remedy is None else 1)
    assert remedy is None or remedy in said[0]


def test_without_sacct_the_setting_that_works_is_named(monkeypatch, tmp_path):
    commands(tmp_path / "bin", monkeypatch, sbatch="", scontrol="")
    monkeypatch.setattr(queue.shutil, "which", lambda name: None if name == "sacct" else name)
    [said] = queue.check()
    assert "set slurm_account under default-resources in the profile" in said


def test_a_run_that_ends_takes_its_jobs_with_it(monkeypatch, tmp_path, capsys):
    name = "56602cd0-d8ef-40ce-8e6e-dad7188108e2"
    monkeypatch.chdir(tmp_path)
    ended = tmp_path / "ended"
    line = f"7|{name}|rule_toy|{tmp_path}"
    commands(
        tmp_path / "bin",
        monkeypatch,
        squeue=f"test -e {ended} || echo '{line}'",
        scancel=f"echo $@ > {ended}",
    )
    owner.end_left_over()
    assert ended.read_text() == "7\n"
    assert "ending the Slurm jobs of this run: 7" in capsys.readouterr().err


def test_a_controller_that_does_not_answer_is_one_sentence(monkeypatch, tmp_path):
    fails = "echo 'Unable to contact slurm controller' >&2; exit 1"
    commands(tmp_path / "bin", monkeypatch, sbatch="", scontrol=fails)
    with pytest.raises(UserError, match="scontrol does not answer: Unable to contact slurm"):
        queue.check()


def test_only_this_folders_jobs_of_snakemake_are_left_over(monkeypatch, tmp_path):
    name = "56602cd0-d8ef-40ce-8e6e-dad7188108e2"
    lines = [
        f"7|{name}|rule_toy|{tmp_path}",
        f"8|pre_{name}|rule_machine|{tmp_path}",
        f"9|{name}|rule_toy|{tmp_path}/other",
        f"10|{name}|mine|{tmp_path}",
        f"11|train|rule_toy|{tmp_path}",
    ]
    commands(tmp_path / "bin", monkeypatch, squeue="printf '%s\\n' " + " ".join(map(repr, lines)))
    assert queue.left_over(tmp_path) == ["7", "8"]


LOG = """\
[Tue Dec  1 12:21:47 2026]
Error in rule layer_norm:
    message: SLURM-job '13' failed, SLURM status is: '{state}'. Detailed failure reason unavailable.
    jobid: 2
    output: results/records/layer_norm/index.json
    log: results/logs/layer_norm.log, /x/.snakemake/slurm_logs/rule_layer_norm/13.log (check log \
file(s) for error details)
    shell:
        python -m apexbench exec
    external_jobid: 13
[Tue Dec  1 12:21:48 2026]
Error in rule machine:
    message: SLURM sbatch failed. The error message was 'sbatch: error: invalid partition: nope
sbatch: error: Batch job submission failed: Invalid partition name specified'.
    sbatch call:
        sbatch --parsable
For further error details see the cluster/cloud log.
    jobid: 6
    output: results/machine.json
    log: results/logs/machine.log (check log file(s) for error details)
[Tue Dec  1 12:21:49 2026]
Error in rule report:
    message: None
    jobid: 1
    output: results/report.html
"""


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        ("TIMEOUT", "failed", "TIMEOUT on gpu07 (limit 01:00:00): raise runtime for layer_norm"),
        ("OUT_OF_MEMORY", "out_of_memory", "OUT_OF_MEMORY on gpu07 (memory 32000M): raise mem_mb"),
        ("NODE_FAIL", "failed", "NODE_FAIL on gpu07: the same command starts it again"),
        ("CANCELLED", "failed", "CANCELLED on gpu07: the same command starts it again"),
        ("FAILED", "failed", "FAILED on gpu07 (exit status 2): read the log"),
        ("DEADLINE", "failed", "DEADLINE on gpu07: raise runtime"),
    ],
)
def test_a_lost_job_has_its_state_log_and_remedy(monkeypatch, tmp_path, state, status, said):
    told = "NodeList=gpu07 TimeLimit=01:00:00 MinMemoryNode=32000M ExitCode=2:0"
    commands(tmp_path / "bin", monkeypatch, scontrol=f"echo '{told}'")
    log = tmp_path / "snakemake.log"
    log.write_text(LOG.format(state=state))
    ended, refused = lost.find([log])
    assert (ended.rule, ended.state, ended.status, ended.job) == ("layer_norm", state, status, "13")
    assert said in ended.reason
    assert ended.log == "/x/.snakemake/slurm_logs/rule_layer_norm/13.log"
    assert refused.state == "REFUSED"
    for message, why in {
        "SLURM sbatch failed. The error message was 'sbatch: error: failed: User's group not "
        "permitted to use this partition'.": "(failed: User's group not permitted to use this part",
        "Job submission failed with exception: The given account none appears to be invalid. "
        "Available accounts: lab": "none appears to be invalid. Available accounts: lab)",
        "SLURM sbatch failed. The error message was ''.": "(no reason given, as when it is inter",
    }.items():
        log.write_text(f"""Error in rule toy:
    message: {message}
    sbatch call:
        sbatch --parsable
    output: results/x.json
""")
        assert why in lost.find([log])[0].reason
    log.write_text(LOG.format(state=state))
    assert "Invalid partition name specified): correct partition" in refused.reason


def test_a_job_that_a_signal_ended_says_which(monkeypatch, tmp_path):
    commands(tmp_path / "bin", monkeypatch, scontrol="echo NodeList=gpu07 ExitCode=0:9")
    log = tmp_path / "snakemake.log"
    log.write_text(LOG.format(state="FAILED"))
    assert "FAILED on gpu07 (signal 9): read the log" in lost.find([log])[0].reason


OOM = "slurmstepd-gpu07: error: Detected 1 oom-kill event(s) in StepId=13.0. Some of your processes"


@pytest.mark.parametrize("sacct", ["printf 'FAILED\\nFAILED\\nOUT_OF_MEMORY\\n'", "exit 1"])
def test_a_job_whose_step_ran_out_of_memory_says_so(monkeypatch, tmp_path, sacct):
    commands(tmp_path / "bin", monkeypatch, sacct=sacct, scontrol="echo MinMemoryNode=300M")
    slurms = tmp_path / "slurm_logs/13.log"
    slurms.parent.mkdir()
    slurms.write_text("" if "OUT" in sacct else OOM)
    log = tmp_path / "snakemake.log"
    text = LOG.format(state="FAILED")
    log.write_text(text.replace("/x/.snakemake/slurm_logs/rule_layer_norm/13.log", str(slurms)))
    ended = lost.find([log])[0]
    assert (ended.state, ended.status) == ("OUT_OF_MEMORY", "out_of_memory")
    assert "OUT_OF_MEMORY (memory 300M): raise mem_mb for layer_norm under" in ended.reason
    slurms.write_text("all well")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lost.find([log])[0].state == "FAILED"


def test_a_job_that_slurm_forgot_keeps_its_state(monkeypatch, tmp_path):
    commands(tmp_path / "bin", monkeypatch, scontrol="echo 'Invalid job id' >&2; exit 1")
    log = tmp_path / "snakemake.log"
    log.write_text(LOG.format(state="TIMEOUT"))
    assert "ended as TIMEOUT: raise runtime" in lost.find([log, tmp_path / "absent"])[0].reason


def test_the_report_says_why_a_job_left_no_index(monkeypatch, tmp_path):
    commands(tmp_path / "bin", monkeypatch, scontrol="echo NodeList=gpu07")
    results = factory.write_run(tmp_path / "results", factory.amp())
    log = tmp_path / "snakemake.log"
    log.write_text(LOG.format(state="OUT_OF_MEMORY"))
    monkeypatch.chdir(tmp_path)
    lost.write(lost.find([log]), Path("results"))
    there, gone = (results / f"records/{name}/index.json" for name in ("amp", "layer_norm"))
    (missing,) = load(results, [there, gone]).missing
    assert (missing.component, missing.status) == ("layer_norm", "out_of_memory")
    assert "Slurm job 13 ended as OUT_OF_MEMORY on gpu07" in missing.reason
    assert missing.log == "/x/.snakemake/slurm_logs/rule_layer_norm/13.log"
    lost.write([], results)
    (missing,) = load(results, [there, gone]).missing
    assert missing.reason == "its job was lost before it wrote its index"


def on(node: str, uuid: str, **changed) -> list:
    place = factory.provenance(node=node, gpu_uuid=uuid, **changed)
    return factory.transformer(provenance=place)


def test_repeats_on_two_gpus_are_two_cases_whose_names_say_which():
    first, second = on("node1", "GPU-aaaaaaaa-1")[0], on("node1", "GPU-bbbbbbbb-2")[0]
    names = [case.name for case in merge([first, second])]
    assert names == [f"{first.case} on node1 GPU aaaaaaaa", f"{first.case} on node1 GPU bbbbbbbb"]
    second.provenance = first.provenance
    second.process = 1
    (case,) = merge([first, second])
    assert (case.name, len(case.records)) == (first.case, 2)


def test_a_run_spread_over_nodes_is_reported_whole_and_says_so():
    records = [*on("node1", "GPU-a"), *factory.amp(provenance=factory.provenance(node="node2"))]
    model, notes = placement.choose(Evidence(Path("x"), records))
    assert model == records[0].provenance["device_name"]
    (note,) = notes
    assert "node1 (1 record) and node2 (1 record)" in note
    assert "no ratio or interval mixes two jobs" in note
    assert "data-parallel on several of one node)" in note
    records[0].config = {**records[0].config, "nodes": 2}
    (note,) = placement.choose(Evidence(Path("x"), records))[1]
    assert "data-parallel on several of one node or several)" in note
    other = factory.amp(provenance=factory.provenance(device_name="Other GPU", node="node3"))
    _, notes = placement.choose(Evidence(Path("x"), [*records, *other]))
    assert len(notes) == 2
    assert "Other GPU (node node3, 1 record)" in notes[0]
    assert placement.choose(Evidence(Path("x"), on("node1", "GPU-a")))[1] == []
