"""Import modules in a process of their own, so that a broken one cannot take the caller along.

Run as a program this file is the child: it reads which modules to import from standard input and
answers one JSON line before and one after each import. It uses the standard library alone.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 120


@dataclass(frozen=True)
class Imported:
    """One module's fate: imported, absent (no such module), or failed with ``error``."""

    ok: bool
    absent: bool = False
    error: str | None = None


def probe(
    modules: Sequence[str],
    search_path: Sequence[str] | None = None,
    time_limit: float = TIME_LIMIT_S,
) -> dict[str, Imported]:
    """Import ``modules`` in order in one child, starting again after a crash with the next.

    ``modules[0]`` is imported in every child: Apex's extensions need torch's libraries loaded. If
    it fails, nothing else is tried. Nor is what lies in a package that ended its child, or what
    follows a module that let ``time_limit`` seconds pass: it would cost as many again.
    ``search_path`` is the child's ``sys.path``, by default the caller's.
    """
    first, rest = modules[0], list(modules[1:])
    results: dict[str, Imported] = {}
    while True:
        request = {"path": list(search_path or sys.path), "modules": [first, *rest]}
        finished, begun, end = _one_child(request, time_limit)
        results.update(finished)
        if begun is not None:
            results[begun] = Imported(ok=False, error=end)
            inside = [name for name in rest if name.startswith(f"{begun}.")]
            results.update(dict.fromkeys(inside, _not_tried(f"{begun} could not be imported")))
        rest = [name for name in rest if name not in results]
        if not rest or begun is None or not results[first].ok:
            reason = f"{first} could not be imported"
            break
        if end == _late(time_limit):
            reason = f"{begun} gave {end}"
            break
    results.update(dict.fromkeys(rest, _not_tried(reason)))
    return results


def _not_tried(reason: str) -> Imported:
    return Imported(ok=False, error=f"not tried: {reason}")


def _late(time_limit: float) -> str:
    return f"no answer within {time_limit:g} s"


def _one_child(
    request: dict[str, Any], time_limit: float
) -> tuple[dict[str, Imported], str | None, str]:
    """What the child reported, the module it was importing when it ended, and how it ended."""
    # -P: until the child has its search path, nothing in this file's folder may shadow a module.
    command = [sys.executable, "-P", str(Path(__file__).resolve())]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=time_limit,
            check=False,
        )
        output = done.stdout
        end = _exit_sentence(done.returncode)
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        end = _late(time_limit)
    finished: dict[str, Imported] = {}
    begun = None
    for line in output.decode(errors="replace").splitlines():
        try:
            message = json.loads(line)
        except ValueError:  # cut off by the child's death
            continue
        if "begin" in message:
            begun = message["begin"]
        else:
            begun = None
            finished[message["end"]] = Imported(
                ok=message["ok"], absent=message["absent"], error=message["error"]
            )
    if begun is None and not finished:
        begun = request["modules"][0]
    return finished, begun, end


def _exit_sentence(status: int) -> str:
    if status < 0:
        return f"the import ended the process with {signal.Signals(-status).name}"
    return f"the import ended the process with status {status}"


def _child() -> None:
    # Libraries print to standard output while loading; keep the answers on a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    for position, name in enumerate(request["modules"]):
        answer(begin=name)
        try:
            importlib.import_module(name)
        except BaseException as error:
            missing = getattr(error, "name", None)
            absent = isinstance(error, ModuleNotFoundError) and (
                missing == name or name.startswith(f"{missing}.")
            )
            answer(end=name, ok=False, absent=absent, error=f"{type(error).__name__}: {error}")
            if position == 0:
                break
        else:
            answer(end=name, ok=True, absent=False, error=None)
    answers.flush()
    os._exit(0)  # skip the destructors of whatever half-loaded library is in this process


if __name__ == "__main__":
    _child()
