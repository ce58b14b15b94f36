"""Which runtime a command enters: the one that it is given, or what works here, and why.

A run decides for all of its jobs (``decide``) and gives each the name; only it knows the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from apexbench.errors import UserError
from apexbench.runtimes.apptainer import Apptainer
from apexbench.runtimes.docker import Docker
from apexbench.runtimes.native import Native
from apexbench.runtimes.podman import Podman
from apexbench.runtimes.runtime import Runtime

RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "docker": Docker,
    "podman": Podman,
    "apptainer": Apptainer,
    "native": Native,
}
Problem = Callable[[str], "tuple[str, str] | None"]
"""An engine's name to what keeps it from working here and the remedy, or None."""


def choose(
    config_runtime: str, image: str | None, problem: Problem | None = None
) -> tuple[Runtime, str]:
    """The runtime, and one sentence saying why it is this one.

    Args:
        config_runtime: ``auto``, ``native``, ``docker``, ``podman`` or ``apptainer``.
        image: The image's id or tag, or a .sif file; None when none is configured.
        problem: Asks this machine about an engine; for tests.

    Raises:
        UserError: an unknown name, an engine that does not work, or one that cannot run the image.
    """
    ask = problem or engine_problem
    sif = image is not None and image.endswith(".sif")
    if config_runtime == "native":
        ignored = f"; the image {image} is not used" if image else ""
        return Native(), f"native, as --runtime says{ignored}."
    if config_runtime in RUNTIMES:
        if image is None:
            raise UserError(
                f"runtime: {config_runtime} needs an image; build one, or set runtime: native."
            )
        if sif != (config_runtime == "apptainer"):
            kind = "a .sif file" if sif else "no .sif file"
            raise UserError(
                f"runtime: {config_runtime} cannot run {image}, which is {kind}; set runtime: auto."
            )
        if found := ask(config_runtime):
            raise UserError(
                f"runtime: {config_runtime} does not work here: {found[0]} (remedy: {found[1]})."
            )
        return RUNTIMES[config_runtime](), f"{config_runtime}, as --runtime says."
    if config_runtime != "auto":
        raise UserError(
            f"runtime: {config_runtime!r} is unknown; choose auto, {', '.join(RUNTIMES)}."
        )
    if image is None:
        return Native(), "native, because no image is configured."
    problems = []
    for name in ["apptainer"] if sif else ["docker", "podman"]:
        found = ask(name)
        if found is None:
            return RUNTIMES[name](), f"{name}, because it works here and can run {image}."
        problems.append(f"{name}: {found[0]} (remedy: {found[1]})")
    raise UserError(
        f"no engine here can run the image {image}: {'; '.join(problems)}; "
        "or set runtime: native to measure without the image."
    )


def engine_problem(name: str) -> tuple[str, str] | None:
    """What keeps engine ``name`` from working on this machine, and the remedy."""
    from apexbench.machine.engines import engine

    found = engine(name)
    return None if found.problem is None else (found.problem, found.remedy or f"{name} info")


def gpu_problem(name: str) -> tuple[str, str] | None:
    """What keeps containers of engine ``name`` from the GPU, and the remedy."""
    from apexbench.machine.engines import gpu_access

    if name == "apptainer" or gpu_access() is not None:
        return None
    command = {
        "docker": "sudo nvidia-ctk runtime configure --runtime=docker, then restart docker",
        "podman": "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    }[name]
    return (
        "the NVIDIA Container Toolkit is not set up",
        f"install nvidia-container-toolkit, then {command}",
    )


def image_problem(image: str, engine: str, output: str) -> UserError:
    """The sentence for an image the engine could not show; ``output`` is what it said."""
    said = output.lower()
    if "permission denied" in said and engine == "docker":
        return UserError(
            f"{engine}: permission denied on its socket; add this user to the {engine} group "
            f"(sudo usermod -aG {engine} $USER) and log in again."
        )
    if "cannot connect" in said or "is the docker daemon running" in said:
        return UserError(
            f"{engine}: its daemon does not answer; start it (sudo systemctl start {engine})."
        )
    if "no such" in said or "not known" in said or "not found" in said:
        return UserError(
            f"the image {image} is not in {engine} any more (pruned, or built by another engine); "
            "build it again."
        )
    last = (output.strip().splitlines() or ["no output"])[-1]
    return UserError(f"{engine} cannot show the image {image}: {last}")


def missing_file(image: str) -> UserError | None:
    """The sentence for a .sif file that is not there; None when it is."""
    if Path(image).is_file():
        return None
    return UserError(f"{image} is not there; build the image, or set image.sif to where it is.")
