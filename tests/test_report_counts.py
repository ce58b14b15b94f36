"""A count is made once: wherever it stands it is the same, and its noun agrees with it."""

from __future__ import annotations

import re
from html import unescape

import pytest

import record_factory as factory
from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import Record
from apexbench.report import claims, compare, evidence, html, readme
from apexbench.report.cases import compared, merge
from apexbench.report.comparison import compare as comparison
from apexbench.report.document import build

MANY = r"cases|verdicts|times|cells|records|ratios|regressions|recipes|models|sizes|jobs|seeds"
ONE_MANY = re.compile(rf"\b1 ({MANY})\b|\b1 (verdicts?|cases?|cells?|comparisons?) (are|were)\b")


def folder(tmp_path, records):
    return factory.write_run(tmp_path / "run", records)


def few() -> list[Record]:
    """A ceiling, which is no compared case, and cases of three components."""
    return [*factory.ceilings(), *factory.optimizer(), *factory.norms()[:2], *factory.amp()]


@pytest.mark.parametrize("make", [few, factory.cpu_records])
def test_every_count_of_cases_is_the_same(tmp_path, make) -> None:
    path = folder(tmp_path, make())
    found = evidence.load(path)
    content = build(found).content
    total = len(compared(merge(found.records)))
    assert total == len({(r.component, r.case) for r in found.records if r.component != "ceiling"})
    counted = f"{total} of {total} cases were measured in fewer than"
    assert f"We measured {total} cases on" in content["abstract"][0]
    assert sum(counted in line for line in content["verdicts"]) == 1
    assert sum(counted in line for line in content["threats"]) == 1
    assert f", {total} cases; records in" in readme.block(path)


def test_what_is_flagged_is_counted_as_verdicts(tmp_path) -> None:
    records = factory.optimizer()
    flagged = records[0].comparisons[0]
    flagged.flags = ["hardware throttling"]
    content = build(evidence.load(folder(tmp_path, records))).content
    total = sum(len(record.comparisons) for record in records)
    assert f"1 of {total} verdicts carries a flag: hardware throttling." in content["threats"]
    assert any(f"of {total} verdicts" in line for line in content["verdicts"])


def test_a_verdict_taken_back_for_a_busy_cpu_is_not_said_to_cross_the_margin(tmp_path) -> None:
    records = factory.optimizer()
    entries = [entry for record in records for entry in record.comparisons]
    decided = [entry for entry in entries if entry.verdict in ("faster", "slower")]
    before = len([entry for entry in entries if entry.verdict == "unclear"])
    for entry in decided[:2]:
        entry.verdict, entry.flags = "unclear", [BUSY_CPU]
    decided[0].flags = [BUSY_CPU, "hardware throttling"]
    crossing = decided[2]
    crossing.verdict, crossing.ratio, crossing.low, crossing.high = "unclear", 1.0, 0.9, 1.1
    content = build(evidence.load(folder(tmp_path, records))).content
    total = len(entries)
    assert (
        f"{before + 3} of {total} verdicts are unclear: in {before + 1} of them the interval "
        "crosses the margin, so neither a difference nor equality is shown; 2 were taken back, "
        f"since {BUSY_CPU}."
    ) in content["threats"]
    assert (
        f"2 of {total} verdicts carry a flag: hardware throttling (1) and {BUSY_CPU} (2)."
    ) in content["threats"]


def c6(records) -> str:
    [claim] = [entry for entry in claims.evaluate(merge(records)) if entry.id == "C6"]
    return claim.evidence[0]


def test_c6_says_in_words_why_a_run_has_too_few_sizes() -> None:
    need = "The claim needs fp16+apex+apex and fp32+torch+default on at least 4 model sizes; "
    assert c6(factory.amp()) == f"{need}this run trained no Transformer."
    assert c6(factory.cpu_records()) == (
        f"{need}this run has none, although it trained 1 model: unavailable: needs an NVIDIA GPU."
    )
    assert c6(factory.transformer()) == f"{need}this run has 1."
    lacking = "1 model more could not be compared (it lacks one of the two recipes)"
    mixed = factory.transformer(factory.LADDER[:2])
    mixed[1].cells = [c for c in mixed[1].cells if c.implementation != "fp16+apex+apex"]
    assert c6(mixed) == f"{need}this run has 1: {lacking}."


def prose(page: str) -> str:
    page = re.sub(r"<(svg|script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", "", page)).split())


def test_one_is_never_many(tmp_path) -> None:
    single = factory.optimizer()[:1]
    path = folder(tmp_path / "one", single)
    page = prose(html.render(build(evidence.load(path))))
    assert "1 case" in page
    assert ONE_MANY.search(page) is None
    slow = factory.optimizer()[:1]
    for quantity in slow[0].cells[0].quantities.values():
        quantity.value, quantity.low, quantity.high = (
            2 * value for value in (quantity.value, quantity.low, quantity.high)
        )
    slow[0].comparisons = slow[0].comparisons[:1]
    slow[0].comparisons[0].flags = ["x"]
    two = comparison([path, folder(tmp_path / "two", slow)])
    assert "1 time" in " ".join(compare.answer(two))
    for text in (*compare.answer(two), *compare.notes(two), prose(compare.page(two))):
        assert ONE_MANY.search(text) is None, text
