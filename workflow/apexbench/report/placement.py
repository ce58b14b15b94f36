"""Where the records of a run were measured: one GPU model is reported, its nodes and GPUs named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from apexbench.records import Record
from apexbench.report import numbers
from apexbench.report.cases import identity
from apexbench.report.evidence import Evidence


def of_one_model(evidence: Evidence) -> tuple[Evidence, str | None, list[str]]:
    """The evidence of the model with most records, that model, and notes for the reader."""
    model, notes = choose(evidence)
    kept = [record for record in evidence.records if identity(record)[0] == model]
    return replace(evidence, records=kept), model, notes


def choose(evidence: Evidence) -> tuple[str | None, list[str]]:
    """The GPU (or CPU) model with the most records, None without any, and notes for the reader."""
    found = Counter(identity(record)[0] for record in evidence.records)
    if not found:
        return None, ["This folder holds no record yet: every number below is missing."]
    model = max(sorted(found), key=lambda name: found[name])
    own = [record for record in evidence.records if identity(record)[0] == model]
    others = [record for record in evidence.records if identity(record)[0] != model]
    return model, [note for note in (_other_models(model, others), _spread(model, own)) if note]


def _other_models(model: str, others: Sequence[Record]) -> str | None:
    counted = Counter(identity(record) for record in others)
    if not counted:
        return None
    named = [
        f"{name} (node {node or 'unnamed'}, {numbers.plural(count, 'record')})"
        for (name, node), count in counted.items()
    ]
    devices = len({name for name, _ in counted}) + 1
    return (
        f"This folder holds records of {devices} devices. They are grouped by device and node and "
        f"never compared with each other; this report speaks of {model} only. Not shown here, but "
        f"in summary.csv: {numbers.listing(named)}."
    )


def _spread(model: str, records: Sequence[Record]) -> str | None:
    """That several GPUs of one model measured this run, and what no number mixes."""
    nodes = Counter(identity(record)[1] or "an unnamed node" for record in records)
    gpus = {gpu for record in records if (gpu := record.provenance.get("gpu_uuid"))}
    if len(nodes) < 2 and len(gpus) < 2:
        return None
    where = numbers.listing(
        [f"{node} ({numbers.plural(count, 'record')})" for node, count in nodes.items()]
    )
    counted = f"{len(gpus)} GPUs of this model" if len(gpus) > 1 else f"{len(nodes)} nodes"
    several = any(int(record.config.get("nodes") or 1) > 1 for record in records)
    parallel = "of one node or several" if several else "of one node"
    return (
        f"{counted} measured this run: {where}. Every case ran whole in one job, on one GPU (or "
        f"data-parallel on several {parallel}): no ratio or interval mixes two jobs, a share of a "
        "ceiling uses the ceiling of the same node, and a case that several measured is shown "
        f"once for each. Only counts of verdicts and trends over sizes speak of several {model} "
        "together."
    )
