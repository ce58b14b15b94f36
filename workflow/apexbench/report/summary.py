"""The table others read: one row per (case, implementation, quantity, baseline)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from apexbench.records import BASELINES, write_text_atomically
from apexbench.report import ceilings as limits
from apexbench.report import evidence as source
from apexbench.report.cases import Arm, Case, merge
from apexbench.report.repeats import Estimate

COLUMNS = [
    "run",
    "machine",
    "component",
    "case",
    "implementation",
    "status",
    "reason",
    "quantity",
    "unit",
    "value",
    "low",
    "high",
    "baseline",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
    "share_of_ceiling",
    "peak_memory_bytes",
    "parity_error",
    "samples",
]
_INTEGERS = ("peak_memory_bytes", "samples")


def summary(run_folder: Path) -> pd.DataFrame:
    """The table of a run folder, columns as in ``COLUMNS``; UserError for a bad record."""
    return table(source.load(run_folder))


def table(evidence: source.Evidence, cases: Sequence[Case] | None = None) -> pd.DataFrame:
    """The table of records already read. ``value`` is in ``unit``, intervals are at 99 %."""
    cases = merge(evidence.records) if cases is None else cases
    measured = limits.measured(cases)
    rows = [row for case in cases for row in _case_rows(case, measured)]
    place = {
        "run": next(iter(evidence.provenance("run")), ""),
        "machine": str(
            next(iter(evidence.provenance("machine")), evidence.machine.get("machine", ""))
        ),
    }
    for lost in evidence.missing:
        log = f" (log: {lost.log})" if lost.log else ""
        rows.append(
            place
            | {
                "component": lost.component,
                "case": lost.case,
                "implementation": "n/a",
                "status": lost.status,
                "reason": lost.reason + log,
                "quantity": "n/a",
                "baseline": "n/a",
            }
        )
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for column in _INTEGERS:
        frame[column] = frame[column].astype("Int64")
    return frame


def _case_rows(case: Case, measured: limits.Ceilings) -> Iterator[dict[str, Any]]:
    for arm in case.arms:
        common = {
            "run": case.provenance["run"],
            "machine": case.provenance["machine"],
            "component": case.component,
            "case": case.name,
            "implementation": arm.implementation,
            "status": arm.status,
            "reason": arm.reason,
            "peak_memory_bytes": arm.peak_memory_bytes,
            "parity_error": arm.parity_error,
        }
        if arm.status != "ok" or not arm.times:
            reason = arm.reason or arm.details.get(f"no_{case.quantity}")
            yield common | {
                "quantity": case.quantity,
                "unit": "ns",
                "baseline": "n/a",
                "reason": reason,
            }
            continue
        for quantity, time in arm.times.items():
            share = limits.share(case, arm, quantity, measured)
            timed = common | {"samples": arm.samples[quantity], "share_of_ceiling": share}
            yield from _quantity_rows(case, arm, quantity, quantity, "ns", time, timed)
            tokens = arm.details.get("tokens_per_step")
            if quantity == "step_time" and case.component == "transformer" and tokens:
                rate = time.inverse(float(tokens) * 1e9)
                yield from _quantity_rows(
                    case, arm, quantity, "throughput", "tokens/s", rate, timed
                )


def _quantity_rows(
    case: Case,
    arm: Arm,
    timed: str,
    name: str,
    unit: str,
    estimate: Estimate,
    common: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    row = common | {
        "quantity": name,
        "unit": unit,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
    }
    compared = [arm.versus[timed, name] for name in BASELINES if (timed, name) in arm.versus]
    if not compared:
        yield row | {"baseline": "n/a", "reason": arm.reason or no_baseline(case, arm)}
    for versus in compared:
        yield row | {
            "baseline": versus.baseline,
            "ratio": versus.ratio.value,
            "ratio_low": versus.ratio.low,
            "ratio_high": versus.ratio.high,
            "verdict": versus.verdict,
        }


def no_baseline(case: Case, arm: Arm) -> str:
    """Why an arm is compared with nothing, in one sentence."""
    if any(arm.implementation in entry["members"] for entry in case.baselines.values()):
        return "it is itself the baseline"
    reasons = [entry["reason"] for entry in case.baselines.values() if entry["reason"]]
    return reasons[0] if reasons else "no baseline: nothing in this case does the same work"


def csv_text(frame: pd.DataFrame) -> str:
    """The table as CSV, the same bytes for the same records: LF, UTF-8, ten digits."""
    return frame.to_csv(index=False, lineterminator="\n", float_format="%.10g")


def json_text(frame: pd.DataFrame) -> str:
    """The table as ``{"columns": […], "rows": [{…}]}``; an empty field is null."""
    rows = [
        {name: _plain(value) for name, value in zip(COLUMNS, row, strict=True)}
        for row in frame.itertuples(index=False, name=None)
    ]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return f'{{"columns": {json.dumps(COLUMNS)},\n"rows": [\n{lines}\n]}}\n'


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, float):
        return float(f"{value:.10g}")
    return value if isinstance(value, str | int) else int(value)


def write(frame: pd.DataFrame, out: Path) -> None:
    """Write ``summary.csv`` and ``summary.json`` into ``out``, atomically."""
    write_text_atomically(out / "summary.csv", csv_text(frame))
    write_text_atomically(out / "summary.json", json_text(frame))


def aggregate(records_root: Path, out: Path) -> None:
    """One table from the JSON: ``summary.csv`` and ``summary.json`` in folder ``out``."""
    write(summary(records_root), Path(out))
