"""The README's part that shows a reference run: generated from its records, never typed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from apexbench.errors import UserError
from apexbench.records import write_text_atomically
from apexbench.report import answer, claims, numbers
from apexbench.report import evidence as source
from apexbench.report.cases import Case, compared, merge
from apexbench.report.figures import Figure, draw_all

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


FIGURES = ("layer_norm-ratio", "transformer-attribution")


def block(records: Path) -> str:
    """Markdown of a run folder: what it measured, what Apex is worth, the claims, two figures."""
    evidence = source.load(records)
    cases = merge(evidence.records)
    if not cases:
        raise UserError(f"{records} holds no record: name the folder of a finished run.")
    first = evidence.records[0].provenance
    apex = first.get("apex")
    commit = str(apex.get("commit") or "none") if isinstance(apex, dict) else "none"
    device, torch, driver = (
        _cell(str(first.get(key))) for key in ("device_name", "torch", "driver")
    )
    lines = [
        f"{device}, torch {torch}, driver {driver}, Apex "
        f"`{_cell(commit[:8])}`, {numbers.plural(len(compared(cases)), 'case')}; records in "
        f"`{records.as_posix()}/`, `make paper` rebuilds the whole report from them.",
        "",
        f"| build Apex on an {device} for … | | why |",
        "|---|---|---|",
    ]
    for tile in answer.tiles(cases, str(first.get("device_name"))):
        verdict = " ".join(part for part in (tile.answer, tile.where) if part)
        lines.append(f"| {_cell(tile.label)} | **{_cell(verdict)}** | {_cell(tile.line)} |")
    lines += ["", "| claim of the tutorials | status | first evidence |", "|---|---|---|"]
    for claim in claims.evaluate(cases):
        evidence_shown = claim.evidence[0] if claim.evidence else ""
        lines.append(
            f"| {claim.id}: {_cell(claim.text)} | {claim.status} | {_cell(evidence_shown)} |"
        )
    for figure in _drawn(cases):
        path = records / "figures" / f"{figure.id}.svg"
        lines += ["", f"![{_cell(figure.alt)}]({path.as_posix()})", ""]
        lines.append(f"*{_cell(figure.title)}.* {_cell(figure.caption)}")
    return "\n".join(lines) + "\n"


def figures(records: Path) -> dict[Path, str]:
    """The SVG files that the block shows, by path; on white, for readers in the dark."""
    drawn = _drawn(merge(source.load(records).records))
    return {records / "figures" / f"{figure.id}.svg": _on_white(figure.svg) for figure in drawn}


def _drawn(cases: Sequence[Case]) -> list[Figure]:
    found = {figure.id: figure for figure in draw_all(cases)}
    return [found[name] for name in FIGURES if name in found]


def _on_white(svg: str) -> str:
    head, mark, body = svg.partition(">")
    return f'{head}{mark}\n <rect width="100%" height="100%" fill="#ffffff"/>{body}'


def _cell(text: str) -> str:
    return " ".join(escape(text, quote=False).replace("|", "\\|").split())


def update(readme: Path, records: Path) -> None:
    """Rewrite what stands between the two markers; UserError if they are not there."""
    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(
            f"{readme} cannot be read ({reason}): name a file that holds the two markers."
        ) from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{readme} must hold {BEGIN} and {END} once each, in that order.")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    for path, svg in figures(records).items():
        write_text_atomically(path, svg)
    write_text_atomically(readme, f"{head}{BEGIN}\n{block(records)}{END}{tail}")
