"""What an Apex with apex.amp needs to share a process fairly: its patches of torch come and go.

Level O1 replaces functions of torch, for the whole process and for good. Baselines that are timed
beside it must not go through those wrappers, so that what :class:`Patches` saw change is put in
place before the windows of its own arm only, and taken out after them.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import torch

LEVELS = ("O0", "O1", "O2", "O3")
NO_LEGACY = "none"
PYTHON_ONLY = (
    "not tested: this apex.amp was installed without its extensions, so that its loss and skipped "
    "steps are its own, its speed is not"
)
_NAMESPACES = (torch, torch.Tensor, torch.nn.functional)
_ABSENT = object()


def level(case: Any) -> str | None:
    """The level of apex.amp that a case has its process for, or None."""
    named = case.get("legacy")
    return None if named in (None, NO_LEGACY) else str(named)


def is_compiled() -> bool:
    """Whether this apex.amp was built with the extension that its scaling uses where it can.

    Another Apex's extension on the path is put out of its reach: it would be timed as this one's.
    """
    import apex

    own = Path(str(apex.__file__)).parents[1]
    spec = importlib.util.find_spec("amp_C")
    if spec is not None and Path(str(spec.origin)).parent == own:
        return True
    sys.modules["amp_C"] = None  # type: ignore[assignment]
    return False


def loss_scale() -> float:
    """apex.amp's present loss scale."""
    from apex import amp  # only commits before 2025-05-08 have it

    return float(next(iter(amp.state_dict().values()))["loss_scale"])


class Patches:
    """What a call changed in torch's namespaces; in place at first, as the call left it."""

    def __init__(self) -> None:
        self._before = [dict(vars(space)) for space in _NAMESPACES]
        self._changed: list[tuple[Any, str, Any, Any]] = []

    def found(self) -> None:
        """Note the changes since this object was made, and take them out."""
        for space, before in zip(_NAMESPACES, self._before, strict=True):
            for name, value in dict(vars(space)).items():
                if isinstance(value, types.ModuleType):
                    continue  # a part of torch that was imported meanwhile
                if (was := before.get(name, _ABSENT)) is not value:
                    self._changed.append((space, name, was, value))
        self._before = []
        self.remove()

    def apply(self) -> None:
        """Put them in place."""
        for space, name, _, value in self._changed:
            setattr(space, name, value)

    def remove(self) -> None:
        """Let torch be as it was."""
        for space, name, was, _ in self._changed:
            if was is _ABSENT:
                delattr(space, name)
            else:
                setattr(space, name, was)

    def __len__(self) -> int:
        return len(self._changed)
