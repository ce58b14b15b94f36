"""``apexbench compare``: what changed between runs, and when that is a regression."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import record_factory as factory
from apexbench import records as store
from apexbench.cli import app
from apexbench.errors import UserError
from apexbench.records import Record
from apexbench.report import comparison
from apexbench.report.compare import notes, page, run
from apexbench.report.repeats import Estimate
from rendered import HOSTILE, Page, hostile_records


def folders(tmp_path: Path, *runs: list[Record]) -> list[Path]:
    """One run folder per list of records."""
    return [
        factory.write_run(tmp_path / f"run{number}", records) for number, records in enumerate(runs)
    ]


def printed(tmp_path: Path, *runs: list[Record], **options) -> tuple[int, str]:
    """Exit status and terminal text of a comparison."""
    tmp_path.mkdir(exist_ok=True)
    console = Console(record=True, width=200, file=(tmp_path / "terminal").open("w"))
    status = run(folders(tmp_path, *runs), console, **options)
    return status, console.export_text()


def slowed(records: list[Record], implementation: str, factor: float) -> list[Record]:
    """A copy in which one implementation takes ``factor`` times as long; verdicts stay."""
    records = copy.deepcopy(records)
    for record in records:
        for cell in record.cells:
            if cell.implementation == implementation:
                for quantity in cell.quantities.values():
                    quantity.value *= factor
                    quantity.low *= factor
                    quantity.high *= factor
    return records


def test_a_run_compared_with_itself_differs_in_nothing(tmp_path):
    records = factory.gpu_records()
    status, text = printed(tmp_path, records, records, fail=True)
    found = comparison.compare(folders(tmp_path, records, records))
    assert status == 0
    assert (found.changed, found.cells, found.environment) == ([], [], [])
    assert {speed.verdict for speed in found.speeds} == {"same"}
    assert found.verdicts > 50
    assert text.startswith(
        f"Regression: no.\nVerdicts that changed: none of {found.verdicts} verdicts that the runs "
    )


def test_a_verdict_that_fell_is_named_with_both_ratios_and_fails(tmp_path):
    before, after = factory.optimizer(), factory.optimizer()
    for records, ratio, verdict in ((before, 1.2, "faster"), (after, 0.8, "slower")):
        for entry in records[0].comparisons:
            if (entry.implementation, entry.baseline) == ("fused_adam", "torch_best"):
                entry.ratio, entry.low, entry.high = ratio, ratio - 0.01, ratio + 0.01
                entry.verdict = verdict
    assert printed(tmp_path, before, after)[0] == 0
    status, text = printed(tmp_path, before, after, fail=True)
    assert status == 1
    for part in ("1.20× [1.19, 1.21] faster", "0.800× [0.790, 0.810] slower", "fused_adam"):
        assert part in text
    assert text.startswith("Regression: yes, 1: 1 verdict that fell.\nVerdicts that changed: 1 of ")
    named = "Optimizer step, fused_adam on gpt2-124M float32 against torch's best (torch.compile"
    assert f"{named} included): faster in A, slower in B." in " ".join(text.split())
    assert (
        text.index("Verdicts that changed") < text.index("A: ") < text.index("Verdicts that differ")
    )
    back = comparison.compare(folders(tmp_path / "back", after, before))
    assert [entry.worse for entry in back.changed] == [False]
    assert back.regressions == 0


@pytest.mark.parametrize(
    ("factor", "margin", "regressions"),
    [(1.03, None, 0), (1.08, None, 2), (1.03, 0.01, 2), (0.9, None, 0)],
)
def test_a_slower_time_is_a_regression_beyond_the_margin(tmp_path, factor, margin, regressions):
    before = factory.optimizer()
    after = slowed(before, "adamw_fused", factor)
    found = comparison.compare(folders(tmp_path, before, after), margin)
    assert found.regressions == regressions
    changed = [entry for entry in found.speeds if entry.key[2] == "adamw_fused"]
    for entry in changed:
        assert entry.ratio.value == pytest.approx(1 / factor)
        assert entry.ratio.low < 1 / factor < entry.ratio.high


def test_five_processes_on_both_sides_narrow_the_margin(tmp_path):
    before = factory.transformer(processes=5)
    found = comparison.compare(folders(tmp_path, before, before))
    assert {entry.margin for entry in found.speeds} == {0.01}
    assert "no interval between runs" not in " ".join(notes(found))


def test_a_lost_cell_is_a_regression_and_a_new_one_is_not(tmp_path):
    before, after = factory.amp(), factory.amp()
    after[0].cells[1] = factory.lost("autocast_fp16", "torch", "failed", "illegal access", None)
    after[0].comparisons = []
    found = comparison.compare(folders(tmp_path, before, after))
    assert [(entry.statuses, entry.lost) for entry in found.cells] == [(["ok", "failed"], True)]
    assert comparison.compare(folders(tmp_path / "back", after, before)).regressions == 0


def test_another_gpu_is_another_result_not_a_regression(tmp_path):
    before = factory.optimizer()
    other = factory.provenance(device_name="Other GPU", torch="2.13.0+cu130")
    after = slowed(factory.optimizer(provenance=other), "adamw_fused", 2.0)
    status, text = printed(tmp_path, before, after, fail=True)
    assert status == 0
    assert "0.500×" in text
    assert text.startswith("Regression: not judged. No other run is of Test GPU 9000, and")
    facts = dict(comparison.compare(folders(tmp_path, before, after)).environment)
    assert facts["torch"] == ["2.11.0+cu130", "2.13.0+cu130"]
    assert facts["device_name"] == ["Test GPU 9000", "Other GPU"]
    assert "driver" not in facts


def test_three_runs_stand_in_three_columns(tmp_path):
    first = factory.optimizer()
    runs = [first, slowed(first, "adamw_fused", 1.2), factory.amp()]
    found = comparison.compare(folders(tmp_path, *runs))
    assert {entry.run.letter for entry in found.speeds} == {"B"}
    assert {tuple(entry.statuses) for entry in found.cells} >= {("ok", "ok", None)}
    shown = Page(page(found))
    assert "Speed against A, slowest first" in shown.text


def test_the_interval_of_unpaired_times_covers_what_it_says():
    """MOVER on logarithms: with equal half widths h, the ratio's is h·√2."""
    one, two = (Estimate(v, v * math.exp(-0.02), v * math.exp(0.02)) for v in (200.0, 100.0))
    found = comparison.relative(one, two)
    half = 0.02 * math.sqrt(2)
    ends = (math.log(found.low), math.log(found.value), math.log(found.high))
    expected = [math.log(2) - half, math.log(2), math.log(2) + half]
    assert list(ends) == pytest.approx(expected)


