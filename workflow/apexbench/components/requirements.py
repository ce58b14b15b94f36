"""What an implementation needs of the machine: None when met, else (reason, remedy)."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from apexbench.components.component import Missing, Requirement

NEEDS_GPU = "needs an NVIDIA GPU"


def cuda(device: str) -> Missing | None:
    """An NVIDIA GPU as the device of the run."""
    if device == "cuda":
        return None
    return NEEDS_GPU, "run on a machine with an NVIDIA GPU and a CUDA build of torch"


def apex(module: str) -> Requirement:
    """NVIDIA Apex with the compiled extension ``module``, such as ``amp_C``."""

    def requirement(device: str) -> Missing | None:
        if (unmet := cuda(device)) is not None:
            return unmet
        from apexbench.machine.apex import apex_status

        return apex_status().missing(module)

    return requirement


def legacy_amp(device: str) -> Missing | None:
    """apex.amp here, or in the folder that a case with ``legacy`` has a process with."""
    from apexbench.machine.apex import REMOVED
    from apexbench.machine.apex_source import LEGACY_FOLDER

    unmet = apex("apex.amp")(device)
    elsewhere = (LEGACY_FOLDER / "apex" / "amp").is_dir()
    return None if unmet is not None and unmet[0] == REMOVED and elsewhere else unmet


def compiler(device: str) -> Missing | None:
    """What torch.compile needs: a C++ compiler on the CPU, Triton and a C compiler on a GPU."""
    from apexbench.machine.toolchain import compile_missing, needs_quoting

    if (unmet := compile_missing(device)) is not None:
        return unmet
    torch = importlib.util.find_spec("torch")
    if device == "cpu" and torch and torch.origin and needs_quoting(torch.origin):
        return (
            "needs a folder name without spaces or quotes around torch",
            f"set TMPDIR to such a folder, or install torch in one  # it is {torch.origin}",
        )
    return None


def package(name: str, distribution: str | None = None) -> Requirement:
    """An optional Python package, importable by ``name`` and installed as ``distribution``.

    The distribution may name extras, as in ``transformer-engine[pytorch]``.
    """
    wanted = distribution or name
    distribution = wanted.split("[")[0]

    def requirement(device: str) -> Missing | None:
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return f"needs {distribution}", f"python -m pip install '{wanted}'"
        return None

    return requirement
