"""What this Snakemake's jobs inherit: where modules come from, threads, the run's id."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from apexbench import processes
from apexbench.cluster import allocation
from apexbench.config import Config
from apexbench.machine.host import cores, threads_asked

THREADS = "APEXBENCH_THREADS"


def forget_foreign_modules() -> None:
    """Look for modules where the jobs will: in this interpreter, not in the caller's PYTHONPATH.

    A native job and a container ignore it (see ``runtimes.environment``), so a torch or an Apex
    that lies there must not enter the fingerprint. Where Snakemake itself came from it, it stays.
    Nor in the working folder, which `python -m snakemake` puts first on the path.
    """
    here = os.getcwd()
    sys.path[:] = [part for part in sys.path if part and os.path.abspath(part) != here]
    package = str(Path(__file__).parents[1])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    foreign = {os.path.abspath(part) for part in given} - {package}
    home = getattr(sys.modules.get("snakemake"), "__file__", None) or ""
    if any(home.startswith(part + os.sep) for part in foreign):
        os.environ["PYTHONPATH"] = os.pathsep.join([package, *given])
        return
    sys.path[:] = [part for part in sys.path if os.path.abspath(part) not in foreign]
    os.environ["PYTHONPATH"] = package
    os.environ["PYTHONNOUSERSITE"] = "1"


def prepare(config: Config, in_job: bool) -> None:
    """Set the number of threads and the run's id; on a cluster's node, whose children jobs are."""
    # Snakemake overwrites OMP_NUM_THREADS with a rule's threads: what the user set is kept here.
    if config.cluster == "none":
        os.environ[THREADS] = str(threads_asked(THREADS) or _threads() or cores())
    elif in_job:
        # The login node's cores and its Snakemake mean nothing on this node.
        os.environ[THREADS] = str(threads_asked(THREADS) or allocation.threads())
        processes.announce_owner()
    os.environ.setdefault("APEXBENCH_RUN_ID", uuid.uuid4().hex[:12])


def _threads() -> int | None:
    """What OMP_NUM_THREADS asks for; raises UserError."""
    return threads_asked("OMP_NUM_THREADS")
