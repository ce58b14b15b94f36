"""What a component is: a name, its cases, and its implementations, each ONE decorated function.

A component's file creates one :class:`Component` named ``component`` and decorates one function per
implementation; the function's name is the implementation's name and its docstring the description
shown in the report. What the function returns is up to the component's workload (a norm returns
``f(x, weight, bias)``, an optimizer's returns the optimizer).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apexbench.measuring.arms import Workload

Case = Mapping[str, Any]
Missing = tuple[str, str | None]
Requirement = Callable[[str], Missing | None]
"""``requirement(device)``, device ``cpu`` or ``cuda``: None when met, else (reason, remedy)."""

ROLES = ("default", "eager", "compiled", "apart", None)


@dataclass(frozen=True)
class Implementation:
    """One way to do the operation.

    ``role`` says which baselines it belongs to: ``default`` (what PyTorch does when nothing is
    asked for; exactly one in a case that torch can do), ``eager`` (another eager torch way),
    ``compiled`` (torch.compile or a CUDA graph of torch), None (a candidate only), or ``apart`` (in
    no verdict: it runs on more than the others do). ``kernel`` is a regular expression that one of
    the CUDA kernels it launches must match: the evidence that it ran and did not fall back to
    torch. ``graphs`` is how many torch.compile makes of it, where it takes part. ``only`` names the
    cases it is for, as allowed values of a case's keys: FusedSGD has no cell in a case of LAMB.
    """

    name: str
    package: str
    role: str | None
    requires: tuple[Requirement, ...]
    kernel: str | None
    description: str
    build: Callable[..., Any]
    graphs: int = 1
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def suits(self, case: Case) -> bool:
        """Whether the case is one of those that this implementation is for."""
        return all(case.get(key) in values for key, values in self.only.items())

    def missing(self, device: str) -> Missing | None:
        """The first unmet requirement on ``device`` as (reason, remedy), or None."""
        for requirement in self.requires:
            if (unmet := requirement(device)) is not None:
                return unmet
        return None


@dataclass
class Component:
    """A registry of implementations and the workload that measures them.

    ``workload(case, device, seed)`` builds the shared inputs of one case; ``label(case)`` is the
    case's unique name in tables and figures.
    """

    name: str
    workload: Callable[[Case, str, int], Workload]
    label: Callable[[Case], str]
    implementations: dict[str, Implementation] = field(default_factory=dict)
    torch_free: bool = False

    def names(self, case: Case, wanted: list[str] | None) -> list[str]:
        """The implementations to measure in a case: all, or those both wanted and the case's."""
        own = case.get("implementations")
        return [
            name
            for name, entry in self.implementations.items()
            if (wanted is None or name in wanted)
            and (own is None or name in own)
            and entry.suits(case)
        ]

    def implementation(
        self,
        *,
        package: str = "torch",
        role: str | None = None,
        requires: tuple[Requirement, ...] = (),
        kernel: str | None = None,
        only: Mapping[str, tuple[Any, ...]] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function; ValueError if it is misdescribed."""
        if role not in ROLES:
            raise ValueError(f"role is {role!r} but must be one of {ROLES}")

        def register(build: Callable[..., Any]) -> Callable[..., Any]:
            name = build.__name__
            if name in self.implementations:
                raise ValueError(f"{self.name} already has an implementation named {name}")
            description = " ".join((inspect.getdoc(build) or "").split("\n\n")[0].split())
            if not description:
                raise ValueError(f"{self.name}.{name} needs a docstring: it is shown in the report")
            self.implementations[name] = Implementation(
                name, package, role, requires, kernel, description, build, only=dict(only or {})
            )
            return build

        return register

    def baselines(self, case: Case | None = None) -> dict[str, list[str]]:
        """Members of torch_default, torch_eager_best and torch_best, by implementation name.

        With a case, of those that are for it: empty where torch has no counterpart.
        """
        by_role: dict[str | None, list[str]] = {role: [] for role in ROLES}
        for entry in self.implementations.values():
            if case is None or entry.suits(case):
                by_role[entry.role].append(entry.name)
        eager = by_role["default"] + by_role["eager"]
        return {
            "torch_default": by_role["default"],
            "torch_eager_best": eager,
            "torch_best": eager + by_role["compiled"],
        }
