"""The proofs as a component: what an honest arm, its twin and a planted one are in each case."""

from __future__ import annotations

from typing import Any

from apexbench.components import requirements
from apexbench.components.component import Case, Component
from apexbench.measuring.arms import Arm, Workload
from apexbench.selfcheck import cases, do_bench, faulty, pairs, waits


class SelfCheck(Component):
    """A component whose one baseline is the honest arm: a single comparison a case."""

    def baselines(self, case: Case | None = None) -> dict[str, list[str]]:
        return {"torch_default": ["honest"]}


def workload(case: Case, device: str, seed: int) -> Workload:
    """The workload of one case, by its proof."""
    kinds: dict[str, Any] = {
        "pair": pairs.Pair,
        "slowdown": pairs.Pieces,
        "fault": faulty.fault_workload,
        "wait": waits.Waits,
        "do_bench": do_bench.Flushes,
    }
    built: Workload = kinds[case["proof"]](case, device, seed)
    return built


component = SelfCheck("selfcheck", workload, cases.label)


@component.implementation(role="default")
def honest(workload: Any) -> Arm:
    """The operation as it is."""
    arm: Arm = workload.honest()
    return arm


@component.implementation()
def again(workload: Any) -> Arm:
    """The very same operation: a verdict other than 'same' or 'unclear' is false."""
    arm: Arm = workload.honest()
    return arm


@component.implementation()
def planted(workload: Any) -> Arm:
    """The operation with what the case's name says planted in it."""
    arm: Arm = workload.planted()
    return arm


@component.implementation()
def wait(workload: Any) -> Arm:
    """The host waits for a known time."""
    return waits.Wait(workload)


@component.implementation(requires=(requirements.cuda,))
def sleep(workload: Any) -> Arm:
    """A kernel that spins for a known number of cycles."""
    return waits.Sleep(workload)


@component.implementation(requires=(requirements.cuda,))
def unsynchronised(workload: Any) -> Arm:
    """The same kernel, launched and not waited for: a naive timer sees the launch alone."""
    return waits.Sleep(workload)


@component.implementation(requires=(requirements.cuda,))
def unjoined(workload: Any) -> Arm:
    """The same kernel on a stream of its own that is never joined: no event would see it."""
    return waits.Unjoined(workload)


TRITON = (requirements.cuda, requirements.package("triton"))


@component.implementation(requires=TRITON)
def read_flush(workload: Any) -> Arm:
    """The kernel after a cache flush by reading, as every case is measured."""
    return do_bench.Flushed(workload, writes=False)


@component.implementation(requires=TRITON)
def written_flush(workload: Any) -> Arm:
    """The kernel after a cache flush by writing, as triton.testing.do_bench flushes."""
    return do_bench.Flushed(workload, writes=True)
