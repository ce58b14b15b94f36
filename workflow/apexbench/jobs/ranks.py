"""The measuring process on several GPUs: torchrun's ranks, ended together and answered for as one.

Started by :mod:`apexbench.jobs.supervisor` as ``python -m apexbench.jobs.ranks <n> <job.json>``.
Each rank is an :mod:`apexbench.jobs.worker`; rank 0 measures.
"""

from __future__ import annotations

import os
import signal
import sys

from apexbench.processes import die_with_parent


def main(count: str, job: str) -> int:
    """Run the worker in ``count`` ranks; the exit status (or signal) of the first that failed."""
    die_with_parent()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    # The ranks are of one machine; a container without a network has the loopback interface only.
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")
    arguments = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={count}"]
    try:
        torchrun([*arguments, "-m", "apexbench.jobs.worker", job])
    except ChildFailedError as error:
        status = int(error.get_first_failure()[1].exitcode)
        if status < 0:  # as if this process had ended so: what a signal means, the supervisor knows
            signal.signal(-status, signal.SIG_DFL) if status != -signal.SIGKILL else None
            os.kill(os.getpid(), -status)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
