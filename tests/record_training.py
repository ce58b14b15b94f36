"""Synthetic records of training: the factorial of recipes for models of any size."""

from __future__ import annotations

import random
from typing import Any

from apexbench.records import Record
from record_parts import MS, cell, record


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
