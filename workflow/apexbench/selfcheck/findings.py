"""What was found in the records of each proof, and whether it is what had to be found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import Comparison, Record

SHORT_NS = 30_000
SHARE = 0.95
"""Of a proof's cases: what was found in fewer is incomplete. Up to nineteen, all must tell."""
BROKEN = ("failed", "parity_failed", "diverged")


class Found(NamedTuple):
    """State, what was found, and how many of a proof's cases it was found in."""

    state: str
    text: str
    cases: int


def of(part: int, total: int) -> str:
    """``3 of 4 (75.0 %)``."""
    return f"{part} of {total} ({100 * part / total:.1f} %)" if total else "0 of 0"


class Told(NamedTuple):
    """The records of a proof that tell something, and a clause on the others.

    ``broken`` says that too many could not be measured at all: that is a fault of the method.
    """

    whole: list[Record]
    lost: str
    broken: bool


def _told(own: Sequence[Record]) -> Told:
    whole, reasons, failures = [], [], 0
    for record in own:
        bad = [f"{cell.status}: {cell.reason}" for cell in record.cells if cell.status != "ok"]
        failures += any(cell.status in BROKEN for cell in record.cells)
        if not bad and any(disturbed(entry) for entry in record.comparisons):
            bad = [BUSY_CPU]
        reasons += bad
        if not bad:
            whole.append(record)
    why = max(set(reasons), key=reasons.count) if reasons else ""
    clause = f"; {len(own) - len(whole)} not measured ({why})" if why else ""
    return Told(whole, clause, failures > (1 - SHARE) * len(own))


def disturbed(entry: Comparison) -> bool:
    """Whether other processes kept a comparison from a verdict: it says nothing of the method."""
    return BUSY_CPU in entry.flags


def _judged(held: bool, text: str, told: Sequence[Record]) -> Found:
    return Found("passed" if held else "failed", text, len(told))


def _unavailable(own: Sequence[Record]) -> str | None:
    cells = [cell for record in own for cell in record.cells]
    if cells and all(cell.status == "unavailable" for cell in cells):
        return f"unavailable: {cells[0].reason}"
    return None


def pairs(own: Sequence[Record], gpu: bool) -> Found:
    """Comparisons of an operation with itself."""
    whole, lost, broken = _told(own)
    verdicts = [(record, entry) for record in whole for entry in record.comparisons]
    false = sum(entry.verdict in ("faster", "slower") for _, entry in verdicts)
    long = [
        entry for record, entry in verdicts if _value(record, "honest", entry.quantity) > SHORT_NS
    ]
    same = sum(entry.verdict == "same" for entry in long)
    wide = sum(
        math.log(entry.high / entry.low) / 2 > entry.margin / 2 * 1.0001
        and record.sampling[entry.quantity]["stop"] != "budget"
        for record, entry in verdicts
    )
    held = not broken and not false and not wide and (not gpu or same >= 0.95 * len(long))
    text = (
        f"{false} false of {len(verdicts)}; same in {of(same, len(long))} above 30 µs; "
        f"{wide} too wide{lost}"
    )
    return _judged(held, text, whole)


def slowdowns(own: Sequence[Record], share: float) -> Found:
    """Comparisons with a little more of the same work; ``share`` of them must be slower."""
    whole, lost, broken = _told(own)
    verdicts = [(record, entry) for record in whole for entry in record.comparisons]
    slower = sum(entry.verdict == "slower" for _, entry in verdicts)
    text = f"slower in {of(slower, len(verdicts))}"
    if verdicts:
        config, ratios = verdicts[0][0].config, [entry.ratio for _, entry in verdicts]
        exact = config["pieces"] / (config["pieces"] + config["extra"])
        text += f"; ratio {statistics.median(ratios):.4f} where {exact:.4f} was planted"
    return _judged(not broken and slower >= share * len(verdicts), text + lost, whole)


