"""The record's dataclasses and the words it uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1
STATUSES = (
    "ok",
    "unavailable",
    "unsupported",
    "out_of_memory",
    "parity_failed",
    "diverged",
    "failed",
)
QUANTITIES = ("device_time", "step_time")
BASELINES = ("torch_default", "torch_eager_best", "torch_best")
KILLED = "killed by signal 9 from outside"
"""How the reason of a cell begins whose process was killed, and not for the lack of memory."""
BESIDE = "beside"
"""The key of a later group's case: its ``number``, the baselines ``held``, and all its ``arms``."""
VERDICTS = ("faster", "slower", "same", "unclear")


def verdict(low: float, high: float, margin: float) -> str:
    """The verdict that an interval of a speed ratio gives (method, point 6), and no other."""
    if low > 1 + margin:
        return "faster"
    if high < 1 / (1 + margin):
        return "slower"
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return "same"
    return "unclear"


@dataclass
class Check:
    """One tensor compared with the float64 reference; passed when ``error <= tolerance``.

    ``error`` is None when it is not finite (the tensor holds NaN or infinity); that never passes.
    """

    tensor: str
    error: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether this tensor is within its tolerance."""
        return self.error is not None and self.error <= self.tolerance


@dataclass
class Parity:
    """The gate before speed: every check, the formula of the tolerance, and what it cannot see."""

    passed: bool
    formula: str
    checks: list[Check] = field(default_factory=list)
    undetectable: list[str] = field(default_factory=list)


@dataclass
class Quantity:
    """Raw samples of one quantity of one implementation, and their summary.

    ``samples[i]`` is the length of window ``i`` in integer ns and holds ``calls_per_sample`` calls.
    ``value`` is the median of the samples per call in ns, ``low`` and ``high`` its interval.
    """

    timer: str
    calls_per_sample: int
    samples: list[int]
    value: float
    low: float
    high: float


@dataclass
class Cell:
    """One implementation in one case; a ``status`` other than ``ok`` has a reason and a remedy.

    ``peak_memory_bytes`` is the peak of one call above what was allocated before the arm was
    built; the private pool of a CUDA graph comes on top (``details``: ``graph_pool_bytes``).
    """

    implementation: str
    package: str
    status: str
    description: str = ""
    reason: str | None = None
    remedy: str | None = None
    parity: Parity | None = None
    quantities: dict[str, Quantity] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    kernels: list[str] = field(default_factory=list)
    compile_seconds: float | None = None
    recompiles: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Comparison:
    """One implementation against one baseline: ``ratio`` is its speed relative to the baseline.

    ``ratio`` above 1 is faster. ``members`` are the implementations that make up the baseline;
    against several members the interval is that of the strongest one (method, point 6).
    """

    quantity: str
    implementation: str
    baseline: str
    members: list[str]
    ratio: float
    low: float
    high: float
    margin: float
    verdict: str
    rounds: int
    flags: list[str] = field(default_factory=list)


@dataclass
class Work:
    """The least the operation must move (bytes) or compute (flops) per call, and against what.

    ``ceiling`` names the ceiling record's implementation that bounds it; ``reason`` says why a
    share of the ceiling is not given (``L2-resident`` for instance).
    """

    bytes: int | None
    flops: int | None
    formula: str
    ceiling: str | None = None
    reason: str | None = None


@dataclass
class Record:
    """One case of one component, all implementations paired in one process."""

    component: str
    case: str
    key: str
    process: int
    config: dict[str, Any]
    environment: dict[str, Any]
    provenance: dict[str, Any]
    quantity: str
    confidence: float
    work: Work
    cells: list[Cell]
    comparisons: list[Comparison]
    baselines: dict[str, dict[str, Any]]
    sampling: dict[str, Any]
    state: list[dict[str, Any]]
    seconds: dict[str, float]
    schema_version: int = SCHEMA_VERSION
    displaced: list[str] = field(default_factory=list)
    """Implementations that had no room beside these cells; another record of the case has them."""

    @property
    def killed(self) -> bool:
        """Whether a cell is lost to a kill from outside: the same command measures it again."""
        return any(cell.status == "failed" and KILLED in (cell.reason or "") for cell in self.cells)

    def cell(self, implementation: str) -> Cell:
        """The cell of ``implementation``; KeyError if the record has none."""
        for cell in self.cells:
            if cell.implementation == implementation:
                return cell
        raise KeyError(implementation)
