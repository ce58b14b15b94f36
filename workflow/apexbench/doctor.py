"""``apexbench doctor``: what this machine has, and what each missing thing would bring."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from apexbench.errors import UserError
from apexbench.image.build import NEEDED_GIB
from apexbench.machine import apex_source, gpu, host, toolchain
from apexbench.machine.apex import ApexStatus, apex_status
from apexbench.machine.engines import engines, gpu_access
from apexbench.machine.environment import device_choice, driver_too_old
from apexbench.machine.import_probe import probe
from apexbench.machine.install import torch_build

GIB = 1024**3
IMAGE_DISK_GIB = NEEDED_GIB["runtime"]
RESULTS_DISK_GIB = 1


@dataclass(frozen=True)
class Row:
    """One line of the table. ``status``: "ok", "missing" (optional part) or "wrong" (a fault).

    ``brings`` says what the part would bring, ``command`` how to get it; both None when ok.
    ``required`` parts decide the exit status.
    """

    part: str
    status: str
    found: str
    brings: str | None = None
    command: str | None = None
    required: bool = False


def run(console: Console, as_json: bool = False, results: Path | str = "results") -> int:
    """Print the table (or JSON) and return 0 if the main job can run here, else 1."""
    status = apex_status()
    rows = examine(status, Path(results))
    able = all(row.status == "ok" for row in rows if row.required)
    if as_json:
        answer = {"able": able, "rows": [asdict(row) for row in rows], "apex": status.to_dict()}
        # Not through rich, which would wrap long lines.
        console.file.write(json.dumps(answer, indent=2) + "\n")
    else:
        _show(console, rows)
        console.print(_verdict(rows, able), highlight=False)
    return 0 if able else 1


def examine(status: ApexStatus, results: Path) -> list[Row]:
    """Every row, in the order in which the parts depend on each other."""
    visible, gpu_row = _gpu()
    return [
        _python(),
        _torch(),
        gpu_row,
        *([_driver()] if gpu.driver_version() else []),
        _nvcc(visible),
        _apex(status, visible),
        _cxx("cuda" if visible else "cpu"),
        *_engines(visible),
        _disk(results),
        _results(results),
    ]


def _python() -> Row:
    found = f"{platform.python_version()} ({apex_source.python_command()})"
    return Row("Python", "ok", found, required=True)


def _torch() -> Row:
    build = torch_build()
    if build is None:
        brings = "every measurement, also without a GPU"
        return Row("torch", "wrong", "not installed", brings, "make install", required=True)
    imported = probe(["torch"])["torch"]
    kind = f"CUDA {build.cuda}" if build.cuda else "CPU build"
    if not imported.ok:
        error = " ".join((imported.error or "").split())
        found = f"{build.version} ({kind}) cannot be imported: {error}"
        command = f"{apex_source.python_command()} -m pip install --force-reinstall torch=="
        command += build.version.split("+")[0]
        return Row("torch", "wrong", found, "every measurement", command, required=True)
    if build.cuda is None and gpu.gpus():
        command = apex_source.torch_command(build.version, gpu.cuda_driver_version())
        brings = "measurements on this GPU: a CPU build cannot use it"
        # Not required: the main job then runs on the CPU.
        return Row("torch", "missing", f"{build.version} ({kind})", brings, command)
    return Row("torch", "ok", f"{build.version} ({kind})", required=True)


def _gpu() -> tuple[list[gpu.Gpu], Row]:
    try:
        visible = gpu.visible_gpus()
    except UserError as error:
        return [], Row("GPU", "wrong", str(error), "measurements on the GPU", None, required=True)
    if visible:
        lines = [_gpu_line(one) for one in visible]
        return visible, Row("GPU", "ok", "\n".join(lines))
    brings = "Apex and every other CUDA measurement; without one the CPU is measured"
    if gpu.gpus():
        found = "hidden by CUDA_VISIBLE_DEVICES"
        return [], Row("GPU", "missing", found, brings, "unset CUDA_VISIBLE_DEVICES")
    if gpu.unclaimed_hardware():
        found = "an NVIDIA GPU on the PCI bus, but no NVIDIA driver"
        return [], Row("GPU", "missing", found, brings, "sudo apt-get install nvidia-driver")
    return [], Row("GPU", "missing", "no NVIDIA GPU", brings)


def _gpu_line(one: gpu.Gpu) -> str:
    memory = f", {one.memory_bytes / GIB:.0f} GiB" if one.memory_bytes else ""
    capability = f", sm_{one.compute_capability.replace('.', '')}" if one.compute_capability else ""
    return f"{one.name}{memory}{capability}"


def _driver() -> Row:
    newest, build = gpu.cuda_driver_version(), torch_build()
    found = f"{gpu.driver_version()}, up to CUDA {newest}"
    if build and build.cuda and driver_too_old(build.cuda, newest):
        brings = f"torch's CUDA {build.cuda}, which this driver is too old for"
        command = apex_source.torch_command(build.version, newest)
        return Row("driver", "wrong", found, brings, command)
    return Row("driver", "ok", found)


def _nvcc(visible: list[gpu.Gpu]) -> Row:
    compiler, build = toolchain.nvcc(), torch_build()
    wanted = build.cuda if build and build.cuda else None
    package = f"cuda-toolkit-{wanted.replace('.', '-')}" if wanted else "cuda-toolkit"
    command = f"sudo apt-get install {package}  # from developer.nvidia.com/cuda-downloads"
    if compiler is None:
        brings = "building Apex outside a container (inside one, use a -devel image)"
        if not visible:
            return Row("nvcc", "missing", "not found", f"{brings}, once an NVIDIA GPU is here")
        return Row("nvcc", "missing", "not found", brings, command)
    found = f"{compiler.version} ({compiler.path})"
    mismatch = toolchain.nvcc_mismatch()
    if mismatch:
        return Row("nvcc", "wrong", mismatch, "building Apex outside a container", command)
    return Row("nvcc", "ok", found)


def _apex(status: ApexStatus, visible: list[gpu.Gpu]) -> Row:
    compiled = [name for name, there in status.modules.items() if there]
    lines = [status.sentence]
    if compiled and status.state == "compiled":
        lines.append(f"Modules: {', '.join(compiled)}.")
    for name, error in status.errors.items():
        if status.state == "compiled":
            lines.append(f"{name} cannot be imported: {error}")
    lines += [f"Note: {note}." for note in status.notes]
    if status.commit and status.state != "absent":
        lines.append(f"Commit {status.commit}, from {status.commit_source}.")
    found = "\n".join(lines)
    if status.state == "compiled":
        return Row("Apex", "ok", found)
    there = status.state != "absent"
    row_status = "missing" if status.state in ("absent", "python_only") else "wrong"
    brings = "FusedAdam, FusedLayerNorm, FusedRMSNorm and the other Apex arms"
    if visible and (toolchain.nvcc() is None or toolchain.nvcc_mismatch()):
        brings += "; its build needs the nvcc above first"
    if not visible:
        brings += ", once an NVIDIA GPU is here"
        # What is there and wrong is told with its remedy; none need be installed for a CPU.
        return Row("Apex", row_status, found, brings, status.remedy if there else None)
    return Row("Apex", row_status, found, brings, status.remedy)


def _cxx(device: str) -> Row:
    compiler = toolchain.cxx_compiler() if device == "cpu" else toolchain.c_compiler()
    part = "C++ compiler" if device == "cpu" else "C compiler"
    missing = toolchain.compile_missing(device)
    found = f"{compiler.identity} ({compiler.path})" if compiler else "not found"
    if missing is None:
        return Row(part, "ok", found)
    reason, command = missing
    shown = found if compiler is None else f"{found}; torch.compile {reason}"
    return Row(part, "missing", shown, "the torch.compile arms", command)


def _engines(visible: list[gpu.Gpu]) -> list[Row]:
    access = gpu_access()
    rows = []
    for engine in engines():
        if engine.usable:
            found = engine.version or "usable"
            if visible and engine.name != "apptainer":
                found += f", GPU through {access}" if access else ", no access to the GPU set up"
            rows.append(Row(engine.name, "ok", found))
            continue
        found = f"{engine.version}, {engine.problem}" if engine.version else str(engine.problem)
        status = "missing" if engine.path is None else "wrong"
        brings = "the Apex-from-source image (any one engine is enough)"
        rows.append(Row(engine.name, status, found, brings, engine.remedy))
    return rows


def _disk(results: Path) -> Row:
    free = host.free_disk_bytes(results)
    if free is None:
        return Row("disk", "wrong", f"{results}: free space unknown", "the results", None)
    found = f"{free / GIB:.1f} GiB free"
    if free < RESULTS_DISK_GIB * GIB:
        brings = f"the results: they need {RESULTS_DISK_GIB} GiB"
        command = f"df -h {host.existing_parent(results)}"
        return Row("disk", "wrong", found, brings, command, required=True)
    if free < IMAGE_DISK_GIB * GIB:
        found += f"; the Apex image needs about {IMAGE_DISK_GIB} GiB"
    return Row("disk", "ok", found)


def _results(results: Path) -> Row:
    problem = host.why_not_writable(results)
    if problem is None:
        return Row("results", "ok", f"{results} can be written", required=True)
    place = host.existing_parent(results)
    command = f"sudo chown -R $(id -u) '{place}'"
    return Row("results", "wrong", problem, "every record and the report", command, required=True)


MARKS: dict[str, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "missing": ("-", "yellow"),
    "wrong": ("!", "red"),
}


def _show(console: Console, rows: list[Row]) -> None:
    # A command that would be wrapped cannot be copied: it goes below the table, in one line.
    room = console.width - 24
    console.print(_table(rows, room))
    for row in rows:
        if row.command and len(row.command) > room:
            console.print(Text(f"{row.part}:"))
            console.print(Text(row.command, style="bold"), soft_wrap=True)
            console.print()


def _table(rows: list[Row], room: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    table.add_column("Part", no_wrap=True)
    table.add_column("This machine, and what a missing part would bring", overflow="fold")
    for row in rows:
        mark, colour = MARKS[row.status]
        # Text, not markup: a path or an error message may hold square brackets.
        cell = Text(row.found)
        if row.brings:
            cell.append(f"\nWould bring: {row.brings}.")
        if row.command and len(row.command) <= room:
            cell.append(f"\n  {row.command}", style="bold")
        elif row.command:
            cell.append("\n  The command stands below the table.")
        table.add_row(Text(mark, style=colour), Text(row.part), cell)
    return table


def _verdict(rows: list[Row], able: bool) -> Text:
    if not able:
        parts = [row.part for row in rows if row.required and row.status != "ok"]
        return Text(f"The main job cannot run here: see {', '.join(parts)} above.")
    try:
        why = device_choice("auto").why
    except UserError as error:
        why = str(error)
    return Text(f"The main job can run here. {why}")
