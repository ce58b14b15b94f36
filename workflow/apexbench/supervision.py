"""Run one command so that nothing of it is left after Ctrl-C, a time limit or its owner's end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from apexbench.errors import UserError
from apexbench.processes import OwnerWatch, Strays, die_with_parent, start_time

TIMED_OUT = 124
OWNER_DIED = 137
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CLEANUP_SECONDS = 60.0


def run_supervised(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    timeout: float | None = None,
    log: Path | None = None,
    cleanup: Sequence[str] | None = None,
    sweep: bool = True,
    pass_fds: Sequence[int] = (),
    grace: float = 5.0,
) -> int:
    """Run ``argv`` in a session of its own to its end; call it from the main thread.

    The whole group gets SIGTERM, and SIGKILL ``grace`` seconds later, when the owner (see
    ``processes.announce_owner``) dies or ``timeout`` seconds have passed. SIGTERM, SIGINT and
    SIGHUP are forwarded, unless they were ignored on entry (nohup); a second one kills at once.

    Args:
        argv: The command, passed to no shell.
        env: Its whole environment; None for this process's own.
        timeout: Seconds it may take.
        log: File that gets a copy of its output, which then goes to stderr; None lets it write
            to this process's own stdout and stderr.
        cleanup: Command that removes what the child left with a daemon (``docker rm -f …``). Run
            when the child did not end by itself, also when this process is killed with SIGKILL.
        sweep: Also kill what left the group (setsid). Not for engines, whose helpers must stay.
        pass_fds: File descriptors the child keeps; a lock passed so is held until it is gone.
        grace: Seconds between SIGTERM and SIGKILL.

    Returns:
        The exit status: the child's, 128 + n when signal n ended it, ``TIMED_OUT`` (124), or
        ``OWNER_DIED`` (137).

    Raises:
        UserError: ``argv[0]`` cannot be started or ``log`` cannot be written.
    """
    with contextlib.ExitStack() as stack:
        owner = OwnerWatch.from_environment()
        if owner is not None:
            stack.enter_context(owner)
            if not owner.alive():
                return OWNER_DIED
        copy = stack.enter_context(_Copy(log)) if log is not None else None
        if cleanup is not None:
            stack.enter_context(_guard(cleanup, pass_fds))
        strays = stack.enter_context(Strays()) if sweep else None
        child = _start(argv, env, copy, pass_fds)
        run = _Run(child, owner, copy, cleanup, grace)
        status = run.until_end(timeout)
        _kill_group(child.pid, signal.SIGKILL)
        if strays is not None:
            strays.kill()
        if copy is not None:
            copy.drain()
        return status


class _Run:
    """The wait for one child, and the orderly end when something else comes first."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        owner: OwnerWatch | None,
        copy: _Copy | None,
        cleanup: Sequence[str] | None,
        grace: float,
    ) -> None:
        self.child, self.owner, self.copy, self.cleanup = child, owner, copy, cleanup
        self.grace = grace
        self.status: int | None = None
        self.kill_at: float | None = None
        self.removal: subprocess.Popen[bytes] | None = None

    def end(self, signum: int, status: int) -> None:
        """Send ``signum`` to the group; ``status`` is what the first cause of the end returns."""
        again = self.status is not None
        if not again:
            self.status = status
            self.kill_at = time.monotonic() + self.grace
            if self.cleanup is not None:
                with contextlib.suppress(OSError):
                    self.removal = _quietly(self.cleanup)
        _kill_group(self.child.pid, signal.SIGKILL if again else signum)

    def until_end(self, timeout: float | None) -> int:
        """Wait for the child; the exit status as ``run_supervised`` documents it."""
        stop_at = None if timeout is None else time.monotonic() + timeout
        with _signals(self) as woken, OwnerWatch(self.child.pid) as done:
            while self.child.poll() is None:
                now = time.monotonic()
                if self.kill_at is not None and now >= self.kill_at:
                    _kill_group(self.child.pid, signal.SIGKILL)
                    self.kill_at = None
                if self.status is None:
                    if self.owner is not None and not self.owner.alive():
                        self.end(signal.SIGTERM, OWNER_DIED)
                    elif stop_at is not None and now >= stop_at:
                        self.end(signal.SIGTERM, TIMED_OUT)
                self._sleep(woken, done, self.kill_at if self.status is not None else stop_at)
        if self.removal is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.removal.wait(_CLEANUP_SECONDS)
        code = self.child.returncode
        if self.status is not None:
            return self.status
        return 128 - code if code < 0 else code

    def _sleep(self, woken: int, done: OwnerWatch, until: float | None) -> None:
        """Wait for whichever comes first; without pidfd_open look again four times a second."""
        left = None if until is None else max(0.0, until - time.monotonic())
        fds = [woken]
        watches = [done] if self.owner is None or self.status is not None else [done, self.owner]
        for watch in watches:
            if watch.fd is None:
                left = 0.25 if left is None else min(left, 0.25)
            else:
                fds.append(watch.fd)
        if self.copy is not None and self.copy.reading is not None:
            fds.append(self.copy.reading)
        ready = select.select(fds, [], [], left)[0]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 512)
        if self.copy is not None and self.copy.reading in ready:
            self.copy.pump()


