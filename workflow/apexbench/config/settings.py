"""The effective config: every layer laid over the one below, checked, ready to use."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apexbench.config import grids
from apexbench.config import schema as schemas
from apexbench.records import digest


@dataclass(frozen=True)
class Config:
    """What a run does. ``preset`` and ``device`` (cpu or cuda) are resolved, never ``auto``.

    ``components`` holds the enabled ones only; ``implementations`` absent from a component means
    all of them. ``warnings`` are sentences for the terminal and no part of the config.
    """

    preset: str
    device: str
    gpu_model: str | None
    runtime: str
    cluster: str
    seed: int
    components: Mapping[str, Mapping[str, Any]]
    transformer: Mapping[str, Any]
    measuring: Mapping[str, Any]
    image: Mapping[str, Any]
    report: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def cases(self, component: str) -> list[dict[str, Any]]:
        """The cases of a component in a stable order, plain JSON values.

        ``ceiling`` has the one case ``{}``; ``transformer`` has ``{model, recipes}`` per model, a
        model being its name or a mapping; what is not enabled has none. KeyError for another name.
        """
        if component == "transformer":
            return (
                copy.deepcopy(grids.training(self.transformer))
                if self.transformer["enabled"]
                else []
            )
        axes = schemas.axes(schemas.component(component))
        if component not in self.components:
            return []
        if "cases" in self.components[component]:
            return copy.deepcopy(list(self.components[component]["cases"]))
        return grids.expand(f"components.{component}", self.components[component], axes)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the warnings, as JSON values."""
        return {
            name: copy.deepcopy(value) for name, value in vars(self).items() if name != "warnings"
        }

    def hash(self) -> str:
        """16 hex digits that change when anything in :meth:`to_dict` does."""
        return digest(self.to_dict())
