"""Who is fastest, or which arms cannot be told from the fastest: where a median becomes a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apexbench.report import numbers
from apexbench.report.cases import Arm, Case
from apexbench.report.pair import pair

TIED = "not separated"


@dataclass(frozen=True)
class Leaders:
    """The arm of least median time, and those that it is not shown to beat, in order of time."""

    case: Case
    arms: tuple[Arm, ...]

    @property
    def sole(self) -> Arm | None:
        """The fastest arm, where its interval against every other arm lies beyond the margin."""
        return self.arms[0] if len(self.arms) == 1 else None


def leaders(case: Case, arms: Sequence[Arm]) -> Leaders | None:
    """Who leads among ``arms`` in the case's own quantity; None where none of them was timed."""
    timed = {arm.implementation: time.value for arm in arms if (time := case.time(arm))}
    own = sorted(
        (arm for arm in arms if arm.implementation in timed),
        key=lambda arm: timed[arm.implementation],
    )
    if not own:
        return None
    first = own[0]
    unclear = _unclear(case, first)
    tied = [
        arm
        for arm in own[1:]
        if arm.implementation in unclear or pair(case, arm, first).verdict != "faster"
    ]
    return Leaders(case, (first, *tied))


def _unclear(case: Case, first: Arm) -> set[str]:
    """Of every baseline that the record does not show ``first`` to beat, the fastest member.

    A record's verdict allows for how many members a baseline has; a sentence must not contradict
    the verdict that stands in the table.
    """
    found = set()
    for (quantity, _), versus in first.versus.items():
        if quantity == case.quantity and versus.verdict != "faster":
            members = [arm for arm in case.arms if arm.implementation in versus.members]
            times = [(t.value, arm.implementation) for arm in members if (t := case.time(arm))]
            found |= {min(times)[1]} if times else set()
    return found


def leading(names: Sequence[str]) -> str:
    """``X`` alone, or ``X and Y, not separated``: the names of leaders, in a sentence."""
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else f"{numbers.listing(names)}, {TIED}"
