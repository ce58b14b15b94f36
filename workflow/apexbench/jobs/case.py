"""One case, whole: build every arm, check parity, sample them together, say what came out."""

from __future__ import annotations

import contextlib
import datetime
import gc
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apexbench.components import requirements
from apexbench.components.component import Component, Implementation
from apexbench.disk import cannot_write, disk_fault
from apexbench.measuring import evidence, faults, verdicts
from apexbench.measuring.arms import Arm, Workload
from apexbench.measuring.beat import Beat
from apexbench.measuring.sampler import Sampler, Samples, Settings, Watch
from apexbench.measuring.state import StateProbe
from apexbench.measuring.timers import Timer
from apexbench.records import Cell, Quantity, Record

LOG = logging.getLogger(__name__)


@dataclass
class Context:
    """What a case is measured with; the same for every case of a job."""

    device: str
    timer: Timer
    settings: Settings
    seed: int
    process: int
    beat: Beat
    environment: dict[str, Any]
    provenance: dict[str, Any]
    probe: StateProbe
    limit_seconds: float = 600.0
    progress: Callable[[str], None] = lambda text: None


@dataclass
class _Running:
    """The state of one case while it is measured."""

    cells: dict[str, Cell]
    arms: dict[str, Arm] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class _Watch(Watch):
    def __init__(self, context: Context):
        self._context = context

    def beat(self, phase: str, implementation: str | None) -> None:
        self._context.beat.write(phase, implementation, self._context.limit_seconds)

    def state(self) -> dict[str, Any]:
        return self._context.probe.state()

    def clock(self) -> int | None:
        return self._context.probe.clock()


@contextlib.contextmanager
def _stopwatch(seconds: dict[str, float], name: str) -> Any:
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin


def measure(
    component: Component,
    case: Mapping[str, Any],
    names: list[str],
    key: str,
    context: Context,
    lost: Mapping[str, tuple[str, str]],
) -> Record:
    """Measure one case of ``component`` with the implementations ``names``; returns its record.

    ``lost`` holds implementations that ended an earlier process on this case, as (status, reason):
    they are recorded so and not run again. Raises :class:`faults.DeviceLost` when an
    implementation takes the device context with it; the caller starts a fresh process.
    """
    started, begin = _now(), time.perf_counter()
    running = _Running({})
    chosen = [component.implementations[name] for name in names]
    for entry in chosen:
        running.cells[entry.name] = _cell(entry, context, lost)
    workload: Workload | None = None
    samples: dict[str, Samples] = {}
    try:
        with _stopwatch(running.seconds, "setup"):
            workload = _workload(component, case, context, running)
        if workload is not None:
            for entry in chosen:
                _bring_up(entry, workload, context, running)
            if running.arms:
                samples = _sample(component.baselines(case), workload, context, running)
                _details(workload, context, running)
    finally:
        for arm in running.arms.values():
            arm.close()
        if workload is not None:
            workload.close()
        running.arms.clear()
        _free(context.device)
    running.seconds["total"] = time.perf_counter() - begin
    quantity = workload.quantities[0] if workload is not None else "step_time"
    record = Record(
        component=component.name,
        case=component.label(case),
        key=key,
        process=context.process,
        config=dict(case),
        environment=context.environment,
        provenance={
            **context.provenance,
            "started": started,
            "finished": _now(),
            "seed": context.seed + context.process,
        },
        quantity=quantity,
        confidence=context.settings.confidence,
        work=verdicts.bounded(
            workload.work if workload is not None else None,
            context.timer.cache_bytes,
            context.device,
        ),
        cells=list(running.cells.values()),
        comparisons=[],
        baselines={},
        sampling={
            **{name: verdicts.sampling(entry) for name, entry in samples.items()},
            "cache_bytes": context.timer.cache_bytes,
            "flush_bytes": context.timer.flush_bytes,
        },
        state=[
            {"quantity": name, **state} for name, entry in samples.items() for state in entry.state
        ],
        seconds={name: round(value, 4) for name, value in running.seconds.items()},
    )
    apart = frozenset(entry.name for entry in chosen if entry.role == "apart")
    verdicts.compare(record, component.baselines(case), samples, context.settings, apart)
    return record


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def _allocated(device: str) -> int:
    if device != "cuda":
        return 0
    import torch

    return int(torch.cuda.memory_allocated())


def _cell(entry: Implementation, context: Context, lost: Mapping[str, tuple[str, str]]) -> Cell:
    cell = Cell(entry.name, entry.package, "ok", entry.description)
    if entry.name in lost:
        cell.status, cell.reason = lost[entry.name]
        cell.remedy = "see the log of this component; apexbench retry clears the cell"
    elif (missing := entry.missing(context.device)) is not None:
        cell.status, (cell.reason, cell.remedy) = "unavailable", missing
    return cell


def _fault(name: str, error: BaseException, context: Context, running: _Running) -> None:
    """Write a fault of one implementation into its cell and drop its arm."""
    LOG.warning("%s: %s: %s", name, type(error).__name__, error, exc_info=error)
    _raise_disk_fault(error)
    cell = running.cells[name]
    cell.status, cell.reason, cell.remedy = faults.explain(error)
    cell.quantities.clear()
    if faults.device_is_lost(context.device, error):
        raise faults.DeviceLost(name, cell.reason) from error
    if (arm := running.arms.pop(name, None)) is not None:
        with contextlib.suppress(Exception):
            arm.close()
    del arm
    error.__traceback__ = None
    _free(context.device)


