"""The report as a paper in PDF, typeset by Typst with the fonts that its wheel ships."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from apexbench.errors import UserError
from apexbench.report.document import Document

TEMPLATE = Path(__file__).parents[2] / "report" / "paper.typ"
MOST_ROWS = 100


def render(document: Document) -> bytes:
    """The PDF. Typst reads the content as JSON data, so no string of a record is ever markup.

    The creation date is the day of the newest record, so the same records give the same bytes.
    """
    import typst

    content = dict(document.content)
    content["most_rows"] = MOST_ROWS
    day = datetime.fromisoformat(content["date"]).replace(tzinfo=UTC)
    with tempfile.TemporaryDirectory(prefix="apexbench-paper-") as folder:
        root = Path(folder)
        (root / "paper.typ").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
        (root / "content.json").write_text(json.dumps(content), encoding="utf-8")
        for figure in document.figures:
            (root / f"{figure.id}.svg").write_text(figure.svg, encoding="utf-8")
        try:
            compiler = typst.Compiler(
                str(root / "paper.typ"), root=str(root), ignore_system_fonts=True
            )
            pdf = compiler.compile(format="pdf", timestamp=day)
        except typst.TypstError as error:
            raise UserError(f"The paper could not be typeset: {error.message}.") from error
    assert isinstance(pdf, bytes)
    return pdf
