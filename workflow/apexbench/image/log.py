"""Long commands: output goes to a log, a failure becomes its last lines and a sentence."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from apexbench.broken_pipe import say
from apexbench.errors import UserError
from apexbench.image.problem import Problem

LAST_LINES = 20

# What engines and compilers say, and what it means; the first that matches counts.
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"no space left on device|disk quota exceeded",
        "the disk is full",
        "free some, or move the engine's storage to a larger disk",
    ),
    (
        r"permission denied.*(docker|podman)\.sock|permission denied while trying to connect",
        "this user may not use the engine's socket",
        "sudo usermod -aG docker $USER, then log in again",
    ),
    (
        r"cannot connect to the docker daemon|is the docker daemon running",
        "the engine's daemon does not answer",
        "sudo systemctl start docker",
    ),
    (
        r"buildx component is missing|the --mount option requires buildkit",
        "this docker has no BuildKit",
        "install docker-buildx (docker-buildx-plugin), or set runtime: podman",
    ),
    (
        r"manifest unknown|manifest for .* not found|name unknown|repository does not exist"
        r"|pull access denied|reading manifest",
        "the base image does not exist in its registry",
        "correct image.base and image.runtime_base; the tags are listed at the registry",
    ),
    (
        r"short-name .* did not resolve",
        "podman does not know which registry the base is from",
        "write the registry too, such as docker.io/pytorch/pytorch",
    ),
    (
        r"slirp4netns|/dev/net/tun|could not find pasta",
        "a rootless engine cannot make the network of its build",
        "let this user open it (sudo chmod a+rw /dev/net/tun; slirp4netns or pasta must be "
        'installed), or write netns = "host" under [containers] in '
        "~/.config/containers/containers.conf",
    ),
    (
        r"could not resolve host|temporary failure in name resolution|no such host|dial tcp"
        r"|network is unreachable|connection refused|i/o timeout|tls handshake timeout",
        "the network does not reach a server that the build needs",
        "check the network and its proxy (https_proxy), then run the same command",
    ),
    (
        r"\bkilled signal terminated program|nvcc.*\bkilled\b|\bcc1plus.*\bkilled\b"
        r"|signal 9|exit (code|status):? 137|cannot allocate memory",
        "the compiler was killed, most likely for want of memory",
        "set MAX_JOBS=1 and APEX_PARALLEL_BUILD=1, or build with more memory",
    ),
)


def run(
    argv: Sequence[str],
    log: Path,
    what: str,
    environment: Mapping[str, str] | None = None,
    echo: bool = False,
    folder: Path | None = None,
) -> None:
    """Run ``argv`` in ``folder`` with its output appended to ``log``; with ``echo`` also shown.

    Raises:
        UserError: it failed; the sentence names the cause where it is known, and the log. The last
            lines of the log are printed before.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    last: deque[str] = deque(maxlen=400)
    with log.open("a", encoding="utf-8", errors="replace") as file:
        try:
            process = subprocess.Popen(
                list(argv),
                cwd=folder,
                env=None if environment is None else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise UserError(
                f"{argv[0]} cannot be started ({error.strerror}): check that it is installed."
            ) from error
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                last.append(line.rstrip())
                if echo:
                    say(line.rstrip("\n"))
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status == 0:
        return
    say(f"the last lines of {log}:")
    say("\n".join(list(last)[-LAST_LINES:]))
    raise UserError(f"{what} failed with exit status {status}: {explain(list(last))} Log: {log}")


def explain(lines: Sequence[str]) -> str:
    """The sentence for a failed command, from the end of its output."""
    for line in reversed(lines):
        if said := re.search(r"apexbench: (\S.*)", line):
            return said.group(1)
    text = "\n".join(lines)
    for pattern, fault, remedy in KNOWN:
        if re.search(pattern, text, re.IGNORECASE):
            return str(Problem(fault, remedy))
    return "its last lines stand above."
