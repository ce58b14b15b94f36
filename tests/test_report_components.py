"""The lines and tables of the components that came with every Apex part a Transformer can use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import record_factory as factory
from apexbench.records import Work
from apexbench.report import answer, document, names, probes, summary, tables
from apexbench.report.cases import merge
from apexbench.report.evidence import Evidence


def optimizer(algorithm: str, *cells):
    """A record of one update rule; the first cell of torch is the default."""
    record = factory.optimizer()[0]
    record.case, record.cells = f"{algorithm} gpt2-124M float32", list(cells)
    record.config = {"model": "gpt2-124M", "algorithm": algorithm.lower(), "dtype": "float32"}
    record.comparisons, record.baselines = [], {}
    return record


def evidence(*records) -> Evidence:
    return Evidence(Path(), records=list(records), machine={}, missing=[], components=[])


def apex(name: str, value: float, **changed):
    return factory.cell(name, value, "apex", "step_time", **changed)


def test_each_other_optimizer_has_a_line_of_its_own() -> None:
    torch_sgd = factory.cell("torch_sgd", 2e6, "torch", "step_time")
    sgd = optimizer("SGD", torch_sgd, apex("apex_sgd", 1e6))
    sgd.comparisons = [
        factory.compare("step_time", "apex_sgd", name, [torch_sgd], sgd.cells[1])
        for name in ("torch_default", "torch_eager_best", "torch_best")
    ]
    lamb = optimizer("LAMB", apex("apex_lamb", 3e6))
    lines = answer.other_optimizers(merge([sgd, lamb]), "Test GPU")
    assert lines[0].startswith("FusedSGD is faster than everything PyTorch ships in 1 of 1 case")
    assert lines[1].startswith("FusedLAMB has no counterpart in PyTorch to be compared with")
    assert "on LAMB gpt2-124M float32" in lines[1]


def compatibility():
    record = factory.optimizer()[0]
    record.component, record.case, record.config = "compatibility", "what else decides", {}
    record.comparisons, record.baselines = [], {}
    record.work = Work(None, None, "nothing is timed", None, "nothing is timed")
    yes, no = {"answer": "yes", "note": ""}, {"answer": "no", "note": "TypeError: no such key"}
    found = {"probes": {"zero_grad": no, "CPU tensors": yes}, "no_step_time": "not timed here"}
    adam = apex("fused_adam", 1.0, description="apex.optimizers.FusedAdam.", details=found)
    adam.quantities = {}
    dense = apex("fused_dense", 1.0, description="apex.fused_dense.FusedDense.")
    dense.quantities, dense.status, dense.reason = {}, "unavailable", "needs an NVIDIA GPU"
    record.cells = [adam, dense]
    return record


def test_what_else_decides_is_a_table_without_an_empty_cell() -> None:
    (case,) = merge([compatibility()])
    table = probes.table([case], 100)
    assert table.columns == ["part", "zero_grad", "CPU tensors"]
    assert [entry.text for entry in table.rows[0]] == ["FusedAdam", "no", "yes"]
    assert table.rows[0][1].note == "TypeError: no such key"
    assert all(entry.text for row in table.rows for entry in row)
    assert table.rows[1][1].note == "needs an NVIDIA GPU"
    assert probes.lines([case]) == ["FusedAdam fails at zero_grad."]


def test_it_is_no_tile_and_no_measured_case_and_says_why_it_has_no_time() -> None:
    record = compatibility()
    assert answer.tiles(merge([record]), "Test GPU") == []
    built = document.build(evidence(record)).content
    (section,) = [entry for entry in built["sections"] if entry["id"] == "compatibility"]
    assert section["title"] == "What else decides"
    assert "FusedAdam fails at zero_grad." in section["leads"]
    assert "0 cases" in built["abstract"][0]
    rows = summary.table(evidence(record))
    assert list(rows["reason"]) == ["not timed here", "needs an NVIDIA GPU"]


def test_an_arm_that_ran_without_a_time_says_why_in_its_cell() -> None:
    record = factory.amp()[0]
    cell = record.cells[-1]
    cell.status, cell.quantities, cell.reason = "ok", {}, None
    cell.details = {"no_step_time": "built Python-only"}
    record.quantity = "step_time"
    (case,) = merge([record])
    table = tables.component("amp", [case], {}, 100)
    assert (table.rows[-1][2].text, table.rows[-1][2].note) == ("not timed", "built Python-only")


def test_every_implementation_has_a_short_name() -> None:
    from apexbench.components.names import implementation_names

    for component, implementations in implementation_names().items():
        if component not in ("ceiling", "compatibility"):
            assert set(implementations) <= set(names.NAMES[component]), component


@pytest.mark.parametrize(
    ("arms", "said"),
    [(["apex"], ""), (["apex_fast", "apex"], ""), (["apex_fast"], " with FastLayerNorm")],
)
def test_a_win_of_another_arm_than_the_part_s_own_is_named(arms, said):
    case = SimpleNamespace(component="layer_norm")
    entries = [(case, SimpleNamespace(implementation=name), None) for name in arms]
    assert answer._with("FusedLayerNorm", entries) == said


def test_an_apex_that_was_measured_is_not_called_unusable():
    records = factory.gpu_records()
    for record in records:
        record.provenance["apex"] = {"state": "compiled", "commit": None}
    text = " ".join(document.build(evidence(*records)).content["abstract"])
    assert "Apex of an unknown commit" in text
    assert "no usable Apex" not in text
