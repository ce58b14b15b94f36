"""Which runtime a run uses, decided before any image is built, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from apexbench.errors import UserError
from apexbench.runtimes.choose import RUNTIMES, engine_problem, gpu_problem

Problem = Callable[[str], "tuple[str, str] | None"]


class Decision(NamedTuple):
    """The runtime's name, and one sentence saying why it is this one."""

    name: str
    why: str

    @property
    def contained(self) -> bool:
        """Whether there is an image, which a rule builds first."""
        return self.name != "native"


NATIVE = Decision("native", "native, because nothing else was asked for.")


def decide(
    runtime: str,
    has_gpu: bool,
    sif: str | None,
    compiled_apex: Callable[[], bool],
    problem: Problem = engine_problem,
    no_gpu_inside: Problem = gpu_problem,
) -> Decision:
    """The runtime for config.yaml's ``runtime``.

    With ``auto``: the .sif that is given; natively without a GPU, whose measurements need no Apex,
    and where Apex is compiled already; else the first engine that works and reaches the GPU.

    Args:
        runtime: ``auto``, ``native``, ``docker``, ``podman`` or ``apptainer``.
        has_gpu: Whether the run measures on a GPU.
        sif: ``image.sif``.
        compiled_apex: Whether this Python has an Apex with kernels.
        problem: What keeps an engine from working; for tests.
        no_gpu_inside: What keeps its containers from the GPU; for tests.

    Raises:
        UserError: an unknown name, or an engine that was asked for and does not work.
    """
    if runtime == "native":
        return Decision("native", "native, because runtime: native was asked for.")
    if runtime in RUNTIMES:
        if sif is not None and runtime != "apptainer":
            raise UserError(
                f"runtime: {runtime} cannot run image.sif: set runtime: apptainer, or image.sif: "
                "null."
            )
        found = problem(runtime) or (no_gpu_inside(runtime) if has_gpu else None)
        if found:
            raise UserError(
                f"runtime: {runtime} does not work here: {found[0]} (remedy: {found[1]})."
            )
        return Decision(runtime, f"{runtime}, because runtime: {runtime} was asked for.")
    if runtime != "auto":
        raise UserError(f"runtime: {runtime!r} is unknown; choose auto, {', '.join(RUNTIMES)}.")
    if sif is not None:
        if found := problem("apptainer"):
            raise UserError(
                f"image.sif needs apptainer, which does not work here: {found[0]} (remedy: "
                f"{found[1]}); or set image.sif: null."
            )
        return Decision("apptainer", "apptainer, because image.sif names an image.")
    if not has_gpu:
        return Decision("native", "native, because what runs without a GPU needs no image.")
    if compiled_apex():
        return Decision("native", "native, because a compiled Apex is installed here.")
    lacking = []
    for name in ("docker", "podman"):
        found = problem(name) or no_gpu_inside(name)
        if found is None:
            return Decision(name, f"{name}, because it works here and brings a compiled Apex.")
        lacking.append(f"{name}: {found[0]}")
    return Decision(
        "native", f"native, because no engine can bring the Apex image ({'; '.join(lacking)})."
    )
