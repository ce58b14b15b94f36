"""Where components come from: this package's files, the Transformer, and installed entry points."""

from __future__ import annotations

import importlib
import importlib.metadata

from apexbench.components.component import Component
from apexbench.components.names import IMPLEMENTATIONS, component_files
from apexbench.config.schema import PLUGINS
from apexbench.errors import UserError

APART = {
    "transformer": "apexbench.transformer.workload",
    "selfcheck": "apexbench.selfcheck.component",
}
"""Components that are packages of their own."""


def find(name: str) -> Component:
    """The component called ``name``; UserError if nothing provides it."""
    if name in APART:
        module = importlib.import_module(APART[name])
    elif name in component_files():
        module = importlib.import_module(f"apexbench.components.{name}")
        for entry in importlib.metadata.entry_points(group=IMPLEMENTATIONS, name=name):
            entry.load()  # decorates its implementations onto the component
    else:
        for entry in importlib.metadata.entry_points(group=PLUGINS):
            if entry.name == name:
                return entry.load()
        raise UserError(
            f"'{name}' is not a component: write one of "
            f"{', '.join([*component_files(), 'transformer'])}."
        )
    return module.component
