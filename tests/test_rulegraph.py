"""The README's drawing of the workflow is what Snakemake says, less the arrows others imply."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise, product

import pytest

from conftest import ROOT

Graph = dict[str, set[str]]


def snakemake_graph() -> Graph:
    """The rules and what follows each, from ``snakemake --rulegraph``."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "mermaid-js"]
    drawn = subprocess.run(
        [*command, "--config", "preset=quick", "device=cpu", "runtime=native"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    names = dict(re.findall(r"^\s*(id\d+)\[(\w+)\]", drawn, re.MULTILINE))
    graph: Graph = {name: set() for name in names.values()}
    for before, after in re.findall(r"(id\d+) --> (id\d+)", drawn):
        graph[names[before]].add(names[after])
    return graph


def readme_graph() -> Graph:
    """The same from the README's drawing: ``a & b --> c --> d`` on a line."""
    drawing = re.search(
        r"```mermaid\nflowchart LR\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert drawing
    graph: Graph = {}
    for line in drawing[1].splitlines():
        stages = [re.findall(r"\w+", stage) for stage in line.split("-->")]
        for name in (name for stage in stages for name in stage):
            graph.setdefault(name, set())
        for befores, afters in pairwise(stages):
            for before, after in product(befores, afters):
                graph[before].add(after)
    return graph


def reachable(graph: Graph, name: str) -> set[str]:
    found, waiting = set(), list(graph[name])
    while waiting:
        if (following := waiting.pop()) not in found:
            found.add(following)
            waiting += graph[following]
    return found


def reduced(graph: Graph) -> Graph:
    """Without the arrows that a longer way implies."""
    return {
        name: {
            after
            for after in afters
            if not any(after in reachable(graph, other) for other in afters - {after})
        }
        for name, afters in graph.items()
    }


def test_the_readme_draws_the_rules_as_snakemake_does():
    assert readme_graph() == reduced(snakemake_graph())


@pytest.mark.parametrize(("wanted", "typeset"), [("true", True), ("false", False)])
def test_the_paper_is_made_where_it_is_wanted(wanted: str, typeset: bool):
    command = [sys.executable, "-m", "snakemake", "--cores=1", "--dry-run", "--forceall"]
    chosen = ["preset=quick", "device=cpu", "runtime=native", f"report={{pdf: {wanted}}}"]
    done = subprocess.run(
        [*command, "--config", *chosen], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ("results/report.pdf" in done.stdout + done.stderr) is typeset
