"""Synthetic records for tests: valid by schema, invented numbers, no GPU needed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.records import Cell, Check, Comparison, Parity, Quantity, Record, Work

MS = 1_000_000
COPY, BF16, FP16, TF32, FP32 = 4.0e12, 800e12, 790e12, 400e12, 50e12


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
    if low > 1 + margin:
        verdict = "faster"
    elif high < 1 / (1 + margin):
        verdict = "slower"
    else:
        verdict = "same" if low >= 1 / (1 + margin) and high <= 1 + margin else "unclear"
    return Comparison(
        kind,
        name,
        baseline,
        [member.implementation for member in members],
        ratio,
        low,
        high,
        margin,
        verdict,
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


def ceilings(**changed: Any) -> list[Record]:
    """Copy bandwidth and the four matmul precisions."""
    size = 2**30
    flops = 2 * 8192**3
    cells = [cell("copy", 2 * size / COPY * 1e9, details={"bytes": 2 * size})] + [
        cell(f"matmul_{name}", flops / peak * 1e9, details={"flops": flops})
        for name, peak in {
            "bfloat16": BF16,
            "float16": FP16,
            "tf32": TF32,
            "float32": FP32,
        }.items()
    ]
    work = Work(2 * size, None, "2 · n", "copy")
    return [record("ceiling", "copy and matmul", cells, work=work, **changed)]


def optimizer(**changed: Any) -> list[Record]:
    """The AdamW arms on two models; FusedAdam ties fused=True."""
    result = []
    for model, parameters, scale in (
        ("gpt2-124M", 124_000_000, 1.0),
        ("gpt2-1.5B", 1_560_000_000, 9.5),
    ):
        times = {
            "adamw_for_loop": 9.65,
            "adamw_foreach": 3.72,
            "adamw_fused": 1.66,
            "adamw_compiled": 1.60,
        }
        cells = [
            cell(n, t * scale * MS, kind="step_time", seed=i)
            for i, (n, t) in enumerate(times.items())
        ]
        cells.append(
            cell(
                "fused_adam",
                1.65 * scale * MS,
                "apex",
                "step_time",
                7,
                kernels=["multi_tensor_apply_kernel"],
            )
        )
        cells.append(cell("fused_adam_capturable", 2.38 * scale * MS, "apex", "step_time", 8))
        result.append(
            record(
                "optimizer",
                f"{model} float32",
                cells,
                "step_time",
                "adamw_foreach",
                ("adamw_for_loop", "adamw_foreach", "adamw_fused"),
                ("adamw_for_loop", "adamw_foreach", "adamw_fused", "adamw_compiled"),
                config={"model": model, "parameters": parameters, "dtype": "float32"},
                work=Work(28 * parameters, None, "28 B/parameter", "copy"),
                **changed,
            )
        )
    return result


def norms(component: str = "layer_norm", **changed: Any) -> list[Record]:
    """Widths × dtypes × directions; Apex leads only in float32 at width 2048, both directions."""
    apex = "fused_layer_norm" if component == "layer_norm" else "fused_rms_norm"
    result = []
    for width in (768, 2048, 4096, 16384):
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            for direction, passes in (("forward", 2), ("forward_backward", 5)):
                elements = 2**27
                base = passes * elements * size / 2.4e12 * 1e9
                leads = width == 2048 and dtype == "float32" and direction == "forward_backward"
                cells = [
                    cell("eager", base, seed=width),
                    cell("compiled", base * 0.8, seed=width + 1),
                    cell(apex, base * (0.78 if leads else 1.4), "apex", seed=width + 2),
                ]
                result.append(
                    record(
                        component,
                        f"{dtype} {width} {direction}",
                        cells,
                        "device_time",
                        "eager",
                        ("eager",),
                        ("eager", "compiled"),
                        config={
                            "width": width,
                            "rows": elements // width,
                            "dtype": dtype,
                            "direction": direction,
                            "autocast": False,
                        },
                        work=Work(passes * elements * size, None, f"{passes} passes", "copy"),
                        **changed,
                    )
                )
    return result


def amp(**changed: Any) -> list[Record]:
    """The tutorial's MLP; the legacy arm is unavailable."""
    cells = [
        cell(
            "fp32",
            2.0 * MS,
            kind="step_time",
            details={"loss": 2.1, "scale": None, "skipped_steps": 0},
        ),
        cell(
            "autocast_fp16",
            1.7 * MS,
            kind="step_time",
            details={"loss": 2.1, "scale": 65536.0, "skipped_steps": 1},
        ),
        lost(
            "apex_amp_O1",
            "apex-legacy",
            "unavailable",
            "apex.amp was removed from Apex in 2025",
            "Build docker/legacy-amp.Dockerfile.",
        ),
    ]
    return [
        record(
            "amp", "tutorial MLP", cells, "step_time", "fp32", ("fp32", "autocast_fp16"), **changed
        )
    ]


