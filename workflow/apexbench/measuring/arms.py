"""What the sampler measures: a workload (one case on one device) and its arms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from apexbench.records import Parity, Work


class Unsupported(Exception):
    """An implementation cannot do this case; carries one sentence why and the remedy."""

    def __init__(self, reason: str, remedy: str | None = None):
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class Diverged(Exception):
    """A training recipe stopped learning (NaN loss, every step skipped); says at which step."""


class Arm(ABC):
    """One implementation, ready to be timed.

    The sampler calls ``prepare(n)``, opens the window, calls ``call(0) … call(n - 1)``, closes the
    window, then calls ``finish()``. Everything that is not the operation itself belongs in
    ``prepare`` (fresh forwards for a backward, restored gradients, the next batches) or ``finish``.
    """

    synchronises: bool = False
    """Whether a call waits for the device (a GradScaler's inf check): no device_time then."""

    untimed: str | None = None
    """Why this arm is not to be timed though it runs (a build without its kernels)."""

    max_calls: int | None = None
    """The most calls one window may hold; 1 where state has to be restored between calls."""

    window_ns: int | None = None
    """The shortest step_time window, where the sampler's own would hold too few calls."""

    def prepare(self, calls: int) -> None:
        """Get ready for ``calls`` calls, outside the window."""

    @abstractmethod
    def call(self, index: int) -> None:
        """Do the operation once, on the ``index``-th set of buffers of this window."""

    def finish(self) -> None:
        """Drop what the window's calls left behind, outside the window."""

    def close(self) -> None:
        """Free everything this arm owns."""


class Workload(ABC):
    """One case on one device: the inputs that all arms share, and the gate they must pass."""

    quantities: ClassVar[tuple[str, ...]] = ("device_time",)
    """What is measured, the quantity of the verdict first: device_time, step_time."""

    cold_cache: bool = True
    """Whether the cache is made cold before each window."""

    interleaved: bool = True
    """Whether arms take turns; False where each is measured alone, sustained (ceilings)."""

    examined: bool = True
    """Whether kernels, peak memory and streams of every arm are looked at before round 1."""

    alive: Callable[[], None] = staticmethod(lambda: None)
    """Called by long work outside windows (training on), so that it does not count as hung."""

    work: Work

    @abstractmethod
    def arm(self, implementation: Any) -> Arm:
        """Build the arm of one ``Implementation``; Unsupported where it cannot do this case."""

    @abstractmethod
    def check(self, arm: Arm) -> Parity:
        """Compare an arm with the float64 reference on fresh random inputs."""

    def buffer_bytes(self) -> int:
        """Bytes of one call's input buffers; a window's calls each get buffers of their own."""
        return 0

    def allocate(self, calls: int) -> None:
        """(Re)allocate the shared buffers for windows of up to ``calls`` calls; once a block."""

    def details(self, arm: Arm) -> dict[str, Any]:
        """Facts beside the times (losses, scale, skipped steps), JSON values, after sampling."""
        return {}

    def close(self) -> None:
        """Free everything the workload owns."""
