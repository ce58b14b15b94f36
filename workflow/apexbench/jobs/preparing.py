"""Before the first window: inputs, arms, parity, evidence; and what a fault of each one means."""

from __future__ import annotations

import contextlib
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
from apexbench.measuring.sampler import Settings
from apexbench.measuring.state import StateProbe
from apexbench.measuring.timers import Timer
from apexbench.records import KILLED, Cell

LOG = logging.getLogger(__name__)
INPUTS = "inputs"
"""What a process is charged to that ended while it prepared what the arms share."""
LOST_REMEDY = "see the log of this component; apexbench retry clears the cell"


def lost_remedy(reason: str) -> str:
    """What to do about a cell whose process ended for ``reason``."""
    if KILLED in reason:
        return "the same command measures it again: see who kills processes on this machine"
    return LOST_REMEDY


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
class Running:
    """The state of one case while it is measured."""

    cells: dict[str, Cell]
    arms: dict[str, Arm] = field(default_factory=dict)
    anchor: list[str] = field(default_factory=list)
    displaced: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@contextlib.contextmanager
def stopwatch(seconds: dict[str, float], name: str) -> Any:
    """Add the time of the block to ``seconds[name]``."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin


def free(device: str) -> None:
    """Collect what was dropped and give the device's memory back to its driver."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def _allocated(device: str) -> int:
    if device != "cuda":
        return 0
    import torch

    return int(torch.cuda.memory_allocated())


def cell_for(entry: Implementation, context: Context, lost: Mapping[str, tuple[str, str]]) -> Cell:
    cell = Cell(entry.name, entry.package, "ok", entry.description)
    if entry.name in lost:
        cell.status, cell.reason = lost[entry.name]
        cell.remedy = lost_remedy(cell.reason)
    elif (missing := entry.missing(context.device)) is not None:
        cell.status, (cell.reason, cell.remedy) = "unavailable", missing
    return cell


def fault(name: str, error: BaseException, context: Context, running: Running) -> None:
    """Write a fault of one implementation into its cell and drop its arm."""
    LOG.warning("%s: %s: %s", name, type(error).__name__, error, exc_info=error)
    raise_disk_fault(error)
    cell = running.cells[name]
    cell.status, cell.reason, cell.remedy = faults.explain(error)
    cell.quantities.clear()
    if faults.device_is_lost(context.device, error):
        kernels = f"; it launches {', '.join(cell.kernels[:3])}" if cell.kernels else ""
        raise faults.DeviceLost(name, cell.reason + kernels) from error
    if (arm := running.arms.pop(name, None)) is not None:
        with contextlib.suppress(Exception):
            arm.close()
    del arm
    # Alone, or beside the anchor alone, it would fit in no group; else it gets another one.
    if cell.status == "out_of_memory" and set(running.arms) - set(running.anchor):
        running.displaced.append(name)
    error.__traceback__ = None
    free(context.device)


def raise_disk_fault(error: BaseException) -> None:
    """A full or lost disk says nothing of an implementation: no cell may hold it."""
    if (fault := disk_fault(error)) is not None:
        raise cannot_write(fault.filename or "a compile cache or temporary file", fault) from error


def workload_for(
    component: Component, case: Mapping[str, Any], context: Context, running: Running
) -> Workload | None:
    """The case's shared inputs; if they cannot be had, every cell says why."""
    context.beat.write("inputs", None, context.limit_seconds)
    evidence.forget_compiled()
    try:
        evidence.open_libraries(context.device)
        workload = component.workload(case, context.device, context.seed + context.process)
        workload.alive = context.beat.alive
        workload.allocate(1)
        return workload
    except Exception as error:
        inputs_fault(error, context, running)
        return None


def inputs_fault(error: Exception, context: Context, running: Running) -> None:
    """Write a fault of what the arms share into every cell."""
    LOG.warning("inputs: %s", error, exc_info=error)
    raise_disk_fault(error)
    status, reason, remedy = faults.explain(error)
    spread(running, status, reason, remedy)
    if faults.device_is_lost(context.device, error):
        raise faults.DeviceLost(INPUTS, reason) from error


def bring_up(entry: Implementation, workload: Workload, context: Context, running: Running) -> None:
    """Build, check, compile and profile one arm; it joins the sampling only if all went well."""
    cell = running.cells[entry.name]
    if cell.status != "ok":
        return
    context.progress(entry.name)
    try:
        before = _allocated(context.device)
        compiles = requirements.compiler in entry.requires
        graphs = evidence.graphs_compiled() if compiles else 0
        with stopwatch(running.seconds, "compile"):
            context.beat.write("compile", entry.name, context.limit_seconds)
            arm = running.arms[entry.name] = workload.arm(entry)
            first = evidence.warm(arm, context.timer)
        with stopwatch(running.seconds, "parity"):
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
        with stopwatch(running.seconds, "evidence"):
            context.beat.write("evidence", entry.name, context.limit_seconds)
            examine = workload.examined and context.device == "cuda"
            refusal = _evidence(entry, arm, cell, context, before) if examine else None
        if refusal is not None:
            cell.status, cell.reason = "failed", refusal
            cell.remedy = "no speed is shown for work that was not seen: mend this implementation"
            running.arms.pop(entry.name).close()
    except Exception as error:
        fault(entry.name, error, context, running)


def _evidence(
    entry: Implementation, arm: Arm, cell: Cell, context: Context, before: int
) -> str | None:
    """Kernels and peak memory of one call; why this arm must not be timed, or None."""
    seen = evidence.traced(arm)
    cell.kernels = seen.kernels
    cell.peak_memory_bytes = evidence.peak_memory(arm, context.timer, before)
    if entry.kernel and not evidence.matches(cell.kernels, entry.kernel):
        return f"none of its kernels matches {entry.kernel!r}: it fell back to another library"
    if seen.late_s > evidence.LATE_S:
        return (
            f"{1e6 * seen.late_s:.0f} µs of its work run on a stream that it does not join: no "
            "window would see them"
        )
    return None


def spread(running: Running, status: str, reason: str, remedy: str | None) -> None:
    """What keeps every implementation of the case from being measured."""
    for cell in running.cells.values():
        if cell.status == "ok":
            cell.status, cell.reason, cell.remedy = status, f"the inputs: {reason}", remedy
            cell.quantities.clear()