def recipe_details(label: str, parameters: int, tokens: int, rng: random.Random) -> dict[str, Any]:
    """The details a trained recipe leaves."""
    precision, norm, optimizer, *more = label.split("+")
    start = 9.0
    losses = [[s, 4.1 + (start - 4.1) * 0.97**s + rng.gauss(0, 0.02)] for s in range(0, 100, 5)]
    return {
        "precision": precision,
        "norm": norm,
        "optimizer": optimizer,
        "compile": "compile" in more,
        "cudagraph": "cudagraph" in more,
        "tokens_per_step": tokens,
        "parameters": parameters,
        "matmul_parameters": int(parameters * 0.8),
        "flops_per_token": 6 * int(parameters * 0.8) + 6 * 12 * 768 * 1024,
        "flops_per_token_palm": 6 * parameters + 12 * 12 * 768 * 1024,
        "losses": losses,
        "held_out_loss": losses[-1][1],
        "loss_floor": 3.9,
        "steps": 100,
        "skipped_steps": 1 if precision == "fp16" else 0,
        "scale": 32768.0 if precision == "fp16" else None,
        "scale_history": [[0, 65536.0], [1, 32768.0]] if precision == "fp16" else [],
    }


def transformer(
    models: tuple[tuple[str, int], ...] = (("gpt2-124M", 124_000_000),),
    processes: int = 1,
    **changed: Any,
) -> list[Record]:
    """The factorial, torch's compiled recipe and one captured step, for each model and process."""
    result = []
    precision_factor = {"fp32": 1.0, "tf32": 0.35, "fp16": 0.18, "bf16": 0.175}
    for size, (model, parameters) in enumerate(models):
        tokens = 16384
        for process in range(processes):
            rng = random.Random(process)
            full = 300 * MS * parameters / 124e6 * (1 - 0.01 * process)
            cells = []
            for precision, factor in precision_factor.items():
                for norm in ("torch", "apex"):
                    for optimizer in ("default", "fused", "apex"):
                        label = f"{precision}+{norm}+{optimizer}"
                        cost = full * factor * (1.02 if norm == "apex" else 1) ** (1 + size)
                        cost += {"default": 4.0, "fused": 1.7, "apex": 1.7}[optimizer] * MS
                        details = recipe_details(label, parameters, tokens, rng)
                        package = "apex" if "apex" in label else "torch"
                        cells.append(
                            cell(
                                label,
                                cost,
                                package,
                                "step_time",
                                len(cells) + process,
                                details=details,
                                parity=None,
                            )
                        )
            for label, factor in (
                ("bf16+torch+fused+compile", 0.11),
                ("bf16+torch+fused+compile+cudagraph", 0.105),
            ):
                details = recipe_details(label, parameters, tokens, rng)
                cells.append(
                    cell(
                        label,
                        full * factor,
                        "torch",
                        "step_time",
                        90,
                        details=details,
                        parity=None,
                        compile_seconds=30.0,
                    )
                )
            eager = tuple(
                c.implementation
                for c in cells
                if c.package == "torch" and "compile" not in c.implementation
            )
            every = tuple(c.implementation for c in cells if c.package == "torch")
            result.append(
                record(
                    "transformer",
                    model,
                    cells,
                    "step_time",
                    "fp32+torch+default",
                    eager,
                    every,
                    process,
                    config={"model": model, "sequence": 1024, "batch": 16},
                    **changed,
                )
            )
    return result


LADDER = (
    ("ladder-5M", 5_000_000),
    ("ladder-25M", 25_000_000),
    ("gpt2-124M", 124_000_000),
    ("gpt2-350M", 350_000_000),
    ("gpt-1.3B", 1_300_000_000),
)


def gpu_records() -> list[Record]:
    """A run as a GPU with a compiled Apex leaves it."""
    lost_case = record(
        "layer_norm",
        "bfloat16 16384 out of memory",
        [
            cell("eager", 9 * MS),
            lost(
                "fused_layer_norm",
                "apex",
                "out_of_memory",
                "64.0 GiB asked, 12.0 GiB free",
                "Choose fewer rows.",
            ),
            lost(
                "compiled", "torch", "parity_failed", "output differs by 0.3 (tolerance 0.01)", None
            ),
        ],
        default="eager",
        eager=("eager",),
        best=("eager",),
        config={
            "width": 16384,
            "rows": 2**20,
            "dtype": "bfloat16",
            "direction": "forward",
            "autocast": False,
        },
    )
    return [
        *ceilings(),
        *optimizer(),
        *norms("layer_norm"),
        lost_case,
        *norms("rms_norm"),
        *amp(),
        *transformer(),
    ]


def cpu_records() -> list[Record]:
    """A run without a GPU: torch measured, Apex unavailable in every component."""
    result = []
    why, remedy = "needs an NVIDIA GPU", "Run on a machine with an NVIDIA GPU."
    for entry in [*optimizer(), *norms()[:4], *norms("rms_norm")[:4], *amp(), *transformer()]:
        for index, old in enumerate(entry.cells):
            if old.package.startswith("apex"):
                entry.cells[index] = lost(
                    old.implementation, old.package, "unavailable", why, remedy
                )
                entry.cells[index].details = {
                    k: old.details[k]
                    for k in ("precision", "norm", "optimizer")
                    if k in old.details
                }
        gone = {c.implementation for c in entry.cells if c.status != "ok"}
        entry.comparisons = [c for c in entry.comparisons if c.implementation not in gone]
        entry.provenance = provenance("cpu")
        result.append(entry)
    return result