def _raise_disk_fault(error: BaseException) -> None:
    """A full or lost disk says nothing of an implementation: no cell may hold it."""
    if (fault := disk_fault(error)) is not None:
        raise cannot_write(fault.filename or "a compile cache or temporary file", fault) from error


def _workload(
    component: Component, case: Mapping[str, Any], context: Context, running: _Running
) -> Workload | None:
    """The case's shared inputs; if they cannot be had, every cell says why."""
    context.beat.write("inputs", None, context.limit_seconds)
    evidence.forget_compiled()
    try:
        workload = component.workload(case, context.device, context.seed + context.process)
        workload.alive = lambda: context.beat.write("details", None, context.limit_seconds)
        workload.allocate(1)
        return workload
    except Exception as error:
        LOG.warning("inputs: %s", error, exc_info=error)
        _raise_disk_fault(error)
        status, reason, remedy = faults.explain(error)
        for cell in running.cells.values():
            if cell.status == "ok":
                cell.status, cell.reason, cell.remedy = status, f"the inputs: {reason}", remedy
        if faults.device_is_lost(context.device, error):
            raise faults.DeviceLost("inputs", reason) from error
        return None


def _bring_up(
    entry: Implementation, workload: Workload, context: Context, running: _Running
) -> None:
    """Build, check, compile and profile one arm; it joins the sampling only if all went well."""
    cell = running.cells[entry.name]
    if cell.status != "ok":
        return
    context.progress(entry.name)
    try:
        before = _allocated(context.device)
        compiles = requirements.compiler in entry.requires
        graphs = evidence.graphs_compiled() if compiles else 0
        with _stopwatch(running.seconds, "compile"):
            context.beat.write("compile", entry.name, context.limit_seconds)
            arm = running.arms[entry.name] = workload.arm(entry)
            first = evidence.warm(arm, context.timer)
        with _stopwatch(running.seconds, "parity"):
            context.beat.write("parity", entry.name, context.limit_seconds)
            if compiles:
                cell.compile_seconds = round(first, 3)
                cell.recompiles = max(0, evidence.graphs_compiled() - graphs - entry.graphs)
            cell.parity = workload.check(arm)
        if not cell.parity.passed:
            cell.status, cell.reason = "parity_failed", verdicts.parity_failure(cell.parity)
            cell.remedy = (
                "no speed is shown for a wrong result: report it to the implementation's authors"
            )
            running.arms.pop(entry.name).close()
            return
        with _stopwatch(running.seconds, "evidence"):
            context.beat.write("evidence", entry.name, context.limit_seconds)
            cell.kernels = evidence.kernel_names(arm) if context.device == "cuda" else []
            cell.peak_memory_bytes = evidence.peak_memory(arm, context.timer, before)
        if (
            entry.kernel
            and context.device == "cuda"
            and not evidence.matches(cell.kernels, entry.kernel)
        ):
            cell.status = "failed"
            cell.reason = (
                f"none of its kernels matches {entry.kernel!r}: it fell back to another library"
            )
            running.arms.pop(entry.name).close()
    except Exception as error:
        _fault(entry.name, error, context, running)


def _sample(
    baselines: dict[str, list[str]], workload: Workload, context: Context, running: _Running
) -> dict[str, Samples]:
    pairs = verdicts.pairs(baselines, list(running.arms))
    groups = (
        [dict(running.arms)]
        if workload.interleaved
        else [{name: arm} for name, arm in running.arms.items()]
    )
    result: dict[str, Samples] = {}
    # On the CPU both quantities are wall time: the first one says it all.
    quantities = workload.quantities if context.device == "cuda" else workload.quantities[:1]
    for number, quantity in enumerate(quantities):
        budget = context.settings.case_seconds / (len(groups) * (1 if number == 0 else 2))
        for group in groups:
            context.progress(quantity)

            def fault(name: str, error: BaseException, group: dict[str, Arm] = group) -> bool:
                _fault(name, error, context, running)
                group.pop(name, None)
                return True

            sampler = Sampler(
                workload,
                group,
                context.timer,
                context.settings,
                pairs,
                context.seed,
                _Watch(context),
                fault,
            )
            with _stopwatch(running.seconds, "sampling"):
                samples = sampler.run(quantity, budget)
            running.seconds["windows"] = (
                running.seconds.get("windows", 0.0) + samples.window_seconds
            )
            _summarise(samples, context, running)
            result[
                quantity if workload.interleaved else f"{quantity} {next(iter(samples.times), '')}"
            ] = samples
    return result


def _summarise(samples: Samples, context: Context, running: _Running) -> None:
    for name in samples.times:
        cell = running.cells[name]
        if cell.status == "ok":
            interval = verdicts.location(samples, name, context.settings.confidence)
            cell.quantities[samples.quantity] = Quantity(
                timer=context.timer.names[samples.quantity],
                calls_per_sample=samples.calls[name],
                samples=samples.times[name],
                value=interval.value,
                low=interval.low,
                high=interval.high,
            )
    for name, reason in samples.dropped.items():
        if running.cells[name].status == "ok":
            running.cells[name].details[f"no_{samples.quantity}"] = reason


def _details(workload: Workload, context: Context, running: _Running) -> None:
    for name, arm in list(running.arms.items()):
        context.beat.write("details", name, context.limit_seconds)
        context.progress(name)
        try:
            running.cells[name].details.update(workload.details(arm))
        except Exception as error:
            _fault(name, error, context, running)
