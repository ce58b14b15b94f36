"""Components and their implementation names, read from the source without importing torch."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
from pathlib import Path

FOLDER = Path(__file__).parent
TRANSFORMER = FOLDER.parent / "transformer"
IMPLEMENTATIONS = "apexbench.implementations"
"""Entry points of installed packages: a component's name = the module that decorates for it."""


@functools.cache
def _decorated(path: Path) -> tuple[str, ...]:
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                call = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(call, ast.Attribute) and call.attr == "implementation":
                    names.append(node.name)
    return tuple(names)


def component_files() -> dict[str, Path]:
    """Every component by name and the file that holds it."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.py")) if _decorated(path)}


def outside(component: str) -> list[Path]:
    """Files of installed packages that add implementations to ``component``; none is imported."""
    files = []
    for entry in importlib.metadata.entry_points(group=IMPLEMENTATIONS, name=component):
        if entry.dist is None:
            continue
        module = entry.module.replace(".", "/")
        found = [entry.dist.locate_file(f"{module}{end}") for end in (".py", "/__init__.py")]
        files += [Path(str(path)) for path in found if Path(str(path)).is_file()]
    return sorted(files)


def implementation_names() -> dict[str, list[str]]:
    """The implementations of every component: its file's in their order, then other packages'."""
    return {
        name: [found for file in (path, *outside(name)) for found in _decorated(file)]
        for name, path in component_files().items()
    }
