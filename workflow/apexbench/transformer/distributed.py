"""Data-parallel training: one process a GPU under torchrun, on one node or several.

Rank 0 runs the case as on one GPU. Before each of its windows it tells the others, over gloo, what
to do (``World.tell``), and they do the same calls in :func:`follow`; what keeps the ranks in step
inside a window is DDP's own all-reduce. A step's batch is the same as on one GPU, of which each
rank takes its part, so that losses and gradients are those of one process.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from apexbench.cluster import allocation
from apexbench.errors import UserError
from apexbench.transformer.recipe import Recipe, parse
from apexbench.transformer.trainer import Shared, TrainingArm

LOG = logging.getLogger(__name__)
PATIENCE = datetime.timedelta(days=7)
"""Ranks wait for rank 0 while it measures alone; a hang is found by the job's own time limit."""


def ranks(case: Mapping[str, Any]) -> int:
    """How many processes train a case: one a GPU, on all its nodes."""
    return int(case.get("gpus") or 1) * int(case.get("nodes") or 1)


def place(device: str) -> dict[str, Any]:
    """Where this rank runs: its node, and the name and UUID of its GPU."""
    from apexbench.machine.gpu import visible_gpus
    from apexbench.machine.host import cpu_model

    found = {"rank": int(os.environ["RANK"]), "node": allocation.node(), "gpu_uuid": None}
    if device != "cuda":
        return {**found, "device_name": cpu_model()}
    own = visible_gpus()[int(os.environ["LOCAL_RANK"])]
    return {**found, "gpu_uuid": own.uuid, "device_name": own.name}


def check_alike(places: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError where the ranks have GPUs (or processors) of different models."""
    first = places[0]
    for other in places:
        if other["device_name"] != first["device_name"]:
            raise UserError(
                f"rank {other['rank']} on {other['node']} has {other['device_name']}, rank 0 on "
                f"{first['node']} has {first['device_name']}: ask for nodes of one model with "
                "gpu_model or constraint in the profile."
            )


class World:
    """The processes of this run; ``tell`` is rank 0's, ``hear`` the others'."""

    def __init__(self, device: str):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
        if self.rank == 0:
            atexit.register(self._end)
        self.places: list[Any] = [None] * self.size
        dist.all_gather_object(self.places, place(device))

    def tell(self, *message: Any) -> None:
        """Send ``message`` to the other ranks; a call of another rank does nothing."""
        if self.rank == 0:
            dist.broadcast_object_list([message], src=0, device=torch.device("cpu"))

    def hear(self) -> tuple[Any, ...]:
        """The next message of rank 0."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return tuple(box[0])

    def mean(self, values: Tensor) -> Tensor:
        """The mean over ranks."""
        dist.all_reduce(values)
        return values / self.size

    def _end(self) -> None:
        self.tell("end")
        dist.destroy_process_group()


@functools.cache
def _joined(device: str) -> World:
    return World(device)


def places(device: str) -> list[dict[str, Any]]:
    """Where every rank of this run is, by rank; UserError where their devices differ."""
    found = _joined(device).places
    check_alike(found)
    return list(found)


def world(device: str, gpus: int) -> World | None:
    """This run's processes, joined on first use; None where it has not ``gpus`` of them."""
    if gpus < 2 or int(os.environ.get("WORLD_SIZE", "1")) != gpus:
        return None
    return _joined(device)


class DistributedArm(TrainingArm):
    """A recipe over all ranks: this process takes its part of each batch."""

    def __init__(self, recipe: Recipe, shared: Shared, world: World):
        self.world = world
        world.tell("arm", recipe.label)
        super().__init__(recipe, shared)
        if recipe.compile:  # inside DDP, whose buckets then decide where the graph is cut
            self.model.forward = self.forward  # type: ignore[assignment, method-assign]
        devices = [torch.cuda.current_device()] if shared.device == "cuda" else None
        with warnings.catch_warnings():  # newer versions have another name for broadcast_buffers
            warnings.simplefilter("ignore", FutureWarning)
            self.forward = DistributedDataParallel(
                self.model, devices, broadcast_buffers=False, gradient_as_bucket_view=True
            )

    def parts(self, batch: Tensor) -> tuple[Tensor, ...]:
        return (batch.chunk(self.world.size, dim=1)[self.world.rank],)

    def share(self, loss: Tensor) -> Tensor:
        return loss  # DDP takes the mean of the ranks' gradients

    def mean(self, losses: Tensor) -> Tensor:
        return self.world.mean(losses)

    def restart(self, shared: Shared) -> None:
        self.world.tell("restart", self.recipe.label, shared.batches.seed)
        super().restart(shared)

    def prepare(self, calls: int) -> None:
        self.world.tell("window", self.recipe.label, calls)
        super().prepare(calls)

    def gradients(self, batch: Tensor) -> tuple[float, list[Tensor]]:
        self.world.tell("gradients", self.recipe.label)
        return super().gradients(batch)

    def close(self) -> None:
        self.world.tell("close", self.recipe.label)
        super().close()


def follow(device: str) -> None:
    """Do what rank 0 tells until it ends; a rank above 0 does nothing else.

    An error of an arm is rank 0's too, where it becomes the cell's status.
    """
    from apexbench.transformer.workload import TransformerWorkload, component

    joined = _joined(device)
    work: TransformerWorkload | None = None
    arms: dict[str, DistributedArm] = {}
    while (message := joined.hear())[0] != "end":
        kind, *values = message
        try:
            if kind == "case":
                arms.clear()
                work = TransformerWorkload(values[0], device, values[1])
                continue
            assert work is not None
            if kind == "arm":
                built = work.arm(component.implementations[parse(values[0]).label])
                assert isinstance(built, DistributedArm)
                arms[values[0]] = built
                continue
            arm = arms[values[0]]
            if kind == "window":
                arm.prepare(values[1])
                for index in range(values[1]):
                    arm.call(index)
                arm.finish()
            elif kind == "gradients":
                arm.gradients(arm.shared.batches.train(0))
            elif kind == "restart":
                arm.restart(work.shared(values[1]))
            elif kind == "close":
                arms.pop(values[0]).close()
        except Exception:
            LOG.exception("rank %d at %s", joined.rank, message[:2])
    dist.destroy_process_group()
