"""What the records of a selfcheck prove, proof by proof. No torch: the report reads this too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.errors import UserError
from apexbench.records import Record
from apexbench.selfcheck import repeats

SHORT_NS = 30_000
STATES = ("passed", "failed", "incomplete", "unavailable", "noted")
Found = tuple[str, str]
"""(state, what was found)."""


@dataclass(frozen=True)
class Proof:
    """One row: what had to hold, what was found, and whether it held."""

    name: str
    target: str
    state: str
    found: str


@dataclass
class Evidence:
    """Records of a selfcheck by proof, how many cases are missing, and the run beside them."""

    records: list[Record] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    stage: repeats.Stage | None = None

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return str(self.records[0].provenance["device"]) if self.records else "cpu"

    def of(self, proof: str, *words: str) -> list[Record]:
        """The records of one proof, of the cases whose ``what`` begins with one of ``words``."""
        return [
            record
            for record in self.records
            if record.config.get("proof") == proof
            and (not words or str(record.config.get("what", "")).startswith(words))
        ]


def load(folder: Path, run: Path) -> Evidence:
    """The selfcheck in ``folder`` and the run in ``run`` that its repeats belong to, if any."""
    found = Evidence()
    for index in sorted((folder / "records" / "selfcheck").rglob("index.json")):
        found.records += records.read_index(index)
        for entry in records.load_json(index.read_text(encoding="utf-8")).get("missing", []):
            try:
                proof = str(records.load_json(entry["case"])["proof"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{index} is not a valid index: delete it and run selfcheck again."
                ) from error
            found.missing[proof] = found.missing.get(proof, 0) + 1
    found.stage = repeats.load(folder, run)
    return found


def judge(found: Evidence) -> list[Proof]:
    """Every proof in the order of the table."""
    gpu = found.device == "cuda"
    planted = "2m" if gpu else "20 %"
    table: list[tuple[str, str, str, Callable[[], Found]]] = [
        (
            "pair",
            "A/A",
            "no faster or slower; half-width at most m/2, or the budget ended"
            + ("; same in 95 % above 30 µs" if gpu else ""),
            lambda: _pairs(found.of("pair"), gpu),
        ),
        (
            "slowdown",
            f"planted slowdown of {planted}",
            f"slower in {98 if gpu else 95} %",
            lambda: _slowdowns(found.of("slowdown"), 0.98 if gpu else 0.95),
        ),
        (
            "fault",
            "planted faults",
            "each fails parity, the honest twin passes",
            lambda: _faults(found.of("fault")),
        ),
        (
            "wait",
            "planted wait of the host",
            "shortest window at its length (1 % or 5 µs)",
            lambda: _waits(found.of("wait", "wait"), "step_time", shortest=True),
        ),
        (
            "wait",
            "planted torch.cuda._sleep",
            "seen at its length (1 % or 5 µs)",
            lambda: _waits(found.of("wait", "torch.cuda._sleep"), "device_time"),
        ),
        (
            "wait",
            "planted missing synchronize",
            "seen at its whole length",
            lambda: _unsynchronised(found.of("wait", "missing")),
        ),
        (
            "wait",
            "planted unjoined stream",
            "refused",
            lambda: _unjoined(found.of("wait", "unjoined")),
        ),
        (
            "do_bench",
            "triton.testing.do_bench",
            "medians within 2 % above 100 µs",
            lambda: _do_bench(found.of("do_bench")),
        ),
    ]
    proofs = [
        _proof(name, target, found.missing.get(kind, 0), [*found.of(kind)], found_by)
        for kind, name, target, found_by in table
    ]
    return proofs + repeats_of(found.stage)


def repeats_of(stage: repeats.Stage | None) -> list[Proof]:
    """The component stage again, and how long it takes."""
    name, target = "component stage again", "log difference holds 0 in 95 %; no flip"
    if stage is None or not stage.differences:
        again = Proof(name, target, "incomplete", "not measured twice")
    else:
        inside = sum(entry.holds_zero for entry in stage.differences)
        flips = sum(entry.flips for entry in stage.differences)
        total, held = len(stage.differences), inside >= 0.95 * len(stage.differences)
        again = Proof(
            name,
            target,
            "passed" if held and not flips else "failed",
            f"{_of(inside, total)} comparisons of {stage.cases} of {stage.planned} cases; "
            f"{flips} flips",
        )
    return [again, _wall_time(stage)]


def _wall_time(stage: repeats.Stage | None) -> Proof:
    name, target = "component stage, wall time", "at most 4 min for preset full on a GPU"
    if stage is None or stage.seconds is None:
        text = "the run beside it was not measured whole in one go: make report does that"
        return Proof(name, target, "incomplete", text)
    judged = stage.preset == "full" and stage.device == "cuda"
    state = ("passed" if stage.seconds <= 240 else "failed") if judged else "noted"
    return Proof(name, target, state, f"{stage.seconds:.0f} s, preset {stage.preset}")


def _proof(
    name: str, target: str, missing: int, own: Sequence[Record], found_by: Callable[[], Found]
) -> Proof:
    if not own:
        return Proof(name, target, "incomplete", "not measured")
    state, text = found_by()
    if missing and state == "passed":
        state, text = "incomplete", f"{text}; the time ended before {missing} more cases"
    return Proof(name, target, state, text)


def _of(part: int, total: int) -> str:
    return f"{part} of {total} ({100 * part / total:.1f} %)" if total else "0 of 0"


def _lost(own: Sequence[Record]) -> tuple[list[Record], str | None]:
    """Records all of whose cells were measured, and why the others were not."""
    whole, reasons = [], []
    for record in own:
        bad = [cell for cell in record.cells if cell.status != "ok"]
        reasons += [f"{cell.status}: {cell.reason}" for cell in bad]
        if not bad:
            whole.append(record)
    return whole, max(set(reasons), key=reasons.count) if reasons else None


def _unavailable(own: Sequence[Record]) -> str | None:
    cells = [cell for record in own for cell in record.cells]
    if cells and all(cell.status == "unavailable" for cell in cells):
        return f"unavailable: {cells[0].reason}"
    return None


def _pairs(own: Sequence[Record], gpu: bool) -> Found:
    whole, why = _lost(own)
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
    held = bool(verdicts) and not false and not wide and (not gpu or same >= 0.95 * len(long))
    text = (
        f"{false} false of {len(verdicts)}; same in {_of(same, len(long))} above 30 µs; "
        f"{wide} too wide"
    )
    if len(whole) < len(own):
        text += f"; {len(own) - len(whole)} not measured ({why})"
    return "passed" if held else "failed", text


def _slowdowns(own: Sequence[Record], share: float) -> Found:
    whole, why = _lost(own)
    verdicts = [(record, entry) for record in whole for entry in record.comparisons]
    slower = sum(entry.verdict == "slower" for _, entry in verdicts)
    text = f"slower in {_of(slower, len(verdicts))}"
    if verdicts:
        config, ratios = verdicts[0][0].config, [entry.ratio for _, entry in verdicts]
        exact = config["pieces"] / (config["pieces"] + config["extra"])
        text += f"; ratio {statistics.median(ratios):.4f} where {exact:.4f} was planted"
    if len(whole) < len(own):
        text += f"; {len(own) - len(whole)} not measured ({why})"
    held = bool(verdicts) and slower >= share * len(verdicts)
    return "passed" if held else "failed", text


def _faults(own: Sequence[Record]) -> Found:
    refused = [record for record in own if record.cell("planted").status == "parity_failed"]
    passed = [record for record in own if record.cell("honest").status == "ok"]
    text = f"{_of(len(refused), len(own))} refused; {len(passed)} honest twins passed"
    missed = [record.case for record in own if record not in refused]
    if missed:
        text += f"; let through: {', '.join(missed[:3])}"
    held = len(refused) == len(passed) == len(own)
    return "passed" if held else "failed", text


def _value(record: Record, implementation: str, quantity: str) -> float:
    return record.cell(implementation).quantities[quantity].value


def _waits(own: Sequence[Record], quantity: str, shortest: bool = False) -> Found:
    """Medians; of the host's waits the shortest, since other work may hold the CPU in a window."""
    if (reason := _unavailable(own)) is not None:
        return "unavailable", reason
    texts, held = [], bool(own)
    for record in own:
        cell = record.cells[0]
        if cell.status != "ok" or quantity not in cell.quantities:
            return "failed", f"{record.case}: {cell.status}: {cell.reason}"
        entry, expected = cell.quantities[quantity], float(cell.details["expected_ns"])
        seen = min(entry.samples) / entry.calls_per_sample if shortest else entry.value
        held = held and abs(seen - expected) <= max(0.01 * expected, 5_000)
        texts.append(f"{expected / 1000:.0f} µs as {seen / 1000:.0f} µs")
    return "passed" if held else "failed", ", ".join(texts)