@contextlib.contextmanager
def _signals(run: _Run) -> Iterator[int]:
    """Forward signals to the run's group; yields a descriptor readable after each signal."""

    def forward(signum: int, _frame: FrameType | None) -> None:
        run.end(signum, 128 + signum)

    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    kept = {
        signum: signal.signal(signum, forward)
        for signum in _FORWARDED
        if signal.getsignal(signum) is not signal.SIG_IGN
    }
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(woken_before)
        for signum, handler in kept.items():
            signal.signal(signum, handler)
        os.close(reading)
        os.close(writing)


class _Copy:
    """A pipe whose content goes to a log file and to this process's stderr."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("wb", buffering=0)
        except OSError as error:
            raise UserError(
                f"{path}: the log cannot be written ({error.strerror}); make its folder writable."
            ) from error
        read_end, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        self.reading: int | None = read_end

    def pump(self) -> bool:
        """Copy what is there; whether anything was."""
        if self.reading is None:
            return False
        try:
            data = os.read(self.reading, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.reading)
            self.reading = None
            return False
        # A full disk or a closed terminal must not end a measurement.
        with contextlib.suppress(OSError):
            self.file.write(data)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
        return True

    def drain(self) -> None:
        """Copy the rest."""
        while self.pump():
            pass

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *_: object) -> None:
        if self.reading is not None:
            os.close(self.reading)
        with contextlib.suppress(OSError):
            os.close(self.writing)
        self.file.close()


def _start(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    copy: _Copy | None,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    output = None if copy is None else copy.writing
    try:
        child = subprocess.Popen(
            list(argv),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
        )
    except OSError as error:
        raise UserError(
            f"{argv[0]} cannot be started ({error.strerror}); check that it is installed."
        ) from error
    if copy is not None:
        os.close(copy.writing)
        copy.writing = -1
    return child


def _kill_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def _quietly(argv: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(  # type: ignore[call-overload]
        list(argv), stdin=null, stdout=null, stderr=null, start_new_session=True, **options
    )


@contextlib.contextmanager
def _guard(cleanup: Sequence[str], pass_fds: Sequence[int]) -> Iterator[None]:
    """A small process that runs ``cleanup`` if this one is killed with SIGKILL."""
    me = os.getpid()
    code = [sys.executable, "-P", "-m", "apexbench.supervision", str(me), str(start_time(me))]
    env = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[1]), PYTHONNOUSERSITE="1")
    guard = _quietly([*code, *cleanup], env=env, pass_fds=tuple(pass_fds))
    try:
        yield
    finally:
        guard.kill()
        guard.wait()


def _stand_guard(pid: int, start: int, cleanup: Sequence[str]) -> int:
    """Wait for the end of the supervisor, then run ``cleanup``."""
    for signum in _FORWARDED:
        signal.signal(signum, signal.SIG_IGN)
    with OwnerWatch(pid, start) as supervisor:
        supervisor.wait()
    return subprocess.run(list(cleanup), check=False).returncode


if __name__ == "__main__":
    sys.exit(_stand_guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
