"""A run folder may hold records of several devices: a report speaks of one and names the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from apexbench.report import numbers
from apexbench.report.cases import identity
from apexbench.report.evidence import Evidence


def of_one(evidence: Evidence) -> tuple[Evidence, tuple[str, str] | None, list[str]]:
    """The evidence of the device with most records, that device, and a note naming the others."""
    found = Counter(identity(record) for record in evidence.records)
    if not found:
        return evidence, None, ["This folder holds no record yet: every number below is missing."]
    device = max(sorted(found), key=lambda key: found[key])
    if len(found) == 1:
        return evidence, device, []
    others = [
        f"{name} (node {node or 'unnamed'}, {numbers.plural(count, 'record')})"
        for (name, node), count in found.items()
        if (name, node) != device
    ]
    note = (
        f"This folder holds records of {len(found)} devices. They are grouped by device and node "
        f"and never compared with each other; this report speaks of {device[0]} "
        f"(node {device[1] or 'unnamed'}) only. Not shown here, but in summary.csv: "
        f"{numbers.listing(others)}."
    )
    own = [record for record in evidence.records if identity(record) == device]
    return replace(evidence, records=own), device, [note]
