"""A component without torch whose arms fill a memory that the case gives the size of."""

from __future__ import annotations

from typing import ClassVar

from apexbench.components.component import Component
from apexbench.records import Work
from toy_component import Spin, ToyWorkload


class Crowded(ToyWorkload):
    taken: ClassVar[dict[str, int]] = {}

    def __init__(self, case, device, seed):
        super().__init__(case, device, seed)
        self.work = Work(None, None, "a toy moves nothing", None, "n/a: a toy")

    def arm(self, implementation):
        return Sized(implementation.name, self.case)


class Sized(Spin):
    """Takes its share of the case's memory until it is closed."""

    def __init__(self, name, case):
        super().__init__(50)
        self.name, size = name, case["sizes"].get(name, 1)
        if sum(Crowded.taken.values()) + size > case["room"]:
            raise MemoryError
        Crowded.taken[name] = size

    def close(self):
        del Crowded.taken[self.name]


component = Component("toy", Crowded, lambda case: f"toy {case['name']}", torch_free=True)


def _add(name, role):
    def build(case):
        """A toy."""

    build.__name__ = name
    component.implementation(role=role)(build)


for _name, _role in {"plain": "default", "other": "eager", "a": None, "b": None, "c": None}.items():
    _add(_name, _role)
