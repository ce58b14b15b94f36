"""One case, whole: build every arm, check parity, sample them together, say what came out."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Mapping
from typing import Any

from apexbench.components.component import Component
from apexbench.errors import UserError
from apexbench.jobs import groups, preparing
from apexbench.jobs.preparing import Context, Running
from apexbench.measuring import evidence, faults, verdicts
from apexbench.measuring.arms import Arm, Workload
from apexbench.measuring.sampler import Sampler, Samples, Watch
from apexbench.records import Quantity, Record


class _Watch(Watch):
    def __init__(self, context: Context):
        self._context = context

    def beat(self, phase: str, implementation: str | None) -> None:
        self._context.beat.write(phase, implementation, self._context.limit_seconds)

    def begin(self) -> None:
        self._context.probe.begin()

    def state(self) -> dict[str, Any]:
        return self._context.probe.state()

    def clock(self) -> int | None:
        return self._context.probe.clock()


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
    running = Running({}, anchor=groups.anchor(case, component.baselines(case)))
    chosen = [component.implementations[name] for name in names]
    for entry in chosen:
        running.cells[entry.name] = preparing.cell_for(entry, context, lost)
    if preparing.INPUTS in lost:
        status, reason = lost[preparing.INPUTS]
        preparing.spread(running, status, reason, preparing.lost_remedy(reason))
    workload: Workload | None = None
    samples: dict[str, Samples] = {}
    try:
        with preparing.stopwatch(running.seconds, "setup"):
            if any(cell.status == "ok" for cell in running.cells.values()):
                workload = preparing.workload_for(component, case, context, running)
        if workload is not None:
            for entry in chosen:
                preparing.bring_up(entry, workload, context, running)
            if running.arms:
                samples = _sample(component.baselines(case), workload, context, running)
            if samples:
                _details(workload, context, running)
    finally:
        _close(running, workload, context.device)
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
        cells=[cell for name, cell in running.cells.items() if name not in running.displaced],
        displaced=running.displaced,
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


def _close(running: Running, workload: Workload | None, device: str) -> None:
    """Free everything. After a lost device each of these raises, and must not hide that loss."""
    lost = isinstance(sys.exc_info()[1], faults.DeviceLost)
    for close in [arm.close for arm in running.arms.values()] + (
        [workload.close] if workload is not None else []
    ):
        with contextlib.suppress(Exception) if lost else contextlib.nullcontext():
            close()
    running.arms.clear()
    if not lost:
        preparing.free(device)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _sample(
    baselines: dict[str, list[str]], workload: Workload, context: Context, running: Running
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
                preparing.fault(name, error, context, running)
                group.pop(name, None)
                return True

            sampler = Sampler(
                workload,
                group,
                context.timer,
                context.settings,
                pairs,
                context.seed + context.process,
                _Watch(context),
                fault,
            )
            graphs = evidence.graphs_compiled()
            try:
                with preparing.stopwatch(running.seconds, "sampling"):
                    samples = sampler.run(quantity, budget)
            except (faults.DeviceLost, UserError):
                raise
            except Exception as error:  # an arm's own fault went to ``fault``
                preparing.inputs_fault(error, context, running)
                return {}
            if evidence.graphs_compiled() > graphs:
                samples.flags.append("torch compiled a graph while it was sampled")
            running.seconds["windows"] = (
                running.seconds.get("windows", 0.0) + samples.window_seconds
            )
            _summarise(samples, context, running)
            result[
                quantity if workload.interleaved else f"{quantity} {next(iter(samples.times), '')}"
            ] = samples
    return result


def _summarise(samples: Samples, context: Context, running: Running) -> None:
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


def _details(workload: Workload, context: Context, running: Running) -> None:
    for name, arm in list(running.arms.items()):
        context.beat.write("details", name, context.limit_seconds)
        context.progress(name)
        try:
            running.cells[name].details.update(workload.details(arm))
        except Exception as error:
            preparing.fault(name, error, context, running)
