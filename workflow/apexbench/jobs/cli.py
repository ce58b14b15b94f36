"""The commands of a measuring job: ``measure``, and ``ranks`` on each of its nodes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from apexbench.disk import a_file


def measure(
    request: Annotated[str, typer.Option(help="The job's request, as JSON.")],
    out: Annotated[Path, typer.Option(callback=a_file, help="The job's index.json.")],
    log: Annotated[Path, typer.Option(callback=a_file, help="The job's log.")],
) -> None:
    """Measure one component's cases; what is measured already is kept."""
    import os
    from dataclasses import replace

    from apexbench.jobs import supervisor
    from apexbench.jobs.request import Request

    # As an exception, so that the measuring process and its folder go with it.
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    asked = replace(Request.parse(request), image=os.environ.get("APEXBENCH_IMAGE"))
    supervisor.run(asked, out, log)


def ranks(
    count: Annotated[int, typer.Argument(help="Ranks of this node.")],
    nodes: Annotated[int, typer.Argument(help="Nodes of the step.")],
    port: Annotated[int, typer.Argument(help="Of the first node.")],
    addresses: Annotated[str, typer.Argument(help="Of the first two nodes, with a comma.")],
    job: Annotated[Path, typer.Argument(callback=a_file, help="The process's job.json.")],
) -> None:
    """Run one node's ranks of a measuring process over several; Slurm starts it on each."""
    from apexbench.jobs.ranks import on_a_node

    raise typer.Exit(on_a_node(count, nodes, port, addresses.split(","), job))
