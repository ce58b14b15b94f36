"""Settings expanded into cases: a product of lists, and further products laid over it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apexbench.errors import UserError

MAX_CASES = 5000
SINGULAR = {
    "widths": "width",
    "dtypes": "dtype",
    "directions": "direction",
    "models": "model",
    "algorithms": "algorithm",
    "batches": "batch",
    "operations": "operation",
    "vocabularies": "vocabulary",
    "scopes": "scope",
    "masks": "mask",
    "parts": "part",
    "sequences": "sequence",
}
"""What an axis is called in a case, where that is not its own name."""


def grids(settings: Mapping[str, Any], axes: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """The main grid, then each of ``also`` with what it leaves out taken from the main grid."""
    main = {axis: settings[axis] for axis in axes}
    yield main
    for part in settings.get("also", ()):
        yield {axis: part.get(axis, main[axis]) for axis in axes}


def expand(path: str, settings: Mapping[str, Any], axes: Sequence[str]) -> list[dict[str, Any]]:
    """The cases of a component's settings: plain dicts, no two alike, in the order of the axes.

    A further grid's own ``implementations`` stand in its cases; a case of several grids has those
    of all. Combinations that mean nothing (float32 under autocast, a GradScaler with bfloat16
    parameters, a mixed norm without a weight) are left out. Raises UserError if nothing is left,
    or more than ``MAX_CASES``.
    """
    total = sum(
        math.prod(len(values) for values in grid.values()) for grid in grids(settings, axes)
    )
    if total > MAX_CASES:
        raise UserError(f"{path} asks for {total} cases but may have {MAX_CASES}: shorten a list.")
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    named = [None, *(part.get("implementations") for part in settings.get("also", ()))]
    for grid, names in zip(grids(settings, axes), named, strict=True):
        for values in itertools.product(*grid.values()):
            case = {
                SINGULAR.get(axis, axis): value for axis, value in zip(axes, values, strict=True)
            }
            if _meaningful(case):
                own = {} if names is None else {"implementations": list(names)}
                _join(cases.setdefault(values, {**case, **own}), names)
    if not cases:
        raise UserError(f"{path} has no case: {_why_empty(settings, axes)}.")
    return list(cases.values())


def _join(case: dict[str, Any], names: Sequence[str] | None) -> None:
    """Let ``case`` be measured with ``names`` too, where None is all."""
    if names is None:
        case.pop("implementations", None)
    elif "implementations" in case:
        case["implementations"] = list(dict.fromkeys([*case["implementations"], *names]))


def _meaningful(case: Mapping[str, Any]) -> bool:
    if case.get("mixed") and (case["dtype"] == "float32" or case["autocast"] or not case["affine"]):
        return False
    if case.get("autocast"):
        return bool(case["dtype"] != "float32")
    if case.get("grad_scaler"):
        return bool(case["dtype"] == "float32")
    return True


def _why_empty(settings: Mapping[str, Any], axes: Sequence[str]) -> str:
    if settings.get("mixed") == [True]:
        return (
            "mixed: [true] needs float16 or bfloat16 in dtypes, "
            "autocast: [false] and affine: [true]"
        )
    if "autocast" in axes:
        return "autocast: [true] needs float16 or bfloat16 in dtypes"
    return "grad_scaler: [true] needs float32 in dtypes"


OWN = ("arms_at_once", "case_seconds", "loss_steps")
"""What a further grid of models may set for itself."""


def training(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One case per model, GPUs and nodes of the transformer's settings, recipes in order.

    A case has ``model``, ``recipes``, ``gpus`` (of each node) where more than one GPU trains it,
    ``nodes`` above one, and those of ``OWN`` that the first further grid to name it sets.
    """
    cases: dict[tuple[str, int, int], dict[str, Any]] = {}
    for part in (settings, *settings.get("also", ())):
        own = {} if part is settings else {key: part[key] for key in OWN if key in part}
        gpus, nodes = (part.get(key, settings.get(key, 1)) for key in ("gpus", "nodes"))
        several = {"gpus": gpus} if gpus * nodes > 1 else {}
        if nodes > 1:
            several["nodes"] = nodes
        for model in part.get("models", settings["models"]):
            name = model["name"] if isinstance(model, dict) else model
            new = {"model": model, "recipes": [], **own, **several}
            case = cases.setdefault((name, gpus, nodes), new)
            case["recipes"] += part.get("recipes", settings["recipes"])
    return [{**case, "recipes": list(dict.fromkeys(case["recipes"]))} for case in cases.values()]
