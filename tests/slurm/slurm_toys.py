"""Components without torch for tests on Slurm, as an installed plug-in would bring them."""

from __future__ import annotations

import time
from pathlib import Path

from apexbench.components.component import Component
from toy_component import Spin, ToyWorkload

NAMES = ("toy_a", "toy_b", "toy_c")


def _toy(name: str) -> Component:
    made = Component(name, ToyWorkload, lambda case: f"{name} {case['name']}", torch_free=True)

    @made.implementation(role="default")
    def steady(case):
        """A steady 200 µs; the case's first call waits while the file that it names is there."""
        hoard = bytearray()

        def wait():
            hoard.extend(bytearray(case.get("hoard", 0)))
            while Path(case.get("hold", "/nowhere")).exists():
                time.sleep(0.05)

        return Spin(200, wait)

    @made.implementation()
    def quick(case):
        """A tenth of that."""
        return Spin(20)

    return made


toy_a, toy_b, toy_c = map(_toy, NAMES)