def _unsynchronised(own: Sequence[Record]) -> Found:
    if (reason := _unavailable(own)) is not None:
        return "unavailable", reason
    cell = own[0].cells[0]
    if cell.status != "ok":
        return "failed", f"{cell.status}: {cell.reason}"
    expected, naive = cell.details["expected_ns"], cell.details["unsynchronised_ns"]
    seen = {name: entry.value for name, entry in cell.quantities.items()}
    held = len(seen) == 2 and all(0.99 * expected <= value for value in seen.values())
    caught = naive < 0.5 * expected
    text = (
        f"{expected / 1000:.0f} µs seen as "
        + " and ".join(f"{value / 1000:.0f} µs ({name})" for name, value in seen.items())
        + f"; without synchronising: {naive / 1000:.0f} µs"
    )
    return "passed" if held and caught else "failed", text


def _unjoined(own: Sequence[Record]) -> Found:
    if (reason := _unavailable(own)) is not None:
        return "unavailable", reason
    cell = own[0].cells[0]
    held = cell.status == "failed" and "stream" in str(cell.reason)
    return "passed" if held else "failed", f"{cell.status}: {cell.reason}"


def _do_bench(own: Sequence[Record]) -> Found:
    if (reason := _unavailable(own)) is not None:
        return "unavailable", reason
    whole, why = _lost(own)
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
    if len(whole) < len(own):
        texts.append(f"{len(own) - len(whole)} not measured ({why})")
    return "passed" if whole and worst <= 0.02 else "failed", ", ".join(texts)
