"""A run outlives whoever read what it prints: a pager that was quit, ``head``, a closed window.

Snakemake's handler raises BrokenPipeError out of the thread that watches a job. The job then never
counts as finished, and Snakemake waits for it forever.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, TextIO


class _Outliving:
    """A stream whose text goes nowhere once its reader is gone."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._into_nothing()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._into_nothing()

    def _into_nothing(self) -> None:
        # What the stream still holds goes there too, so that its last flush at exit is silent.
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, self._stream.fileno())
        finally:
            os.close(nothing)
        with contextlib.suppress(OSError):
            self._stream.flush()


def outlive(logger: str = "snakemake.logging") -> None:
    """Have the handlers of ``logger`` that print drop what nobody reads any more."""
    for handler in logging.getLogger(logger).handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(
            handler, logging.FileHandler
        ):
            handler.setStream(_Outliving(handler.stream))
