"""What is kept and shown again: references not lost in silence, logs that are there, tables."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import record_factory as factory
from apexbench.cli import app
from apexbench.errors import UserError
from apexbench.report import evidence, remedies, replacing, summary
from apexbench.report.document import build
from conftest import ROOT


def finished(folder: Path, run: str, **changed) -> Path:
    """A finished run: its records and its tables."""
    place = factory.provenance(run=run, **changed)
    factory.write_run(folder, factory.amp(provenance=place))
    summary.write(summary.summary(folder), folder)
    return folder


def reference(results: Path, out: Path, *more: str):
    words = ["reference", "--results", str(results), "--out", str(out), *more]
    return CliRunner().invoke(app, words)


def test_a_reference_of_another_run_is_replaced_only_when_told_to(tmp_path) -> None:
    out = tmp_path / "reference"
    first, second = (finished(tmp_path / run, run) for run in ("run-a", "run-b"))
    assert reference(first, out).output == f"1 records copied to {out}/test-gpu\n"
    again = reference(first, out)
    assert again.exit_code == 0
    assert again.output.endswith(f"1 record of {out}/test-gpu replaced\n")
    refused = reference(second, out)
    assert isinstance(refused.exception, UserError)
    assert str(refused.exception) == (
        f"{out}/test-gpu holds 1 record of another run (it would replace run run-a by run-b): "
        "commit or copy them, then say FORCE=1 (--force) to replace them."
    )
    assert evidence.load(out / "test-gpu").provenance("run") == ["run-a"]
    forced = reference(second, out, "--force")
    assert forced.output.endswith("test-gpu replaced (run run-a by run-b)\n")
    assert evidence.load(out / "test-gpu").provenance("run") == ["run-b"]


def test_another_commit_of_apex_is_named_and_a_damaged_reference_needs_force(tmp_path) -> None:
    out = tmp_path / "reference"
    old, new = (
        finished(tmp_path / commit, "run", apex={"state": "compiled", "commit": commit})
        for commit in ("a" * 40, "b" * 40)
    )
    assert reference(old, out).exit_code == 0
    with pytest.raises(UserError, match=f"apex {'a' * 40} by {'b' * 40}"):
        replacing.check(new, out, False)
    for file in (out / "test-gpu/records/amp").glob("tutorial*.json"):
        file.write_text("{")
    with pytest.raises(UserError, match=r"Or replace it whole with FORCE=1 \(--force\)\.$"):
        replacing.check(new, out, False)
    assert "could not be read, is replaced" in replacing.check(new, out, True)


@pytest.mark.parametrize("name", ["machine.json", "config.json", "summary.json"])
@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"[" * 100_000, "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b"[]", "is not an apexbench file"),
        ("{}".encode("utf-16"), "is not valid JSON"),
        (None, "is not a regular file"),
    ],
    ids=["deep", "truncated", "empty", "list", "utf-16", "folder"],
)
def test_a_damaged_file_is_never_made_a_reference(tmp_path, name, content, cause) -> None:
    run = finished(tmp_path / "run", "run")
    (run / name).unlink()
    if content is None:
        (run / name).mkdir()
    else:
        (run / name).write_bytes(content)
    refused = reference(run, tmp_path / "reference")
    assert isinstance(refused.exception, UserError)
    assert f"{name} {cause}" in str(refused.exception)
    assert not (tmp_path / "reference").exists()


def test_make_says_what_it_made_and_passes_force_on(tmp_path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")

    def would(*words: str) -> str:
        done = subprocess.run([make, "-n", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout

    assert "apexbench reference --force" in would("reference", "FORCE=1")
    assert "--force" not in would("reference")
    assert "$machine/report.html" in would("paper")
    assert "$machine/report.pdf" in would("paper")


def test_no_remedy_points_to_a_log_that_is_not_there(tmp_path) -> None:
    said = "see the log of this component; apexbench retry clears the cell"
    gone = remedies.told(said, "layer_norm", tmp_path)
    assert gone == (
        "its log is results/logs/layer_norm*.log on the machine that measured, and is not kept "
        "with these records; apexbench retry clears the cell"
    )
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs/layer_norm.log"
    log.write_text("x")
    assert remedies.told(said, "layer_norm", tmp_path).startswith(f"read {log}; apexbench")
    assert remedies.told("Buy a GPU.", "x", tmp_path) == "Buy a GPU."
    assert remedies.told(None, "x", tmp_path) == "none known"
    assert remedies.of_lost(str(log), tmp_path) == f"Read {log}, then run the same command again."
    assert remedies.of_lost("/gone/logs/amp.log", tmp_path).startswith(
        "Run the same command again; its log is results/logs/amp.log on the machine that measured"
    )
    assert "log is slurm_logs/7.log on the" in remedies.of_lost("slurm_logs/7.log", tmp_path)
    assert remedies.of_lost(None, tmp_path) == "Run the same command again."


REFERENCES = sorted(path.parent for path in (ROOT / "results/reference").glob("*/config.json"))


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda path: path.name)
def test_the_reports_of_the_references_send_nobody_to_a_missing_log(folder) -> None:
    content = json.dumps(build(evidence.load(folder)).content["missing"])
    assert remedies.SEE_LOG not in content


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda path: path.name)
def test_the_committed_tables_are_what_the_records_give_now(folder) -> None:
    """If not: ``python -m apexbench aggregate --results results/reference/<machine>``."""
    found = summary.summary(folder)
    assert (folder / "summary.csv").read_text() == summary.csv_text(found)
    assert (folder / "summary.json").read_text() == summary.json_text(found)
