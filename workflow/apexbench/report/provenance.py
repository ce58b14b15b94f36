"""What was measured on, with what, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import yaml

from apexbench.report import numbers
from apexbench.report.ceilings import Ceilings
from apexbench.report.evidence import Evidence

_NO_KEYS = ("hash", "indexes", "warnings")
Rows = list[tuple[str, str]]
_MACHINE = (
    ("Device", "device_name"),
    ("Node", "node"),
    ("GPU UUID", "gpu_uuid"),
    ("Slurm jobs", "slurm_job"),
    ("Slurm partition", "slurm_partition"),
    ("NVIDIA driver", "driver"),
    ("CUDA", "cuda"),
    ("cuDNN", "cudnn"),
    ("Triton", "triton"),
    ("PyTorch", "torch"),
    ("Python", "python"),
)
_RUN = (
    ("Run", "run"),
    ("apexbench", "apexbench"),
    ("Seed", "seed"),
    ("Runtime", "runtime"),
    ("Image", "image"),
    ("Config hash", "config_hash"),
    ("Source hash", "source"),
)


def _text(values: Sequence[Any]) -> str:
    return "; ".join(str(value) for value in values) if values else "n/a"


def machine(evidence: Evidence, limits: Ceilings) -> Rows:
    """The machine and its software, then the ceilings measured in the same run."""
    rows = [(label, _text(evidence.provenance(key))) for label, key in _MACHINE]
    for entry in evidence.provenance("apex"):
        if isinstance(entry, dict):
            rows += [row for row in _apex(entry) if row not in rows]
    for (device, name), ceiling in limits.items():
        rate = numbers.rate(ceiling.per_second, ceiling.unit, ceiling.low, ceiling.high)
        rows.append((f"Ceiling: {name}", f"{rate} on {device[0]}"))
    return rows


def _apex(entry: dict[str, Any]) -> Rows:
    modules = entry.get("modules") or []
    if isinstance(modules, dict):
        modules = [name for name, usable in modules.items() if usable]
    rows = [
        ("Apex", str(entry.get("sentence") or entry.get("state") or "n/a")),
        ("Apex commit", str(entry.get("commit") or "n/a")),
        ("Apex modules", ", ".join(map(str, modules)) or "none"),
    ]
    if entry.get("remedy"):
        rows.append(("To get Apex", str(entry["remedy"])))
    return rows


def run(evidence: Evidence) -> Rows:
    """What identifies the run."""
    rows = [(label, _text(evidence.provenance(key))) for label, key in _RUN]
    preset = evidence.config.get("preset") or _text(evidence.provenance("preset"))
    rows.insert(2, ("Preset", str(preset)))
    started, finished = evidence.provenance("started"), evidence.provenance("finished")
    rows.append(
        ("Measured", f"{min(map(str, started))} to {max(map(str, finished))}" if started else "n/a")
    )
    rows.append(("Records", str(len(evidence.records))))
    return rows


def config(evidence: Evidence) -> str:
    """The effective configuration as one line of YAML; empty if unknown.

    What ``auto`` chose on this machine is in it, so that another machine measures the same.
    """
    kept = {key: value for key, value in evidence.config.items() if key not in _NO_KEYS}
    if not kept:
        return ""
    text = yaml.safe_dump(
        kept, default_flow_style=True, sort_keys=True, allow_unicode=True, width=math.inf
    )
    return str(text).strip()


def date(evidence: Evidence) -> str:
    """The day of the newest record as ``2026-12-01``: what the paper is dated with."""
    found = sorted(str(value)[:10] for value in evidence.provenance("finished"))
    return found[-1] if found and _is_day(found[-1]) else "1970-01-01"


def _is_day(text: str) -> bool:
    from datetime import date as day

    try:
        return day.fromisoformat(text).year >= 1970
    except ValueError:
        return False
