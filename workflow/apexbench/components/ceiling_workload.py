"""How a ceiling is loaded, settled, timed and checked."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.measuring import timers
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Check, Parity, Work

Shape = tuple[int, int, int]

SHAPES: dict[str, tuple[Shape, ...]] = {
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 4096)),
    "cpu": ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024)),
}
"""(m, n, k), in order of size: the search ends early at one whose call takes too long to repeat."""

LONGEST_TRIAL_S = {"cuda": 1.0, "cpu": 0.02}
SETTLE_S = {"cuda": 2.0, "cpu": 0.05}
SUSTAIN_S = {"cuda": 2.0, "cpu": 0.2}
IDLE_S = 0.5
WINDOW_S = {"cuda": 0.02, "cpu": 0.001}
"""Length of one call: on a GPU such that the gaps between windows do not let it rest."""

CHECKED_ROWS = 8


@dataclass(frozen=True)
class Facts:
    """What one launch moves and computes."""

    bytes: int
    flops: int
    shape: list[int]


class Load(ABC):
    """One operation that can be launched again and again."""

    tf32 = False
    facts: Facts

    @abstractmethod
    def launch(self) -> None:
        """Queue the operation once."""

    @abstractmethod
    def check(self) -> Check:
        """The result of one launch against float64."""


class Copy(Load):
    """``out.copy_(in)``: on a GPU the whole buffer, on the CPU one uncached sixteenth of it."""

    def __init__(self, device: str, generator: torch.Generator):
        size = _buffer_bytes(device) // 4
        self.source = torch.randn(size, device=device, generator=generator)
        self.target = torch.empty_like(self.source)
        pieces = 1 if device == "cuda" else 16
        self.pairs = list(zip(self.target.chunk(pieces), self.source.chunk(pieces), strict=True))
        self.next = 0
        piece = self.pairs[0][0]
        self.facts = Facts(2 * piece.nbytes, 0, [piece.numel()])

    def launch(self) -> None:
        target, source = self.pairs[self.next]
        target.copy_(source)
        self.next = (self.next + 1) % len(self.pairs)

    def check(self) -> Check:
        """The copy is exact."""
        target, source = self.pairs[self.next]
        self.launch()
        return Check("copy", float((target - source).abs().max()), 0.0)


class MatMul(Load):
    """``torch.mm`` into a given output, in the fastest of the listed shapes."""

    def __init__(
        self, dtype: torch.dtype, device: str, generator: torch.Generator, tf32: bool = False
    ):
        self.dtype, self.tf32, self.device = dtype, tf32, device
        best = 0.0
        self.shape = SHAPES[device][0]
        for shape in SHAPES[device]:
            self._allocate(shape, generator)
            with Precision(tf32):
                seconds = seconds_of(self, device)
            rate = math.prod(shape) / seconds
            if rate > best:
                best, self.shape = rate, shape
            if seconds > LONGEST_TRIAL_S[device]:
                break
        self._allocate(self.shape, generator)
        m, n, k = self.shape
        moved = (m * k + k * n + m * n) * dtype.itemsize
        self.facts = Facts(moved, 2 * m * n * k, list(self.shape))

    def _allocate(self, shape: Shape, generator: torch.Generator) -> None:
        m, n, k = shape
        self.left = self.right = self.out = torch.empty(0)
        self.left = torch.randn(m, k, device=self.device, generator=generator).to(self.dtype)
        self.right = torch.randn(k, n, device=self.device, generator=generator).to(self.dtype)
        self.out = torch.empty(m, n, device=self.device, dtype=self.dtype)

    def launch(self) -> None:
        torch.mm(self.left, self.right, out=self.out)

    def check(self) -> Check:
        """Rows of C: |error| <= 2 (6 eps + sqrt(k) eps(accumulator)) sqrt(k), where |C| ~ sqrt(k).

        eps is the output dtype's (TF32: 2^-10, to which its inputs round); a float16 product on the
        CPU may accumulate in float16, all others in float32.
        """
        with Precision(self.tf32):
            self.launch()
        expected = self.left[:CHECKED_ROWS].double() @ self.right.double()
        k = self.shape[2]
        eps = 2.0**-10 if self.tf32 else torch.finfo(self.dtype).eps
        half = self.device == "cpu" and self.dtype == torch.float16
        accumulation = eps if half else torch.finfo(torch.float32).eps
        limit = 2 * (6 * eps + math.sqrt(k) * accumulation) * math.sqrt(k)
        error = float((self.out[:CHECKED_ROWS].double() - expected).abs().max())
        return Check("C", error if math.isfinite(error) else None, limit)


class Precision:
    """TF32 on or off for float32 products, put back at exit."""

    def __init__(self, tf32: bool):
        self.wanted = "high" if tf32 else "highest"

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.wanted)

    def __exit__(self, *error: object) -> None:
        torch.set_float32_matmul_precision(self.before)


class CeilingArm(Arm):
    """A load, repeated ``launches`` times a call; settled again whenever it has rested."""

    def __init__(self, load: Load, workload: CeilingWorkload):
        self.load, self.workload, self.device = load, workload, workload.device
        self.precision = Precision(load.tf32)
        with self.precision:
            seconds = seconds_of(load, self.device)
        self.launches = max(1, math.ceil(WINDOW_S[self.device] / seconds))
        self.ended = 0.0

    def prepare(self, calls: int) -> None:
        self.precision.__enter__()
        if self.workload.settling and time.monotonic() - self.ended > IDLE_S:
            self.sustain(SETTLE_S[self.device])

    def call(self, index: int) -> None:
        for _ in range(self.launches):
            self.load.launch()

    def finish(self) -> None:
        self.precision.__exit__()
        self.ended = time.monotonic()

    def sustain(self, seconds: float) -> dict[str, Any]:
        """Load the device for ``seconds``; the rate, and power and SM clock read under load."""
        powers, clocks, launches = [], [], 0
        _synchronize(self.device)
        begin = now = time.perf_counter()
        while now - begin < seconds:
            self.call(0)
            self.call(0)
            launches += 2 * self.launches
            power, clock = self.workload.power_and_clock()
            powers += [power] if power is not None else []
            clocks += [clock] if clock is not None else []
            _synchronize(self.device)
            now = time.perf_counter()
        # The power reading is an average over the past, so the first half of the run is left out.
        late = slice(len(powers) // 2, None)
        return {
            "sustained_seconds": round(now - begin, 4),
            "sustained_launches": launches,
            "power_w": _median(powers[late]),
            "sm_clock_mhz": _median(clocks[len(clocks) // 2 :]),
        }

    def close(self) -> None:
        del self.load


class CeilingWorkload(Workload):
    """Nothing is shared: each arm owns its buffers and is sampled alone."""

    quantities: ClassVar[tuple[str, ...]] = ("device_time",)
    cold_cache = False
    interleaved = False

    def __init__(self, case: Case, device: str, seed: int):
        self.case, self.device = case, device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.settling = False
        self._uuid: str | None = None
        if device == "cuda":
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            self._uuid = f"GPU-{properties.uuid}"
        self.work = Work(None, None, "see each implementation's bytes and flops", None, "a ceiling")

    def allocate(self, calls: int) -> None:
        """The sampler is about to start: from now on an arm that has rested settles first."""
        self.settling = True

    def arm(self, implementation: Implementation) -> Arm:
        self.settling = False
        return CeilingArm(implementation.build(self.case, self.device, self.generator), self)

    def check(self, arm: Arm) -> Parity:
        """One launch against float64."""
        assert isinstance(arm, CeilingArm)
        check = arm.load.check()
        formula = "exact copy; C: 2 (6 eps + sqrt(k) eps(accumulator)) sqrt(k) on 8 rows"
        return Parity(check.passed, formula, [check])

    def details(self, arm: Arm) -> dict[str, Any]:
        """Bytes and FLOP of one call, its shape, and a sustained run with power and SM clock."""
        assert isinstance(arm, CeilingArm)
        self.settling = True
        arm.prepare(1)
        run = arm.sustain(SUSTAIN_S[self.device])
        arm.finish()
        facts = asdict(arm.load.facts)
        each = run.pop("sustained_launches") / run["sustained_seconds"]
        return {
            "bytes": facts["bytes"] * arm.launches,
            "flops": facts["flops"] * arm.launches,
            "shape": facts["shape"],
            "launches_per_call": arm.launches,
            "tf32": arm.load.tf32,
            "sustained_bytes_per_second": round(facts["bytes"] * each),
            "sustained_flops_per_second": round(facts["flops"] * each),
            **run,
        }

    def power_and_clock(self) -> tuple[float | None, int | None]:
        """Watts and MHz now; None on the CPU or where the driver does not tell."""
        if self._uuid is None:
            return None, None
        from apexbench.machine.gpu_state import gpu_state

        state = gpu_state(self._uuid)
        return state.power_w, state.sm_clock_mhz


def seconds_of(load: Load, device: str) -> float:
    """Seconds of one launch, from two after a first that is left out."""
    load.launch()
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(2):
        load.launch()
    _synchronize(device)
    return max((time.perf_counter() - begin) / 2, 1e-7)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _median(values: list[Any]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _buffer_bytes(device: str) -> int:
    """4 × the last-level cache, at least 1 GiB on a GPU (a quarter of it where memory is short)."""
    if device != "cuda":
        return max(64 << 20, 4 * timers.last_level_cache())
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    return max(4 * int(properties.L2_cache_size), min(1 << 30, free // 8))
