"""How every figure looks, and how it becomes the same SVG bytes for the same records.

Ink and grid have one colour each, so that the HTML report can swap them for its theme's. Marks get
a title (value, interval, n), which a browser shows on hover.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib

matplotlib.use("Agg")

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from apexbench.report import vocabulary
from apexbench.report.cases import Arm
from apexbench.report.numbers import significant

INK, GRID, MUTED = "#1b1f24", "#d3d8de", "#6a737d"
# Okabe and Ito's palette: told apart with every common form of colour blindness.
BLUE, SKY, ORANGE, GREEN, PINK, AMBER = (
    "#0072b2",
    "#56b4e9",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
)
KINDS = {"torch": BLUE, "torch, compiled": SKY, "Apex": ORANGE, "other": GREEN}
MARKERS = {"torch": "o", "torch, compiled": "s", "Apex": "D", "other": "^"}
_RC: dict[Any, Any] = {
    "svg.hashsalt": "apexbench",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "font.family": "DejaVu Sans",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass
class Figure:
    """A finished figure: SVG text, what to see in it, and what it says to who cannot see it."""

    id: str
    component: str
    title: str
    caption: str
    alt: str
    svg: str


@dataclass
class Sheet:
    """A canvas in the making; ``titles`` maps the ids of its marks to their hover text."""

    canvas: Canvas
    titles: dict[str, str] = field(default_factory=dict)

    def title(self, text: str) -> str:
        """Register a mark's hover text; returns the id to give the artist."""
        name = f"mark{len(self.titles)}"
        self.titles[name] = text
        return name

    def svg(self) -> str:
        """The SVG text, with hover titles and without a date."""
        FigureCanvasSVG(self.canvas)
        stream = io.StringIO()
        with matplotlib.rc_context(_RC), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")
            self.canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        text = stream.getvalue()
        start = text.index("<svg")

        def titled(match: re.Match[str]) -> str:
            return f"{match[0]}<title>{html.escape(self.titles[match[1]])}</title>"

        names = "|".join(sorted(self.titles, key=len, reverse=True))
        # Matplotlib leaves every string in a comment beside its glyphs.
        body = re.sub(r"<!--.*?-->\s*", "", text[start:], flags=re.DOTALL)
        # A hundredth of a point is finer than any screen; scales, which are below 1, keep all.
        body = re.sub(r"(?<![\d.])([1-9]\d*\.\d\d)\d+", r"\1", body)
        return re.sub(rf'<g id="({names})">', titled, body) if names else body


def sheet(width: float, height: float) -> Sheet:
    """A canvas of that size in inches."""
    sns.set_theme(style="ticks", rc=_RC)
    return Sheet(Canvas(figsize=(width, height), layout="constrained"))


def axes(sheet: Sheet, rows: int = 1, columns: int = 1, **options: object) -> list[list[Axes]]:
    """A grid of axes without top and right spines."""
    with matplotlib.rc_context(_RC):
        grid = sheet.canvas.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
        for ax in grid.flat:
            sns.despine(ax=ax)
    return [list(row) for row in grid]


def kind(arm: Arm) -> str:
    """Which of the four families, and so which colour and marker, an arm has."""
    if arm.is_apex:
        return "Apex"
    if not arm.package.lower().startswith("torch"):
        return "other"
    name = arm.implementation.lower()
    compiled = "compile" in name or "graph" in name or bool(arm.details.get("compile"))
    return "torch, compiled" if compiled else "torch"


def legend(sheet: Sheet, kinds: list[str]) -> None:
    """One legend above the axes for the families that occur."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=KINDS[name], marker=MARKERS[name], linestyle="", markersize=5, label=name
        )
        for name in KINDS
        if name in kinds
    ]
    if handles:
        sheet.canvas.legend(
            handles=handles, loc="outside upper right", ncols=len(handles), labelcolor=INK
        )


def lost_mark(ax: Axes, x: float, y: float, status: str, text: str = "", **options: object) -> None:
    """A visible, labelled mark where a measurement is missing. ``x`` is a fraction of the axis."""
    from matplotlib.transforms import blended_transform_factory

    mark = vocabulary.STATUS_MARKS.get(status, "✕") if status else ""
    label = f"{mark} {text or vocabulary.status(status)}".strip()
    where = blended_transform_factory(ax.transAxes, ax.transData)
    ax.text(x, y, label, transform=where, color=MUTED, fontsize=8, va="center", **options)  # type: ignore[arg-type]


def ratio_axis(ax: Axes, which: str = "y") -> None:
    """A log axis of speed ratios with plain labels and a line at 1×."""
    axis: Any = ax.yaxis if which == "y" else ax.xaxis
    line: Callable[..., Any] = ax.axhline if which == "y" else ax.axvline
    (ax.set_yscale if which == "y" else ax.set_xscale)("log")
    low, high = axis.get_view_interval()
    subs: Sequence[float] = (1, 2, 5) if high / low > 6 else (1, 1.5, 2, 3, 4, 6, 8)
    if high / low < 1.6:
        subs = tuple(0.1 * step for step in range(10, 100))
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value:.3g}'):g}×"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    line(1, color=INK, linewidth=0.9)


def percent(value: float, _: object = None) -> str:
    """Tick label of a fraction."""
    return f"{100 * value:g} %"


def plain(value: float, _: object = None) -> str:
    """Tick label without needless zeros, thousands apart."""
    return (
        f"{float(significant(value)):g}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", " ")
    )
