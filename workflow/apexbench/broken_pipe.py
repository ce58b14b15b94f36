"""A run outlives whoever read what it prints: a pager that was quit, ``head``, a closed window.

Nor does a full disk that the output goes to end it. Snakemake's handler raises such an error out of
the thread that watches a job. The job then never counts as finished, and Snakemake waits for it
forever.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from typing import Any, TextIO

_GONE = {errno.EPIPE, errno.EIO, errno.ENXIO}
"""What a pipe without its reader and a terminal that was closed say: nobody comes back."""


def say(text: str) -> None:
    """A line for the person at the terminal, if one is still there."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
        print(text, file=sys.stderr, flush=True)


class _Outliving:
    """A stream whose text goes nowhere once its reader is gone, or while its disk is full."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._forgo(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._forgo(error)

    def _forgo(self, error: OSError) -> None:
        if error.errno not in _GONE:
            return
        # What the stream still holds goes there too, so that its last flush at exit is silent.
        with open(os.devnull, "wb") as nothing, contextlib.suppress(OSError):
            os.dup2(nothing.fileno(), self._stream.fileno())
            self._stream.flush()


def outlive(logger: str = "snakemake.logging") -> None:
    """Have the handlers of ``logger`` that print drop what nobody reads any more."""
    for handler in logging.getLogger(logger).handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(
            handler, logging.FileHandler
        ):
            handler.setStream(_Outliving(handler.stream))
