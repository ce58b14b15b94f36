"""Where Apex comes from and which flag builds which compiled module."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

REPOSITORY = "https://github.com/NVIDIA/apex"
COMMIT = "6424da3b4faa6c8f062da4a48c424fff3f02d42d"
LEGACY_COMMIT = "e13873debc4699d39c6861074b9a3b2a02327f92"
"""The last commit with ``apex.amp``, which upstream removed on 2025-05-08 (pull request 1896)."""

LEGACY_FOLDER = Path(sys.prefix) / "legacy-apex"
"""Where the remedy for a missing ``apex.amp`` installs it: never beside the current Apex."""

CORE = ("amp_C", "fused_layer_norm_cuda")
"""Without these two neither Apex's optimizers nor its norms have kernels."""

# Module -> the environment variable of Apex's setup.py that builds it, as of COMMIT.
EXTENSIONS = {
    "apex_C": "APEX_CPP_EXT",
    "amp_C": "APEX_CUDA_EXT",
    "syncbn": "APEX_CUDA_EXT",
    "fused_layer_norm_cuda": "APEX_CUDA_EXT",
    "mlp_cuda": "APEX_CUDA_EXT",
    "fused_dense_cuda": "APEX_CUDA_EXT",
    "scaled_upper_triang_masked_softmax_cuda": "APEX_CUDA_EXT",
    "generic_scaled_masked_softmax_cuda": "APEX_CUDA_EXT",
    "scaled_masked_softmax_cuda": "APEX_CUDA_EXT",
    "scaled_softmax_cuda": "APEX_CUDA_EXT",
    "fused_rotary_positional_embedding": "APEX_CUDA_EXT",
    "fused_weight_gradient_mlp_cuda": "APEX_CUDA_EXT",
    "xentropy_cuda": "APEX_XENTROPY",
    "fast_layer_norm": "APEX_FAST_LAYER_NORM",
    "focal_loss_cuda": "APEX_FOCAL_LOSS",
    "group_norm_cuda": "APEX_GROUP_NORM",
    "group_norm_v2_cuda": "APEX_GROUP_NORM",
    "fused_index_mul_2d": "APEX_INDEX_MUL_2D",
    "distributed_adam_cuda": "APEX_DISTRIBUTED_ADAM",
    "distributed_lamb_cuda": "APEX_DISTRIBUTED_LAMB",
    "bnp": "APEX_BNP",
}


BUILD_TOOLS = ("ninja", "setuptools", "wheel", "packaging")
"""What Apex's build must find installed, since it builds without isolation."""


def missing_build_tools() -> list[str]:
    """Those of ``BUILD_TOOLS`` that are not installed here."""
    return [tool for tool in BUILD_TOOLS if not list(metadata.distributions(name=tool))]


def python_command() -> str:
    """This interpreter as a person would type it: relative to the current folder if below it.

    A measuring process may run it through a link that is gone with it (``jobs/plain_paths.py``).
    """
    executable = Path(sys.executable)
    if executable.is_relative_to(sys.prefix):
        executable = Path(sys.prefix).resolve() / executable.relative_to(sys.prefix)
    try:
        return shlex.quote(str(executable.relative_to(Path.cwd())))
    except (ValueError, OSError):
        return shlex.quote(str(executable))


def install_command(capability: str | None = None, flags: Iterable[str] = ()) -> str:
    """The command that builds Apex with its kernels into this environment.

    ``capability`` is the GPU's ("9.0"): without it Apex compiles for every architecture.
    ``--no-cache-dir`` and ``--force-reinstall`` matter: pip keeps the wheel it built from a commit
    and would install a Python-only one again.
    """
    wanted = ["APEX_CPP_EXT", "APEX_CUDA_EXT"]
    wanted += [flag for flag in flags if flag not in wanted]
    settings = [f"{flag}=1" for flag in wanted]
    if capability and not os.environ.get("TORCH_CUDA_ARCH_LIST"):
        settings.append(f"TORCH_CUDA_ARCH_LIST={capability}")
    python = python_command()
    tools = missing_build_tools()
    first = f"{python} -m pip install {' '.join(tools)} && " if tools else ""
    return (
        f"{first}{' '.join(settings)} {python} -m pip install --no-build-isolation --no-deps "
        f"--no-cache-dir --force-reinstall 'apex @ git+{REPOSITORY}@{COMMIT}'"
    )


def legacy_command() -> str:
    """The command that installs the last Apex with ``apex.amp``, Python-only, in its own folder."""
    folder = shlex.quote(str(LEGACY_FOLDER.resolve()))
    return (
        f"{python_command()} -m pip install --no-build-isolation --no-deps --no-cache-dir "
        f"--target {folder} 'apex @ git+{REPOSITORY}@{LEGACY_COMMIT}'"
    )


def torch_command(version: str, driver_cuda: str | None) -> str:
    """The command that replaces a CPU build of torch by the CUDA build this driver can run."""
    major = int((driver_cuda or "13").split(".")[0])
    index = f"https://download.pytorch.org/whl/{'cu130' if major >= 13 else 'cu126'}"
    base = version.split("+")[0]
    return f"{python_command()} -m pip install --force-reinstall torch=={base} --index-url {index}"
