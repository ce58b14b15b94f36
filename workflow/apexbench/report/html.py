"""The report as one self-contained HTML file: no request leaves it, no script is foreign."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from apexbench.report.document import Document
from apexbench.report.figures import Figure
from apexbench.report.figures.style import GRID, INK, MUTED

TEMPLATES = Path(__file__).parents[2] / "report"


def render(document: Document, beside: Sequence[tuple[str, str]] = ()) -> str:
    """The HTML text. Everything from a record is escaped; only our own SVG, CSS and JS are not.

    ``beside`` are other reports to link to: the machine's name, and a path from this file's folder.
    """
    return template("report.html.j2").render(
        **document.content,
        beside=[(machine, quote(path)) for machine, path in beside],
        svg={figure.id: Markup(inline(figure)) for figure in document.figures},
        css=own("report.css"),
        js=own("report.js"),
    )


def template(name: str) -> jinja2.Template:
    """A template of ``workflow/report/``; it escapes whatever is put into it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["whole"] = whole
    return environment.get_template(name)


def whole(text: str) -> Markup:
    """Escaped text: a value keeps its interval on its line, a long label may break at signs."""
    parts = re.split(r"(\S{1,12} \[[^\[\]<>]{1,40}\])", text)
    return Markup("").join(
        Markup('<span class="whole">{}</span>').format(part)
        if index % 2
        else Markup("<wbr>").join(escape(piece) for piece in re.split(r"(?<=[+_/])(?=\w)", part))
        for index, part in enumerate(parts)
    )


def own(name: str) -> Markup:
    """A file of ours as it is: style or script."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def inline(figure: Figure) -> str:
    """A figure's SVG for a page that holds several and has themes.

    Ids get the figure's name before them, ink and grid take the theme's colours, and hover titles
    become ``data-tip`` so that the page shows them at once.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "-", figure.id)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', figure.svg)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'(<g id="[^"]+")><title>([^<]*)</title>', r'\1 data-tip="\2">', text)
    text = (
        text.replace(INK, "currentColor")
        .replace(GRID, "var(--grid)")
        .replace(MUTED, "var(--muted)")
    )
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r">\s+<", "><", text).replace(" \n", " ").replace("\n", " ")
    return re.sub(r"^<svg ", '<svg aria-hidden="true" focusable="false" ', text)
