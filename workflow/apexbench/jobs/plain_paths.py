"""Paths without spaces or parentheses for the measuring process.

The C++ backend of torch.compile splits its compiler's command line at spaces, so torch, Python and
the compile cache must lie in folders whose names need no quoting. Where a user's do not, the
process is started through links that do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from apexbench.machine.toolchain import needs_quoting

CACHE = "TORCHINDUCTOR_CACHE_DIR"


def interpreter(scratch: Path) -> str:
    """This Python, through a link in ``scratch`` if the folder it is installed in needs quoting."""
    if not needs_quoting(sys.prefix) or not Path(sys.executable).is_relative_to(sys.prefix):
        return sys.executable
    link = scratch / "python"
    link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def environment(scratch: Path) -> dict[str, str]:
    """The environment of the measuring process, its compile cache linked likewise."""
    found = dict(os.environ)
    if needs_quoting(cache := found.get(CACHE, "")):
        Path(cache).mkdir(parents=True, exist_ok=True)
        link = scratch / "inductor"
        link.symlink_to(cache)
        found[CACHE] = str(link)
    return found
