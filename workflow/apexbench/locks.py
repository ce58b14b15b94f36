"""Locks between runs: one measurement at a time per GPU, one run at a time per results folder.

A lock is flock(2) on a file that is never deleted. The kernel gives it back when the last process
that holds the descriptor ends, however it ends, so what the file says about its holder may be old
and only matters while somebody holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from apexbench import holder
from apexbench.broken_pipe import say
from apexbench.errors import UserError

LOCK_DIR = "APEXBENCH_LOCK_DIR"
_POLL_SECONDS = 0.25
_REPEAT_SECONDS = 60.0
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Abandoned(Exception):
    """The wait for a lock was given up because nobody needs it any more."""


def lock_directory() -> Path:
    """The node-local folder that all users of this machine share for device locks.

    ``APEXBENCH_LOCK_DIR``; else /run/lock/apexbench where every user may create it, which does
    not depend on who asks; else /tmp/apexbench-locks.
    """
    if chosen := os.environ.get(LOCK_DIR):
        return Path(chosen)
    shared = Path("/run/lock")
    with contextlib.suppress(OSError):
        if shared.is_dir() and shared.stat().st_mode & stat.S_IWOTH:
            return shared / "apexbench"
    return Path("/tmp/apexbench-locks")


@contextlib.contextmanager
def device_lock(
    keys: str | Iterable[str],
    wait: bool = True,
    on_wait: Callable[[str], None] | None = None,
    abandon: Callable[[], bool] | None = None,
) -> Iterator[list[int]]:
    """Hold every device in ``keys`` (GPU UUIDs, or ``cpu_key()``), taken in sorted order.

    Yields the descriptors: a child that inherits them keeps the devices locked until it is gone,
    even if this process is killed. Not reentrant.

    Args:
        keys: One key or several.
        wait: Wait for a lock that is held, or raise at once.
        on_wait: Gets one sentence naming the holder when the wait begins, and each minute after;
            None prints it to stderr.
        abandon: Asked while waiting; the wait ends with ``Abandoned`` once it says True.

    Raises:
        UserError: held and ``wait`` is False, or the lock folder cannot be used.
        Abandoned: ``abandon`` said so.
    """
    names = sorted({keys} if isinstance(keys, str) else set(keys))
    if not names:
        yield []
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(lock_directory()))
        fds = []
        for name in names:
            fd = _open(folder, re.sub(r"[^A-Za-z0-9._-]", "_", name) + ".lock")
            stack.callback(os.close, fd)
            _take(fd, name, wait, on_wait or say, abandon or _never)
            fds.append(fd)
        yield fds


def cpu_key() -> str:
    """The key of this machine's CPU."""
    return f"cpu-{os.uname().nodename}"


class RunLock:
    """One results folder held by this process, until ``release`` or the end of the process."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        self._fd = fd

    def release(self) -> None:
        """Give the folder back; harmless when done before."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def run_lock(path: Path | str) -> RunLock:
    """Take the results folder ``path`` (created if missing) for this run, without waiting.

    On a file system without locks it is not taken, and stderr says so.

    Raises:
        UserError: another run holds it (named), or it cannot be written.
    """
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
        fd = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(
            f"{place}: cannot be written ({error.strerror}); "
            "make it writable, or run a copy of the project elsewhere."
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        told = holder.described(fd)
        os.close(fd)
        raise UserError(
            f"{place} is in use by {told}; wait for that run, stop it, "
            "or run a copy of the project in another folder."
        ) from error
    except OSError as error:
        os.close(fd)
        if error.errno not in _UNSUPPORTED:
            raise UserError(f"{place}: cannot be locked ({error.strerror}).") from error
        say(f"{place}: this file system has no locks; start only one run in it at a time.")
        return RunLock(place, None)
    holder.sign(fd)
    return RunLock(place, fd)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """A descriptor of the lock folder, made for all users when it is missing."""
    try:
        try:
            path.mkdir(parents=bool(os.environ.get(LOCK_DIR)))
        except FileExistsError:
            pass
        else:
            path.chmod(0o1777)  # mkdir's own mode is cut by the umask
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _open(folder: int, name: str) -> int:
    """Open one lock file in the shared folder without following what another user planted.

    Never O_CREAT on a file that exists: fs.protected_regular refuses it for another user's file.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    path = Path(os.readlink(f"/proc/self/fd/{folder}")) / name
    for attempt in range(20):
        try:
            try:
                fd = os.open(name, flags, dir_fd=folder)
            except FileNotFoundError:
                fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
                os.fchmod(fd, 0o666)
        except FileExistsError:
            continue  # another process was faster
        except OSError as error:
            if error.errno == errno.EACCES and attempt < 19:
                time.sleep(0.02)  # between another user's creation and its chmod
                continue
            raise _unusable(path, error) from error
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(fd)
            break
        return fd
    raise UserError(f"{path} is not a plain lock file; remove it or set {LOCK_DIR} elsewhere.")


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: device locks cannot be kept there ({error.strerror}); "
        f"set {LOCK_DIR} to a folder on this machine that all its users can write."
    )


def _take(
    fd: int,
    key: str,
    wait: bool,
    on_wait: Callable[[str], None],
    abandon: Callable[[], bool],
) -> None:
    """flock ``fd``, waiting as asked, and write the holder into it."""
    what = f"GPU {key}" if key.startswith(("GPU-", "MIG-")) else key
    said_at = -_REPEAT_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if not wait:
                raise UserError(
                    f"{what} is held by {holder.described(fd)}; "
                    "wait for it to end or choose another."
                ) from error
        except OSError as error:
            raise _unusable(Path(os.readlink(f"/proc/self/fd/{fd}")), error) from error
        now = time.monotonic()
        if said_at < 0 or now - said_at >= _REPEAT_SECONDS:
            said_at = now
            on_wait(f"waiting for {what}: held by {holder.described(fd)}")
        if abandon():
            raise Abandoned(key)
        time.sleep(_POLL_SECONDS)
    holder.sign(fd)


def _never() -> bool:
    return False
