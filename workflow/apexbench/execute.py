"""``apexbench exec``: run one apexbench command where its dependencies are, alone on its device."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from apexbench.broken_pipe import say
from apexbench.cluster import steps
from apexbench.cluster.allocation import NODE, gpu_environment, node
from apexbench.disk import a_file, a_folder
from apexbench.errors import UserError
from apexbench.image import record as records
from apexbench.locks import Abandoned, cpu_key, device_lock
from apexbench.processes import OwnerWatch
from apexbench.runtimes.choose import RUNTIMES, choose, gpu_problem, image_problem, missing_file
from apexbench.runtimes.environment import make_folders
from apexbench.runtimes.runtime import Job, Runtime, container_name
from apexbench.supervision import OWNER_DIED, run_supervised

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_ID = "APEXBENCH_RUN_ID"
SCRATCH = "APEXBENCH_SCRATCH"
HELD = "APEXBENCH_LOCKS_HELD"
IMAGE = "APEXBENCH_IMAGE"
"""The id of the image a job runs in, which its records' keys hold."""


def execute(
    command: list[str],
    runtime: str = "auto",
    image: str | None = None,
    device: str = "cpu",
    lock: bool = True,
    *,
    results: Path | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    image_record: Path | None = None,
    read: Sequence[Path] = (),
    nodes: int = 1,
    network: bool = False,
) -> int:
    """Run ``apexbench <command>`` in ``runtime`` and return its exit status.

    With ``lock`` the command waits until no other run measures on the same GPUs (or, with
    ``device="cpu"``, on this machine's CPU). It ends when the Snakemake run that asked for it
    does; see ``supervision.run_supervised`` for the statuses.

    Args:
        command: The subcommand and its arguments, paths absolute: a container starts in the
            repository, a native run in the folder of the call.
        runtime: ``auto``, ``native``, ``docker``, ``podman`` or ``apptainer``.
        image: The image's id or tag, or a .sif file.
        device: ``cuda``: every GPU that CUDA_VISIBLE_DEVICES shows; ``cpu``: none.
        lock: Whether to take the device locks; not for work that measures nothing.
        results: The folder it writes; default ``results`` in the repository.
        log: File for a copy of its output.
        timeout: Seconds it may take.
        image_record: An image.json, in place of ``image``.
        read: Files and folders it reads that lie outside the repository and the results.
        nodes: Above one, the command runs outside of any runtime on this first node of a Slurm job,
            and finds in its environment how its measuring processes enter ``runtime`` on each.
        network: Whether a container sees the host's network.

    Raises:
        UserError: the runtime, image, device, lock or results folder cannot be used.
    """
    identity = None
    if image_record is not None:
        built = records.read(image_record)
        identity = str(built["id"])
        image = built["reference"] if built["engine"] == "apptainer" else identity
    chosen, why = choose(runtime, image)
    say(f"runtime: {why}")
    gpus = _gpus(device)
    held = set(filter(None, os.environ.get(HELD, "").split(",")))
    wanted = set(_keys(device, gpus)) - held if lock else set()
    place = (results or REPOSITORY / "results").resolve()
    job = _job(command, chosen, image, gpus, held | wanted, place, read)
    if nodes > 1:
        words = _entrance(chosen, image if image_record is None else None, device, lock)
        words += ["--results", str(place), *(f"--read={path}" for path in read)]
        words += ["--image-record", str(image_record)] if image_record is not None else []
        way = steps.entrance([*words, "--"])
        chosen, job = (
            RUNTIMES["native"](),
            dataclasses.replace(job, environment={**job.environment, **way}, image=None),
        )
    elif network:
        job = dataclasses.replace(job, network=True)
    if identity is not None:
        job = dataclasses.replace(job, environment={**job.environment, IMAGE: identity})
    _check(chosen, job)
    with contextlib.ExitStack() as stack:
        owner = OwnerWatch.from_environment()
        if owner is not None:
            stack.enter_context(owner)
        try:
            fds = stack.enter_context(
                device_lock(wanted, abandon=lambda: owner is not None and not owner.alive())
            )
        except Abandoned:
            return OWNER_DIED
        return run_supervised(
            chosen.argv(job),
            chosen.environment(job),
            timeout=timeout,
            log=log,
            cleanup=chosen.removal(job),
            sweep=not chosen.contained,
            pass_fds=fds,
        )


