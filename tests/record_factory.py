"""Synthetic records for tests: valid by schema, invented numbers, no GPU needed."""

from __future__ import annotations

from typing import Any

from apexbench.records import Record, Work
from record_parts import MS, agree, cell, compare, lost, provenance, quantity, record, write_run
from record_training import LADDER, transformer

__all__ = [
    "LADDER",
    "MS",
    "agree",
    "amp",
    "ceilings",
    "cell",
    "compare",
    "cpu_records",
    "gpu_records",
    "lost",
    "norms",
    "optimizer",
    "provenance",
    "quantity",
    "record",
    "transformer",
    "write_run",
]
COPY, BF16, FP16, TF32, FP32 = 4.0e12, 800e12, 790e12, 400e12, 50e12


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
