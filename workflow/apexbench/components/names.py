"""Components and their implementation names, read from the source without importing torch."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

FOLDER = Path(__file__).parent
TRANSFORMER = FOLDER.parent / "transformer"


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


def implementation_names() -> dict[str, list[str]]:
    """The implementations of every component, in the order of its file."""
    return {name: list(_decorated(path)) for name, path in component_files().items()}
