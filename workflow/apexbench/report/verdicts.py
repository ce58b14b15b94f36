"""Counting verdicts: how often an arm was faster, the same, slower or unclear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from apexbench.records import BASELINES, VERDICTS
from apexbench.report.cases import Arm, Case, Versus
from apexbench.report.numbers import plural

Entry = tuple[Case, Arm, Versus]


@dataclass(frozen=True)
class Tally:
    """How many verdicts of each kind."""

    faster: int = 0
    same: int = 0
    slower: int = 0
    unclear: int = 0

    @property
    def total(self) -> int:
        """All verdicts."""
        return self.faster + self.same + self.slower + self.unclear

    @property
    def decided(self) -> int:
        """Verdicts other than ``unclear``."""
        return self.total - self.unclear

    def __str__(self) -> str:
        """``12 faster, 3 same, 0 slower and 1 unclear of 16 verdicts``."""
        counts = ", ".join(f"{getattr(self, name)} {name}" for name in ("faster", "same", "slower"))
        return f"{counts} and {self.unclear} unclear of {plural(self.total, 'verdict')}"


def tally(entries: Iterable[Entry]) -> Tally:
    """Count the verdicts of ``entries``."""
    counts = dict.fromkeys(VERDICTS, 0)
    for _, _, versus in entries:
        counts[versus.verdict] += 1
    return Tally(**counts)


def against(cases: Iterable[Case], baseline: str, select: Callable[[Arm], bool]) -> Iterator[Entry]:
    """Every selected arm's verdict against ``baseline``, in each case's own quantity."""
    for case in cases:
        for arm in case.arms:
            versus = case.versus(arm, baseline)
            if versus is not None and select(arm):
                yield case, arm, versus


def all_of(cases: Iterable[Case], select: Callable[[Arm], bool] = lambda arm: True) -> list[Entry]:
    """Every verdict against every baseline."""
    cases = list(cases)
    return [entry for name in BASELINES for entry in against(cases, name, select)]


def strongest(case: Case, arm: Arm) -> Versus | None:
    """The verdict against the hardest baseline there is: everything torch ships, else less."""
    found = (case.versus(arm, name) for name in reversed(BASELINES))
    return next((versus for versus in found if versus is not None), None)


def missing_reason(cases: Iterable[Case], select: Callable[[Arm], bool]) -> str | None:
    """Why the selected arms hold no measurement: their most frequent reason."""
    reasons = [
        f"{arm.status.replace('_', ' ')}: {arm.reason}"
        for case in cases
        for arm in case.arms
        if select(arm) and arm.status != "ok"
    ]
    return max(sorted(set(reasons)), key=reasons.count, default=None)
