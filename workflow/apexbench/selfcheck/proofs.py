"""What the records of a selfcheck prove, proof by proof. No torch: the report reads this too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apexbench import records
from apexbench.errors import UserError
from apexbench.measuring.contention import BUSY_CPU
from apexbench.records import Record
from apexbench.selfcheck import findings, repeats

STATES = ("passed", "failed", "incomplete", "unavailable", "noted")


@dataclass(frozen=True)
class Proof:
    """One row: what had to hold, what was found, and whether it held."""

    name: str
    target: str
    state: str
    found: str


@dataclass
class Evidence:
    """Records of a selfcheck, the cases that are missing, and the run beside them."""

    records: list[Record] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    stage: repeats.Stage | None = None

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return str(self.records[0].provenance["device"]) if self.records else "cpu"

    def of(self, proof: str, word: str = "") -> list[Record]:
        """The records of one proof, of the cases whose ``what`` begins with ``word``."""
        return [record for record in self.records if _belongs(record.config, proof, word)]

    def absent(self, proof: str, word: str = "") -> int:
        """How many of its cases the time did not allow."""
        return sum(_belongs(case, proof, word) for case in self.missing)


def _belongs(case: Mapping[str, Any], proof: str, word: str) -> bool:
    return case.get("proof") == proof and str(case.get("what", "")).startswith(word)


def load(folder: Path, run: Path) -> Evidence:
    """The selfcheck in ``folder`` and the run in ``run`` that its repeats belong to, if any."""
    found = Evidence()
    for index in sorted((folder / "records" / "selfcheck").rglob("index.json")):
        found.records += records.read_index(index)
        for entry in records.load_json(index.read_text(encoding="utf-8")).get("missing", []):
            try:
                found.missing.append(dict(records.load_json(entry["case"])))
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{index} is not a valid index: delete it and run selfcheck again."
                ) from error
    found.stage = repeats.load(folder, run)
    return found


def judge(found: Evidence) -> list[Proof]:
    """Every proof in the order of the table."""
    gpu = found.device == "cuda"
    length = "seen at its length (1 % or 5 µs)"
    table: list[tuple[str, str, str, str, Callable[[Sequence[Record]], findings.Found]]] = [
        (
            "pair",
            "",
            "A/A",
            "no faster or slower; half-width at most m/2, or the budget ended"
            + ("; same in 95 % above 30 µs" if gpu else ""),
            lambda own: findings.pairs(own, gpu),
        ),
        (
            "slowdown",
            "",
            f"planted slowdown of {'2m' if gpu else '20 %'}",
            f"slower in {98 if gpu else 95} %",
            lambda own: findings.slowdowns(own, 0.98 if gpu else 0.95),
        ),
        (
            "fault",
            "",
            "planted faults",
            "each fails parity, the honest twin passes",
            findings.faults,
        ),
        (
            "wait",
            "wait",
            "planted wait of the host",
            f"shortest window {length}",
            lambda own: findings.waits(own, "step_time", shortest=True),
        ),
        (
            "wait",
            "torch.cuda._sleep",
            "planted torch.cuda._sleep",
            length,
            lambda own: findings.waits(own, "device_time"),
        ),
        (
            "wait",
            "missing",
            "planted missing synchronize",
            "seen at its whole length",
            findings.unsynchronised,
        ),
        ("wait", "unjoined", "planted unjoined stream", "refused", findings.unjoined),
        (
            "do_bench",
            "",
            "triton.testing.do_bench",
            "medians within 2 % above 100 µs",
            findings.do_bench,
        ),
    ]
    proofs = [
        _proof(name, target, found.absent(kind, word), found.of(kind, word), found_by)
        for kind, word, name, target, found_by in table
    ]
    return proofs + repeats_of(found.stage)


def repeats_of(stage: repeats.Stage | None) -> list[Proof]:
    """The component stage again, and how long it takes."""
    name, target = "component stage again", "log difference holds 0 in 95 %; no flip"
    if stage is None or not stage.cases + stage.disturbed:
        again = Proof(name, target, "incomplete", "not measured twice")
    else:
        inside = sum(entry.holds_zero for entry in stage.differences)
        flips = sum(entry.flips for entry in stage.differences)
        total = len(stage.differences)
        text = f"{findings.of(inside, total)} comparisons; {flips} flips"
        if stage.disturbed:
            text += f"; {stage.disturbed} cases not compared ({BUSY_CPU})"
        held = inside >= 0.95 * total and not flips
        found = findings.Found("passed" if held else "failed", text, stage.cases)
        again = _enough(name, target, found, stage.planned)
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
    name: str,
    target: str,
    missing: int,
    own: Sequence[Record],
    found_by: Callable[[Sequence[Record]], findings.Found],
) -> Proof:
    if not own:
        return Proof(name, target, "incomplete", "not measured")
    found = found_by(own)
    if missing:
        found = found._replace(text=f"{found.text}; the time ended before {missing} more cases")
    return _enough(name, target, found, len(own) + missing)


def _enough(name: str, target: str, found: findings.Found, planned: int) -> Proof:
    """One rule for every proof: told by fewer than ``SHARE`` of its cases, it is incomplete."""
    if found.state != "passed" or found.cases >= findings.SHARE * planned:
        return Proof(name, target, found.state, found.text)
    text = f"{found.text}; {found.cases} of {planned} cases told, {findings.SHARE:.0%} must"
    return Proof(name, target, "incomplete", text)
