"""Which environment variables a job sees, and where its caches lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from apexbench.runtimes.runtime import Job

# What a person sets to change a measurement, or a scheduler to place it; nothing of the host's
# paths, tokens or proxies. The records say which of them were set.
_PASSED = frozenset(
    {
        "COLUMNS",
        "FORCE_COLOR",
        "NO_COLOR",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NVIDIA_TF32_OVERRIDE",
        "SOURCE_DATE_EPOCH",
        "TERM",
        "TZ",
    }
)
_PASSED_PREFIXES = (
    "APEXBENCH_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDA_",
    "CUDNN_",
    "GLOO_",
    "NCCL_",
    "PYTORCH_",
    "SLURM_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
)
# Host process ids, host paths and the choice of GPUs: wrong inside, or set by the runtime.
_KEPT_OUT = frozenset(
    {
        "APEXBENCH_LOCK_DIR",
        "APEXBENCH_OWNER_PID",
        "APEXBENCH_OWNER_START",
        "CUDA_CACHE_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "TORCH_HOME",
        "TRITON_CACHE_DIR",
        "TRITON_HOME",
    }
)


def passed_on(host: Mapping[str, str]) -> dict[str, str]:
    """The part of the caller's environment that enters a container."""
    return {
        key: value
        for key, value in host.items()
        if key not in _KEPT_OUT and (key in _PASSED or key.startswith(_PASSED_PREFIXES))
    }


def caches(job: Job, runtime: str) -> dict[str, str]:
    """Compile caches, one folder per runtime: their compilers and C libraries differ."""
    base = job.scratch / runtime
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
        "TRITON_CACHE_DIR": str(base / "triton"),
        "TORCH_EXTENSIONS_DIR": str(base / "torch_extensions"),
        "CUDA_CACHE_PATH": str(base / "cuda"),
        "XDG_CACHE_HOME": str(base / "xdg"),
        "MPLCONFIGDIR": str(base / "matplotlib"),
    }


def devices(job: Job) -> dict[str, str]:
    """Exactly the job's GPUs, by UUID; an empty value hides all."""
    if job.all_gpus:
        shown = job.environment.get("CUDA_VISIBLE_DEVICES")
        return {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    return {"CUDA_VISIBLE_DEVICES": ",".join(job.gpus)}


def python(job: Job) -> dict[str, str]:
    """Only the repository's package and the interpreter's own: nothing of the user's."""
    return {
        "PYTHONPATH": str(job.repository / "workflow"),
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
    }


def inside(job: Job, runtime: str) -> dict[str, str]:
    """The environment of the job inside a container, beside what its image sets."""
    base = job.scratch / runtime
    return {
        **passed_on(job.environment),
        **caches(job, runtime),
        **devices(job),
        **python(job),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(base / "home"),
        "TMPDIR": str(base / "tmp"),
        # The caller's uid has no name inside; getpass.getuser() would fail in TorchInductor.
        "USER": "apexbench",
        "LOGNAME": "apexbench",
        "LANG": "C.UTF-8",
        "APEXBENCH_RUNTIME": runtime,
    }


def make_folders(job: Job, runtime: str) -> None:
    """Create what ``inside`` and ``caches`` name.

    Raises:
        OSError: the scratch folder cannot be written.
    """
    base = job.scratch / runtime
    for path in (*map(Path, caches(job, runtime).values()), base / "home", base / "tmp"):
        path.mkdir(parents=True, exist_ok=True)


def writable_folder(path: str | None) -> bool:
    """Whether ``path`` is a folder this user can write."""
    return bool(path) and os.path.isdir(path or "") and os.access(path or "", os.W_OK | os.X_OK)