def faults(own: Sequence[Record]) -> Found:
    """Implementations that compute something else, each beside an honest twin."""
    refused = [record for record in own if record.cell("planted").status == "parity_failed"]
    passed = [record for record in own if record.cell("honest").status == "ok"]
    text = f"{of(len(refused), len(own))} refused; {len(passed)} honest twins passed"
    missed = [record.case for record in own if record not in refused]
    if missed:
        text += f"; let through: {', '.join(missed[:3])}"
    return _judged(len(refused) == len(passed) == len(own), text, own)


def _value(record: Record, implementation: str, quantity: str) -> float:
    return record.cell(implementation).quantities[quantity].value


def waits(own: Sequence[Record], quantity: str, shortest: bool = False) -> Found:
    """Medians; of the host's waits the shortest, since other work may hold the CPU in a window."""
    if (reason := _unavailable(own)) is not None:
        return Found("unavailable", reason, len(own))
    texts, held = [], bool(own)
    for record in own:
        cell = record.cells[0]
        if cell.status != "ok" or quantity not in cell.quantities:
            return _judged(False, f"{record.case}: {cell.status}: {cell.reason}", own)
        entry, expected = cell.quantities[quantity], float(cell.details["expected_ns"])
        seen = entry.value
        if shortest:  # a window of the host's also holds two synchronisations
            empty = record.sampling.get(quantity, {}).get("null_window_ns", 0)
            seen = (min(entry.samples) - empty) / entry.calls_per_sample
        held = held and abs(seen - expected) <= max(0.01 * expected, 5_000)
        texts.append(f"{expected / 1000:.0f} µs as {seen / 1000:.0f} µs")
    return _judged(held, ", ".join(texts), own)


def unsynchronised(own: Sequence[Record]) -> Found:
    """Work that the call does not wait for."""
    if (reason := _unavailable(own)) is not None:
        return Found("unavailable", reason, len(own))
    cell = own[0].cells[0]
    if cell.status != "ok":
        return _judged(False, f"{cell.status}: {cell.reason}", own)
    expected, naive = cell.details["expected_ns"], cell.details["unsynchronised_ns"]
    seen = {name: entry.value for name, entry in cell.quantities.items()}
    held = len(seen) == 2 and all(0.99 * expected <= value for value in seen.values())
    caught = naive < 0.5 * expected
    text = (
        f"{expected / 1000:.0f} µs seen as "
        + " and ".join(f"{value / 1000:.0f} µs ({name})" for name, value in seen.items())
        + f"; without synchronising: {naive / 1000:.0f} µs"
    )
    return _judged(held and caught, text, own)


def unjoined(own: Sequence[Record]) -> Found:
    """Work on a stream that no event sees."""
    if (reason := _unavailable(own)) is not None:
        return Found("unavailable", reason, len(own))
    cell = own[0].cells[0]
    held = cell.status == "failed" and "stream" in str(cell.reason)
    return _judged(held, f"{cell.status}: {cell.reason}", own)


def do_bench(own: Sequence[Record]) -> Found:
    """Our medians beside do_bench's, and what its flush costs."""
    if (reason := _unavailable(own)) is not None:
        return Found("unavailable", reason, len(own))
    whole, lost, broken = _told(own)
    texts, worst = [], 0.0
    for record in whole:
        details: dict[str, Any] = record.cell("written_flush").details
        ours = _value(record, "written_flush", "device_time")
        if ours < 100_000:
            texts.append(f"{record.config['kernel']} takes only {ours / 1000:.0f} µs")
            continue
        off = ours / details["do_bench_ns"] - 1
        cost = ours / _value(record, "read_flush", "device_time") - 1
        worst = max(worst, abs(off))
        texts.append(f"{record.config['kernel']} {100 * off:+.1f} % (flush {100 * cost:+.1f} %)")
    return _judged(not broken and worst <= 0.02, ", ".join(texts) + lost, whole)
