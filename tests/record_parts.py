"""The parts of synthetic records: provenance, cells, comparisons, a run folder on the disk."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.measuring import statistics
from apexbench.records import Cell, Check, Comparison, Parity, Quantity, Record, Work

MS = 1_000_000


def provenance(device: str = "cuda", **changed: Any) -> dict[str, Any]:
    """Where an invented record comes from."""
    gpu = device == "cuda"
    return {
        "run": "run-0001",
        "machine": "test-gpu" if gpu else "cpu-test",
        "device": device,
        "device_name": "Test GPU 9000" if gpu else "Test CPU 8-Core",
        "gpu_uuid": "GPU-00000000-0000-0000-0000-000000000000" if gpu else None,
        "node": "node1",
        "started": "2026-12-01T04:00:00Z",
        "finished": "2026-12-01T04:09:00Z",
        "seed": 0,
        "torch": "2.11.0+cu130" if gpu else "2.13.0+cpu",
        "cuda": "13.0" if gpu else None,
        "cudnn": "9.13.0" if gpu else None,
        "triton": "3.6.0" if gpu else None,
        "python": "3.12.3",
        "driver": "580.0" if gpu else None,
        "apex": {
            "state": "compiled" if gpu else "absent",
            "commit": "6424da3b4faa6c8f062da4a48c424fff3f02d42d" if gpu else None,
            "modules": ["amp_C", "fused_layer_norm_cuda"] if gpu else [],
            "sentence": "Apex 6424da3b is compiled." if gpu else "Apex is not installed.",
            "remedy": None if gpu else "Use a machine with an NVIDIA GPU.",
        },
        "apexbench": "0.1.0",
        "source": "0" * 16,
        "config_hash": "1" * 16,
        "preset": "full" if gpu else "quick",
        "runtime": "native",
        "image": None,
        **changed,
    }


def quantity(value: float, rounds: int = 40, spread: float = 0.002, seed: int = 0) -> Quantity:
    """``rounds`` samples around ``value`` ns, one call each."""
    rng = random.Random(seed)
    samples = [max(1, round(value * rng.lognormvariate(0, spread))) for _ in range(rounds)]
    middle = sorted(samples)[rounds // 2]
    return Quantity(
        timer="cuda_event",
        calls_per_sample=1,
        samples=samples,
        value=float(middle),
        low=middle * (1 - spread),
        high=middle * (1 + spread),
    )


def cell(
    implementation: str,
    value: float,
    package: str = "torch",
    kind: str = "device_time",
    seed: int = 0,
    **changed: Any,
) -> Cell:
    """An ``ok`` cell that takes ``value`` ns."""
    return Cell(
        **{
            "implementation": implementation,
            "package": package,
            "status": "ok",
            "description": f"{package} {implementation}",
            "parity": Parity(True, "4·eps·sqrt(n)", [Check("output", 1e-7, 1e-5)]),
            "quantities": {kind: quantity(value, seed=seed)},
            "peak_memory_bytes": 2**30,
            **changed,
        }
    )


def lost(implementation: str, package: str, status: str, reason: str, remedy: str | None) -> Cell:
    """A cell without a measurement."""
    return Cell(implementation, package, status, reason=reason, remedy=remedy)


def compare(
    kind: str, name: str, baseline: str, members: list[Cell], own: Cell, margin: float = 0.01
) -> Comparison:
    """``own`` against the strongest member, ± 0.4 %."""
    best = min(member.quantities[kind].value for member in members)
    ratio = best / own.quantities[kind].value
    low, high = ratio * 0.996, ratio * 1.004
    return Comparison(
        kind,
        name,
        baseline,
        [member.implementation for member in members],
        ratio,
        low,
        high,
        margin,
        records.verdict(low, high, margin),
        40,
    )


def record(
    component: str,
    case: str,
    cells: list[Cell],
    kind: str = "device_time",
    default: str | None = None,
    eager: tuple[str, ...] = (),
    best: tuple[str, ...] = (),
    process: int = 0,
    **changed: Any,
) -> Record:
    """A record; ``default``, ``eager`` and ``best`` name the members of the three baselines."""
    good = {c.implementation: c for c in cells if c.status == "ok" and kind in c.quantities}
    sets = {
        "torch_default": [default] if default else [],
        "torch_eager_best": list(eager),
        "torch_best": list(best),
    }
    comparisons = [
        compare(kind, own.implementation, name, [good[m] for m in members if m in good], own)
        for own in good.values()
        for name, members in sets.items()
        if any(m in good for m in members) and own.implementation not in members
    ]
    value: dict[str, Any] = {
        "component": component,
        "case": case,
        "key": records.digest([component, case, process]),
        "process": process,
        "config": {},
        "environment": {},
        "provenance": provenance(),
        "quantity": kind,
        "confidence": 0.99,
        "work": Work(None, None, "n/a", None, "no byte model"),
        "cells": cells,
        "comparisons": comparisons,
        "baselines": {
            name: {"members": members, "reason": None if members else "no such member"}
            for name, members in sets.items()
        },
        "sampling": {"pilot_rounds": 30, "rounds": 40, "blocks": 4, "stop": "target"},
        "state": [
            {
                "sm_clock_mhz": 1980,
                "memory_clock_mhz": 3201,
                "temperature_c": 45,
                "power_w": 510.0,
                "hardware_throttle": [],
                "software_throttle": [],
                "foreign_processes": [],
            }
        ],
        "seconds": {"total": 4.0, "setup": 0.5, "compile": 0.3, "parity": 0.2, "sampling": 3.0},
    }
    return Record(**{**value, **changed})


def write_run(folder: Path, entries: list[Record], missing: dict[str, list] | None = None) -> Path:
    """A run folder with these records and an index per component (or model and process)."""
    missing = missing or {}
    groups: dict[str, list[Record]] = {name: [] for name in missing}
    for entry in entries:
        name = entry.component
        if name == "transformer":
            name = f"transformer/{records.file_name(entry.case, str(entry.process))[:-5]}"
        groups.setdefault(name, []).append(entry)
    for name, group in groups.items():
        home = folder / "records" / name
        files = [{"file": records.write(entry, home).name} for entry in group]
        index = {
            "component": name.split("/")[0],
            "records": files,
            "missing": missing.get(name, []),
        }
        (home / "index.json").parent.mkdir(parents=True, exist_ok=True)
        (home / "index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"preset": "full", "seed": 0}))
    (folder / "machine.json").write_text(json.dumps({"machine": "test-gpu"}))
    return folder


def agree(records_: list[Record]) -> list[Record]:
    """The records with comparisons computed anew from their samples, as measuring computes them."""
    for entry in records_:
        confidence = entry.confidence
        for found in entry.comparisons:
            times = {
                c.implementation: c.quantities[found.quantity].samples
                for c in entry.cells
                if found.quantity in c.quantities
            }
            rounds = len(times[found.implementation])
            blocks = [block for block in range(20) for _ in range(rounds // 20)]
            share = statistics.member_confidence(confidence, len(found.members))
            interval = statistics.strongest(
                [
                    statistics.log_ratio(times[member], times[found.implementation], blocks, share)
                    for member in found.members
                ]
            )
            found.ratio, found.low, found.high = (
                math.exp(end) for end in (interval.value, interval.low, interval.high)
            )
            found.verdict = records.verdict(found.low, found.high, found.margin)
    return records_
