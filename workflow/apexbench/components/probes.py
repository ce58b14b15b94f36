"""The questions of :mod:`apexbench.components.compatibility`, and how each is answered: by trying.

An answer is ``yes``, ``no`` or ``n/a`` with a note: a number, or the first line of the error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from apexbench.components.component import Case, Implementation
from apexbench.measuring import evidence
from apexbench.measuring.arms import Arm, Workload
from apexbench.records import Parity, Work

Call = Callable[[], Any]
Answer = dict[str, str]
UNTIMED = "asked what it can be combined with, not timed"
SHAPES = ((64, 32), (64,), (7, 5))


def said(answer: str, note: str = "") -> Answer:
    """An answer as a record holds it."""
    return {"answer": answer, "note": note}


def tried(action: Callable[[], str | None]) -> Answer:
    """``yes`` if ``action`` runs (its text is the note), ``no`` with the error's first line."""
    try:
        return said("yes", action() or "")
    except Exception as error:  # whatever it is, it is the answer
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return said("no", f"{type(error).__name__}: {line}"[:200])


def parameters(device: str, seed: int = 0) -> list[torch.nn.Parameter]:
    """A few parameters with gradients, the same for the same seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    params = []
    for shape in SHAPES:
        p = torch.nn.Parameter(torch.randn(shape, generator=generator).to(device))
        p.grad = torch.randn(shape, generator=generator).to(device)
        params.append(p)
    return params


class Subject:
    """What is asked: its component's name, how to use it, which CUDA kernels are its own."""

    part: str
    kernel: str | None

    def call(self, device: str) -> Call:
        """One ordinary use on fresh tensors of ``device``."""
        raise NotImplementedError

    def compilable(self, device: str) -> Call:
        """The call that torch.compile is given."""
        return self.call(device)

    def questions(self, device: str) -> dict[str, Answer]:
        """What only this kind of subject is asked."""
        return {}


@dataclass
class Function(Subject):
    """A module, used forward and backward on an input of ``shape``."""

    part: str
    build: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]
    kernel: str | None = None

    def _made(self, device: str) -> tuple[torch.nn.Module, torch.Tensor]:
        return self.build().to(device), torch.randn(self.shape, device=device, requires_grad=True)

    def call(self, device: str) -> Call:
        module, x = self._made(device)

        def use() -> Any:
            y = module(x)
            return torch.autograd.grad(y, [x, *module.parameters()], torch.ones_like(y))

        return use

    def compilable(self, device: str) -> Call:
        module, x = self._made(device)
        return lambda: module(x)


@dataclass
class Optimizer(Subject):
    """An optimizer of the parameters it is built for; ``peer`` is torch's with the same rule."""

    part: str
    build: Callable[[list[torch.nn.Parameter]], Any]
    peer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    kernel: str | None = None
    _kept: list[Any] = field(default_factory=list)

    def call(self, device: str) -> Call:
        built = self.build(parameters(device))
        return lambda: built.step()

    def questions(self, device: str) -> dict[str, Answer]:
        answers = {"DTensor parameters": tried(lambda: self._sharded(device))}
        if self.part == "optimizer":
            answers["zero_grad(set_to_none=True)"] = tried(lambda: self._zero(device))
            answers["state_dict of torch's"] = (
                said("n/a", "torch has no such optimizer")
                if self.peer is None and self.kernel is not None
                else tried(lambda: self._exchange(device))
            )
        return answers

    def _zero(self, device: str) -> None:
        params = parameters(device)
        self.build(params).zero_grad(set_to_none=True)
        if any(p.grad is not None for p in params):
            raise RuntimeError("gradients are still there")

    def _exchange(self, device: str) -> str:
        """torch's optimizer takes three steps; the subject goes on from its state as it would."""
        make = self.peer or self.build
        first, second = parameters(device), parameters(device)
        ours = make(first)
        for _ in range(3):
            ours.step()
        with torch.no_grad():
            for target, source in zip(second, first, strict=True):
                target.copy_(source)
        theirs = self.build(second)
        theirs.load_state_dict(ours.state_dict())
        ours.step()
        theirs.step()
        with torch.no_grad():
            worst = max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))
        if not worst < 1e-5:
            raise RuntimeError(f"it loads, but the next step differs by {worst:.1e}")
        return f"the next step differs by {worst:.1e}"

    def _sharded(self, device: str) -> None:
        from torch.distributed.tensor import Shard, distribute_tensor

        with one_rank(device) as mesh:
            params = []
            for p in parameters(device):
                own = torch.nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))
                assert p.grad is not None
                own.grad = distribute_tensor(p.grad, mesh, [Shard(0)])
                params.append(own)
            before = [_local(p).clone() for p in params]
            self.build(params).step()
            grads = [_local(p.grad) for p in params if p.grad is not None]
            moved = [not torch.equal(a, _local(p)) for a, p in zip(before, params, strict=True)]
            clipped = float(torch.stack([g.norm() for g in grads]).norm()) < 0.51
            if not (all(moved) if self.part == "optimizer" else clipped):
                raise RuntimeError("it ran, and changed nothing")


