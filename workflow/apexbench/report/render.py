"""From a run folder to summary.csv, figures, report.html and report.pdf."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from apexbench.errors import UserError
from apexbench.records import write_text_atomically
from apexbench.report import evidence as source
from apexbench.report import html, paper, summary
from apexbench.report.document import Document, build


def report(records: Path, out: Path) -> None:
    """Build everything that a reader gets, from records alone.

    ``records`` is a run folder (``results``, ``results/reference/<machine>``) or its ``records``;
    ``out`` gets ``summary.csv``, ``summary.json``, ``figures/*.svg``, ``report.html`` and
    ``report.pdf``. Raises UserError for a bad record, before anything is written.
    """
    evidence = source.load(records)
    summary.write(summary.table(evidence), Path(out))
    write(build(evidence), Path(out))


def draw(records: Path, out: Path) -> None:
    """The figures alone, as ``figures/*.svg`` in ``out``."""
    _figures(build(source.load(records)), Path(out))


def write(document: Document, out: Path) -> None:
    """Write figures, HTML and PDF of a built document."""
    _figures(document, out)
    write_text_atomically(out / "report.html", html.render(document))
    _write_bytes(out / "report.pdf", paper.render(document))


def _figures(document: Document, out: Path) -> None:
    folder = out / "figures"
    for figure in document.figures:
        write_text_atomically(folder / f"{figure.id}.svg", figure.svg)
    current = {f"{figure.id}.svg" for figure in document.figures}
    for stale in folder.glob("*.svg"):
        if stale.name not in current:
            stale.unlink()


def _write_bytes(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".report-", delete=False) as stream:
            stream.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(stream.name, 0o666 & ~mask)
        os.replace(stream.name, path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): free the disk or make its folder writable."
        ) from error