def main(args: Sequence[str]) -> int:
    """``apexbench exec [options] -- <subcommand> …``; returns the exit status.

    Raises:
        UserError: as ``execute``, or no subcommand.
    """
    parser = argparse.ArgumentParser(prog="apexbench exec", description=__doc__)
    parser.add_argument("--runtime", default="auto", help="auto, " + ", ".join(RUNTIMES))
    parser.add_argument("--image", help="image id or tag, or a .sif file")
    parser.add_argument("--image-record", type=Path, help="an image.json in place of --image")
    parser.add_argument("--read", type=Path, action="append", help="a further path it reads")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--lock", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--results", type=Path, help="folder it writes (default: results)")
    parser.add_argument("--log", type=Path, help="file for a copy of the output")
    parser.add_argument("--timeout", type=float, metavar="SECONDS")
    parser.add_argument("--nodes", type=int, default=1, help="of a Slurm job, which measure as one")
    parser.add_argument("--network", action="store_true", help="the host's, in a container")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- subcommand …")
    given = parser.parse_args(list(args))
    a_file(given.log)
    a_folder(given.results)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise UserError("exec needs a subcommand after --, such as: exec -- measure layer_norm.")
    return execute(
        command,
        given.runtime,
        given.image,
        given.device,
        given.lock,
        results=given.results,
        log=given.log,
        timeout=given.timeout,
        image_record=given.image_record,
        read=given.read or (),
        nodes=given.nodes,
        network=given.network,
    )


def visible_gpu_uuids() -> list[str] | None:
    """The UUIDs of the GPUs CUDA would show here; None when the driver cannot be asked.

    Raises:
        UserError: CUDA_VISIBLE_DEVICES hides every GPU, or names one that is not here.
    """
    try:
        from apexbench.machine.gpu import nvml, visible_gpus
    except ImportError:
        return None
    found = [gpu.uuid for gpu in visible_gpus()]
    if not found and nvml() is not None:
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise UserError(
            f"device: cuda, but no GPU is visible (CUDA_VISIBLE_DEVICES={setting!r}); "
            "set it to a GPU of this machine or set device: cpu."
        )
    return found or None


def _gpus(device: str) -> list[str] | None:
    """The UUIDs of the GPUs a command on ``device`` uses; None when they are unknown."""
    if device not in ("cuda", "cpu"):
        raise UserError(f"device: {device!r} is unknown; choose cuda or cpu.")
    if device == "cuda":
        os.environ.update(gpu_environment(os.environ))
    return visible_gpu_uuids() if device == "cuda" else []


def _keys(device: str, gpus: list[str] | None) -> list[str]:
    """The lock keys of what a command on ``device`` measures on."""
    if device == "cpu":
        return [cpu_key()]
    # Without the driver's answer every run on this machine's GPUs waits for every other.
    return gpus or [f"gpu-{os.uname().nodename}"]


def _entrance(runtime: Runtime, image: str | None, device: str, lock: bool) -> list[str]:
    """The words that run an apexbench command in ``runtime`` on another node of this job."""
    words = [sys.executable, "-m", "apexbench", "exec", "--runtime", runtime.name, "--network"]
    words += ["--device", device, *([] if lock else ["--no-lock"])]
    return words + (["--image", str(Path(image).resolve())] if image else [])


def _job(
    command: list[str],
    runtime: Runtime,
    image: str | None,
    gpus: list[str] | None,
    held: set[str],
    results: Path,
    read: Sequence[Path] = (),
) -> Job:
    """The job, with its folders made."""
    run = os.environ.get(RUN_ID) or str(os.getppid())
    scratch = os.environ.get(SCRATCH)
    job = Job(
        command=tuple(command),
        repository=REPOSITORY,
        results=results,
        scratch=Path(scratch).resolve() if scratch else results / ".cache",
        name=container_name(run, "-".join([*command[:2], str(os.getpid())])),
        image=str(Path(image).resolve()) if image and image.endswith(".sif") else image,
        gpus=tuple(gpus or ()),
        all_gpus=gpus is None,
        reads=tuple(path.resolve() for path in read),
        folder=Path.cwd() if results == Path.cwd() / "results" else None,
        environment={**os.environ, HELD: ",".join(sorted(held)), NODE: node()},
    )
    try:
        job.results.mkdir(parents=True, exist_ok=True)
        make_folders(job, runtime.name)
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be made ({error.strerror}); make {job.results} writable"
            + (f" and {SCRATCH}={scratch}." if scratch else ".")
        ) from error
    return job


def _check(runtime: Runtime, job: Job) -> None:
    """Find out before waiting for a device whether the engine can run the image at all."""
    if runtime.name == "native" or job.image is None:
        return
    inspection = runtime.inspection(job.image)
    if inspection is None:
        if problem := missing_file(job.image):
            raise problem
    else:
        answer = subprocess.run(inspection, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise image_problem(job.image, runtime.name, answer.stderr or answer.stdout)
    if job.uses_gpu and (lack := gpu_problem(runtime.name)):
        raise UserError(f"runtime: {runtime.name} cannot reach the GPU: {lack[0]}; {lack[1]}.")
