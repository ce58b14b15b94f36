"""From a run folder to summary.csv, figures, report.html and report.pdf."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from apexbench.records import write_bytes_atomically, write_text_atomically
from apexbench.report import evidence as source
from apexbench.report import html, paper, summary
from apexbench.report.document import Document, build


def report(
    records: Path,
    out: Path,
    expect: Sequence[Path] = (),
    beside: Sequence[Path] = (),
    pdf: bool = True,
) -> None:
    """Build everything that a reader gets, from records alone.

    ``records`` is a run folder (``results``, ``results/reference/<machine>``) or its ``records``;
    ``out`` gets ``summary.csv``, ``summary.json``, ``figures/*.svg``, ``report.html`` and, unless
    ``pdf`` is False, which removes an older one, ``report.pdf``. A table or figure that is there
    already with the same bytes is left alone, so that its time stamp stays. ``expect`` are index
    files whose absence the report must show, ``beside`` the ``report.html`` of other machines, each
    in a folder of its machine's name, to
    link to: named, not looked for, so that the page does not depend on what is built first.
    Raises UserError for a bad record, before anything is written.
    """
    out = Path(out)
    evidence = source.load(records, expect)
    frame = summary.table(evidence)
    document = build(evidence)
    page = html.render(document, _links(beside, out))
    sheets = paper.render(document) if pdf else None
    _write_changed(out / "summary.csv", summary.csv_text(frame))
    _write_changed(out / "summary.json", summary.json_text(frame))
    _figures(document, out / "figures")
    write_text_atomically(out / "report.html", page)
    if sheets is None:
        (out / "report.pdf").unlink(missing_ok=True)
    else:
        write_bytes_atomically(out / "report.pdf", sheets)


def _links(beside: Sequence[Path], out: Path) -> list[tuple[str, str]]:
    """Each report's machine, and its path from ``out``."""
    return [
        (path.parent.name, Path(os.path.relpath(path.resolve(), out.resolve())).as_posix())
        for path in map(Path, beside)
    ]


def figures(records: Path, out: Path) -> None:
    """The figures alone, ``*.svg`` in ``out``; the folder is made even if there is none to draw."""
    _figures(build(source.load(records)), Path(out))


def _write_changed(path: Path, text: str) -> None:
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text_atomically(path, text)


def _figures(document: Document, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for figure in document.figures:
        _write_changed(folder / f"{figure.id}.svg", figure.svg)
    current = {f"{figure.id}.svg" for figure in document.figures}
    for stale in folder.glob("*.svg"):
        if stale.name not in current:
            stale.unlink()
