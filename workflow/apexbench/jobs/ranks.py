"""The measuring process on several GPUs: torchrun's ranks, ended together and answered for as one.

Started by :mod:`apexbench.jobs.launch`, on one node as ``python -m apexbench.jobs.ranks <n>
<job.json>``, on several as ``apexbench ranks …`` once on each. Each rank is an
:mod:`apexbench.jobs.worker`; rank 0, on the first node, measures.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from apexbench.errors import UserError
from apexbench.machine import host
from apexbench.processes import die_with_parent
from apexbench.termination import interrupted_quietly

_SIOCGIFADDR = 0x8915
WORKER = ("-m", "apexbench.jobs.worker")


class Failure(NamedTuple):
    """How a rank failed: its exit status, negative for a signal; whether memory ended there."""

    status: int
    memory_ended: bool


def main(count: str, job: str) -> int:
    """Run the worker in ``count`` ranks; the exit status (or signal) of the first that failed."""
    die_with_parent()
    # The ranks are of one machine; a container without a network has the loopback interface only.
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")
    where = ["--standalone", "--local-addr=127.0.0.1"]
    status = _torchrun([*where, f"--nproc-per-node={count}", *WORKER, job])
    if status < 0:  # as if this process had ended so: what a signal means, the supervisor knows
        signal.signal(-status, signal.SIG_DFL) if status != -signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


def on_a_node(count: int, nodes: int, port: int, addresses: Sequence[str], job: Path) -> int:
    """Run this node's ``count`` ranks of a step over ``nodes``; whether one failed.

    ``addresses`` are those of the first two nodes, ``port`` one of the first. A failed rank leaves
    its exit status beside ``job``, since srun tells only the highest of all tasks, and whether the
    kernel has killed for lack of memory, which shows on its own node alone.

    Raises:
        UserError: this node has fewer GPUs for this job than ranks.
    """
    die_with_parent()
    node = int(os.environ["SLURM_PROCID"])
    device = json.loads(job.read_text(encoding="utf-8"))["request"]["device"]
    if device == "cuda":
        _check_gpus(count, nodes)
    # Of the interface towards the other nodes: a host's own name often means its loopback.
    if name := interface(addresses[1] if node == 0 else addresses[0]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    where = [f"--nnodes={nodes}", f"--node-rank={node}"]
    where += [f"--master-addr={addresses[0]}", f"--master-port={port}"]
    kills = host.oom_kills()
    status = _torchrun([*where, f"--nproc-per-node={count}", *WORKER, str(job)])
    if status != 0:
        ended = f"{time.time()} {status} {int(host.oom_kills() != kills)}"
        (job.parent / f"status-{node}").write_text(ended)
    return int(status != 0)


def first_failure(folder: Path) -> Failure | None:
    """How the rank that failed first did, where one did."""
    told = [path.read_text().split() for path in folder.glob("status-*")]
    ended = sorted((float(when), int(status), kills == "1") for when, status, kills in told)
    return Failure(*ended[0][1:]) if ended else None


def interface(address: str) -> str | None:
    """The network interface that leads to ``address``; None where that cannot be found out."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                asked = struct.pack("256s", name.encode()[:15])
                try:
                    found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[20:24]
                except OSError:
                    continue  # it has no IPv4 address
                if socket.inet_ntoa(found) == own:
                    return name
    except OSError:
        return None
    return None


def _check_gpus(count: int, nodes: int) -> None:
    from apexbench.cluster import allocation
    from apexbench.machine.gpu import visible_gpus

    if (there := len(visible_gpus())) < count:
        raise UserError(
            f"{allocation.node()} was given {there} GPUs for {count} ranks (transformer.gpus): "
            f"set slurm_extra: \"'--gpus-per-node={count}'\" for transformer under set-resources "
            f"in the profile, and gpu under resources to {count * nodes} at least."
        )


def _torchrun(arguments: list[str]) -> int:
    """The exit status of the rank that failed first, negative for a signal; 0 where none did."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    except ChildFailedError as error:
        return int(error.get_first_failure()[1].exitcode)
    return 0


if __name__ == "__main__":
    interrupted_quietly()  # until torchrun, once imported, handles it
    sys.exit(main(*sys.argv[1:]))
