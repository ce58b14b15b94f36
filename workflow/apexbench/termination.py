"""Signals that end a run: SIGTERM without a hang, Ctrl-C without a traceback.

SIGTERM to Snakemake always ends it: its handler may not run inside the main thread. Snakemake's
handler takes the scheduler's lock, which is not reentrant, and Python runs handlers in the main
thread between two instructions. If the main thread holds that lock at the moment (it does while it
finishes jobs, and then imports pandas the first time), it waits for itself forever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any


def handle_beside_main(signum: int = signal.SIGTERM) -> None:
    """Have the present handler of ``signum`` run in a thread of its own, where it may wait.

    The new handler only writes a byte to a pipe, which needs no lock. Call it from the main thread;
    does nothing where the signal's handler is no Python function (ignored, or the default).
    """
    handler = signal.getsignal(signum)
    if not callable(handler):
        return
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)

    def note(_signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # when thousands of them wait already
            os.write(writing, b"\0")

    def handle() -> None:
        while os.read(reading, 1):
            handler(signum, None)

    threading.Thread(target=handle, name="termination", daemon=True).start()
    signal.signal(signum, note)


def interrupted_quietly() -> Any:
    """Have Ctrl-C end this process without the traceback of an import; returns the old handler.

    An ignored SIGINT stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return before