def test_hostile_strings_are_text_in_the_page_and_in_the_terminal(tmp_path):
    after = hostile_records()
    for record in after:
        for comparison_ in record.comparisons:
            ends = 1 / comparison_.high, 1 / comparison_.low
            comparison_.ratio, (comparison_.low, comparison_.high) = 1 / comparison_.ratio, ends
            comparison_.verdict = store.verdict(*ends, comparison_.margin)
        record.provenance = {**record.provenance, "torch": HOSTILE + "[red]"}
    runs = folders(tmp_path, hostile_records(), after)
    text = page(comparison.compare(runs))
    shown = Page(text)
    assert shown.tags.count("script") == 1
    assert (shown.tags.count("img"), shown.loads, shown.handlers) == (0, [], [])
    assert "</style><script>alert(1)</script>" in shown.text
    assert len(text) < 3_000_000
    console = Console(record=True, width=400, file=(tmp_path / "terminal").open("w"))
    run(runs, console)
    assert "<script>alert(1)" in console.export_text()


def test_the_command_line_writes_the_page_and_sets_the_status(tmp_path):
    before = factory.optimizer()
    paths = folders(tmp_path, before, slowed(before, "adamw_fused", 2.0))
    out = tmp_path / "out.html"
    words = ["compare", *map(str, paths), "--html", str(out), "--fail-on-regression"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "adamw_fused" in Page(out.read_text()).text
    assert CliRunner().invoke(app, words[:3]).exit_code == 0


@pytest.mark.parametrize(
    ("count", "margin", "sentence"),
    [(1, None, "at least two run folders"), (2, 1.5, "is not between 0 and 1")],
)
def test_bad_input_is_one_sentence(tmp_path, count, margin, sentence):
    paths = folders(tmp_path, *[factory.amp()] * count)
    with pytest.raises(UserError, match=sentence):
        run(paths, Console(), margin=margin)


def test_a_folder_without_records_is_named(tmp_path):
    paths = [*folders(tmp_path, factory.amp()), tmp_path / "nothing"]
    with pytest.raises(UserError, match=r"nothing/records holds no index\.json"):
        run(paths, Console())


def test_a_lost_job_is_a_regression_and_a_run_without_records_is_refused(tmp_path):
    records = factory.gpu_records()
    whole, less = folders(tmp_path, records, records)
    names = [path.relative_to(less).as_posix() for path in store.expected(less)]
    (less / "config.json").write_text(json.dumps({"indexes": names}))
    assert comparison.compare([whole, less]).regressions == 0
    (less / "records/amp/index.json").unlink()
    found = comparison.compare([whole, less])
    assert found.regressions > 0
    assert {entry.key[0] for entry in found.cells if entry.lost} == {"amp"}
    for name in names:
        (less / name).unlink(missing_ok=True)
    with pytest.raises(UserError, match="holds no record"):
        comparison.compare([whole, less])


def test_what_a_run_does_not_hold_is_not_judged_and_fails(tmp_path):
    """A reference copy names no indexes: a component whose folder is gone leaves no other trace."""
    records = factory.gpu_records()
    less = [record for record in records if record.component != "optimizer"]
    status, text = printed(tmp_path, records, less, fail=True)
    assert status == 1
    assert text.startswith("Regression: no, of what is in all runs; not judged: 12 cells of A that")
    assert "another run does not hold (Optimizer step)." in " ".join(text.split())
    assert "not judged │" in text
    found = comparison.compare(folders(tmp_path / "again", records, less))
    assert (found.regressions, found.unjudged) == (0, 12)
    assert printed(tmp_path / "plain", records, less)[0] == 0
    assert printed(tmp_path / "more", less, records, fail=True)[0] == 0
    other = factory.provenance(device_name="Other GPU")
    for record in (less := copy.deepcopy(less)):
        record.provenance = other
    assert printed(tmp_path / "other", records, less, fail=True)[0] == 0


def test_a_slowdown_is_seen_where_two_gpus_of_a_model_measured(tmp_path):
    records = factory.gpu_records()
    later = slowed(records, "adamw_fused", 10)
    again = copy.deepcopy(later)
    for record in again:
        record.key = record.key[::-1]
        record.provenance["gpu_uuid"] = "GPU-other"
    status, _ = printed(tmp_path, records, later + again, fail=True)
    assert status == 1


def test_a_special_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    records = factory.gpu_records()
    with pytest.raises(UserError, match="not a regular file"):
        printed(tmp_path, records, records, out=tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