def _local(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor, without its history."""
    part: torch.Tensor = tensor.detach().to_local()
    return part


@contextlib.contextmanager
def one_rank(device: str) -> Iterator[Any]:
    """A process group of this process alone, and its mesh."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


def compiled(subject: Subject, device: str) -> Answer:
    """Whether torch.compile makes one graph of it; if not, how many there are, and the first break.

    torch's optimizers break before and after their update, which is still one graph.
    """

    def explain() -> str:
        torch._dynamo.reset()
        found = torch._dynamo.explain(subject.compilable(device))()
        if found.graph_count != 1:
            reasons = [str(entry.reason).splitlines()[0] for entry in found.break_reasons]
            why = reasons[0] if reasons else "the call runs outside of them"
            raise GraphBreaks(f"{found.graph_count} graphs, {len(reasons)} breaks: {why}")
        return f"1 graph, {found.op_count} operations"

    return tried(explain)


class GraphBreaks(Exception):
    """torch.compile leaves the graph; says how often."""


def own_kernels(subject: Subject, device: str) -> Answer:
    """Whether its own kernels run under torch.compile, or what it falls back to."""
    if device != "cuda" or subject.kernel is None:
        return said("n/a", "needs an NVIDIA GPU" if device != "cuda" else "no kernel of its own")

    def run() -> str:
        torch._dynamo.reset()
        kernels = evidence.kernel_names(
            _Once(torch.compile(subject.compilable(device), backend="aot_eager"))
        )
        if not evidence.matches(kernels, str(subject.kernel)):
            raise RuntimeError(f"it runs {', '.join(name[:60] for name in kernels[:2])}")
        return ""

    return tried(run)


def captured(subject: Subject, device: str) -> Answer:
    """Whether a CUDA graph can hold the call."""
    if device != "cuda":
        return said("n/a", "needs an NVIDIA GPU")

    def capture() -> str:
        call = subject.call(device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        torch.cuda.synchronize()
        if subject.part == "optimizer" and not _follows_rate(subject, device):
            return "its learning rate is a constant of the graph"
        return ""

    return tried(capture)


def _follows_rate(subject: Subject, device: str) -> bool:
    """Whether the learning rate is a tensor, which a graph reads at each replay."""
    assert isinstance(subject, Optimizer)
    return isinstance(subject.build(parameters(device)).param_groups[0]["lr"], torch.Tensor)


class _Once(Arm):
    """A call as an arm that is used and never timed."""

    untimed = UNTIMED

    def __init__(self, use: Call, subject: Subject | None = None):
        self.use, self.subject = use, subject

    def call(self, index: int) -> None:
        self.use()


class ProbeWorkload(Workload):
    """One case for all subjects; an answer that ends the process is the supervisor's to tell."""

    quantities: ClassVar[tuple[str, ...]] = ("step_time",)

    def __init__(self, case: Case, device: str, seed: int):
        self.device = device
        self.work = Work(None, None, "n/a", None, "nothing is timed")

    def arm(self, implementation: Implementation) -> Arm:
        subject = implementation.build({})
        return _Once(subject.call(self.device), subject)

    def check(self, arm: Arm) -> Parity:
        return Parity(True, "nothing is compared: its component's cases do that")

    def details(self, arm: Arm) -> dict[str, Any]:
        """The answers, and the component that the subject belongs to."""
        assert isinstance(arm, _Once)
        assert arm.subject is not None
        subject, device = arm.subject, self.device
        answers = {
            "one graph under torch.compile": compiled(subject, device),
            "its kernels under torch.compile": own_kernels(subject, device),
            "in a CUDA graph": captured(subject, device),
            **subject.questions(device),
            # Last: what a kernel does with a pointer of the host may end the process.
            "CPU tensors": tried(lambda: subject.call("cpu")() and None),
        }
        return {"part": subject.part, "probes": answers}
