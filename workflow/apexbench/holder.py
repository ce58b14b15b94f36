"""Who holds a lock: what its file says of that, which any user can write and nobody believes."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import sys
from dataclasses import asdict, dataclass
from datetime import datetime

from apexbench.processes import start_time


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. ``since`` is local time, ISO 8601 to the second."""

    pid: int
    user: str
    host: str
    command: str
    cwd: str
    since: str

    @classmethod
    def me(cls) -> Holder:
        """This process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = str(os.getuid())
        try:
            cwd = os.getcwd()
        except OSError:
            cwd = "a deleted folder"
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        command = " ".join(sys.argv)[:500]
        return cls(os.getpid(), user, os.uname().nodename, command, cwd, since)

    def __str__(self) -> str:
        """One phrase: "pid 123 (user ann) in /srv/ann/apexbench since 12:03"."""
        here = self.host == os.uname().nodename
        today = self.since.startswith(datetime.now().astimezone().date().isoformat())
        since = self.since[11:16] if today else self.since[:16].replace("T", " ")
        where = self.cwd if here else f"{self.cwd} on {self.host}"
        ended = (
            " (it has ended; a process it started still holds the lock)"
            if here and start_time(self.pid) is None
            else ""
        )
        return f"pid {self.pid} (user {self.user}) in {where} since {since}{ended}"


def sign(fd: int) -> None:
    """Write this process into the lock's file."""
    # Only a help for those who wait: a full disk must not stop the run.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(Holder.me())).encode(), 0)


def described(fd: int) -> str:
    """The holder as the file names it; any user can write the file, so nothing in it is trusted."""
    try:
        data = json.loads(os.pread(fd, 1 << 14, 0))
        texts = {key: _plain(data[key]) for key in ("user", "host", "command", "cwd", "since")}
        return str(Holder(pid=int(data["pid"]), **texts))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"


def _plain(value: object) -> str:
    """Printable text of bounded length: no terminal control sequences from other users."""
    return "".join(c if c.isprintable() else "?" for c in str(value))[:500]
