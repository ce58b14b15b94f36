"""The presets under workflow/presets: each names every component and the transformer in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apexbench.config import schema as schemas
from apexbench.config import strict_yaml
from apexbench.config.layers import settle

FOLDER = Path(__file__).parents[2] / "presets"


def names() -> tuple[str, ...]:
    """The presets that have a file, without ``auto``."""
    return tuple(name for name in schemas.root()["properties"]["preset"]["enum"] if name != "auto")


def choose(preset: str, device: str) -> str:
    """``auto`` is ``full`` on cuda and ``quick`` on cpu; any other name is itself."""
    if preset != "auto":
        return preset
    return "full" if device == "cuda" else "quick"


def read(name: str) -> dict[str, Any]:
    """The settings of one preset."""
    path = FOLDER / f"{name}.yaml"
    settings: dict[str, Any] = settle(
        strict_yaml.read(path, f"workflow/presets/{name}.yaml"), schemas.root(), strings=False
    )
    return settings
