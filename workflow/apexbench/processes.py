"""No process outlives the run that started it: end with the parent, end with the owner.

Snakemake starts every command through bash, and dies alone on SIGKILL: bash and the measurement go
on, on a GPU that the next run then finds busy. ``PR_SET_PDEATHSIG`` sees the direct parent only
(bash), so the *owner*, the Snakemake process itself, is watched by process id and start time.
``supervision`` puts the pieces together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from pathlib import Path

from apexbench.errors import UserError

OWNER_PID = "APEXBENCH_OWNER_PID"
OWNER_START = "APEXBENCH_OWNER_START"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.25
# Loaded once, here: a dlopen between fork and exec is not safe.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send ``signum`` to this process when the thread that started it ends.

    ``parent`` is the process id expected to be the parent; give it when calling after a fork, so
    that a parent which died before this call is noticed (this process then ends at once). The
    kernel forgets the request on exec of a setuid program. Does nothing where there is no prctl.
    """
    expected = os.getppid() if parent is None else parent
    if not hasattr(_libc, "prctl"):
        return
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        return
    if os.getppid() != expected:
        os.kill(os.getpid(), signum)


def adopt_orphans(on: bool = True) -> None:
    """Make this process the parent of its descendants' orphans, so that they can be ended."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def stat_fields(pid: int) -> list[str] | None:
    """Fields 3 (state) onward of ``/proc/<pid>/stat``, proc(5); None when there is no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name, field 2, may itself hold spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; None when it has ended (or is a zombie)."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZXx":
        return None
    return int(fields[19])


def boot_id() -> str:
    """Which boot of which machine this is: a process id means nothing elsewhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def announce_owner(environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Write this process into ``environment`` as the owner of all that is started with it.

    Overwrites an older owner: the nearest Snakemake is the one whose end must be noticed.
    """
    environment[OWNER_PID] = str(os.getpid())
    environment[OWNER_START] = f"{start_time(os.getpid())}@{boot_id()}"


class OwnerWatch:
    """Whether one process, told from a later one with the same id by its start time, is alive.

    ``fd`` becomes readable when it ends (pidfd_open(2), Linux 5.3); it is None where the kernel
    or a sandbox refuses, and then ``alive`` must be polled.
    """

    def __init__(self, pid: int, start: int | None = None) -> None:
        """Watch ``pid`` that started ``start`` clock ticks after boot (None: whichever it is)."""
        self.pid = pid
        self.start = start_time(pid) if start is None else start
        self.fd: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.fd = os.pidfd_open(pid)
        # Only now: the id may have been taken over by another process before it was opened.
        self._gone = self.start is None or start_time(pid) != self.start

    @classmethod
    def from_environment(cls) -> OwnerWatch | None:
        """The owner that ``announce_owner`` wrote; None without one, or with one elsewhere.

        Raises UserError when the two variables cannot be read.
        """
        pid, start = os.environ.get(OWNER_PID), os.environ.get(OWNER_START)
        if not pid:
            return None
        ticks, _, boot = (start or "").partition("@")
        if not pid.isdecimal() or not (ticks.isdecimal() or not ticks):
            raise UserError(
                f"{OWNER_PID}={pid!r} with {OWNER_START}={start!r} does not name a process: "
                "unset both, they are set by the Snakefile."
            )
        if boot and boot != boot_id():
            return None
        return cls(int(pid), int(ticks) if ticks else None)

    def alive(self) -> bool:
        """Whether the process is still running; a zombie is not."""
        if not self._gone:
            if self.fd is not None:
                self._gone = bool(select.select([self.fd], [], [], 0)[0])
            else:
                self._gone = start_time(self.pid) != self.start
        return not self._gone

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the end; whether it came."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.alive():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self.fd is not None:
                select.select([self.fd], [], [], left)
            else:
                time.sleep(_POLL_SECONDS if left is None else min(_POLL_SECONDS, left))
        return True

    def close(self) -> None:
        """Give the file descriptor back."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __enter__(self) -> OwnerWatch:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class Strays:
    """Descendants that left the child's group: the kernel hands them to this process."""

    def __enter__(self) -> Strays:
        self.before = set(_children())
        adopt_orphans()
        return self

    def kill(self) -> None:
        """Kill them, generation by generation, for at most 5 s."""
        stop_at = time.monotonic() + 5.0
        while strays := set(_children()) - self.before:
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > stop_at:
                break
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        adopt_orphans(False)


def _children() -> list[int]:
    """Process ids whose parent is this process, zombies included."""
    me = str(os.getpid())
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if (fields := stat_fields(pid)) and fields[1] == me]
