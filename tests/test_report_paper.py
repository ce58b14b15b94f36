"""The paper: figures among their section's words, and no row left out in silence."""

from __future__ import annotations

import re

import record_factory as factory
from apexbench.report import evidence, paper
from apexbench.report.document import Document, build
from rendered import pdf_text


def papers(tmp_path, document: Document) -> str:
    (tmp_path / "report.pdf").write_bytes(paper.render(document))
    return pdf_text(tmp_path / "report.pdf")


def test_every_figure_stands_in_its_section_and_no_row_is_dropped_in_silence(
    tmp_path, monkeypatch
) -> None:
    records = [*factory.ceilings(), *factory.optimizer(), *factory.norms(), *factory.amp()]
    document = build(evidence.load(factory.write_run(tmp_path / "run", records)))
    monkeypatch.setattr(paper, "MOST_ROWS", 3)
    document.content["sections"][2]["table"]["rows"] = []
    text = papers(tmp_path, document)
    sections = document.content["sections"]
    heads = [re.search(rf"\b{n} {entry['title']} ", text) for n, entry in enumerate(sections, 4)]
    starts = [found.start() for found in heads if found] + [text.index("What is missing")]
    assert len(starts) == len(sections) + 1
    drawn = 0
    for entry, start, end in zip(sections, starts, starts[1:], strict=False):
        for figure in entry["figures"]:
            drawn += 1
            assert f": {figure['title'][:40]}" in text[start:end]
    assert drawn > 3
    for index in (0, 1):
        total = sections[index]["table"]["total"]
        assert f"(the first 3 of {total} rows; all are in summary.csv)" in text
        assert f"{total - 3} more of {total} rows: in summary.csv and report.html." in text
    total = sections[2]["table"]["total"]
    assert f"The {total} rows of every cell are in summary.csv." in text
