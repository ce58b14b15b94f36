"""The last Apex with ``apex.amp``, in a folder of its own: whether it is here, and with kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apexbench.machine.apex_source import LEGACY_FOLDER
from apexbench.machine.install import find_apex


def legacy_apex(folder: Path = LEGACY_FOLDER) -> dict[str, Any] | None:
    """Its commit and folder, and whether it is ``compiled``; None where it is not installed.

    It must be the only Apex of the process that imports it: put ``folder`` first on ``sys.path``.
    """
    found = find_apex([str(folder)])
    if found.kind != "nvidia" or found.path is None or not (found.path / "amp").is_dir():
        return None
    return {
        "folder": str(folder),
        "commit": found.commit,
        "compiled": "amp_C" in found.extensions,
        "modules": sorted(found.extensions),
    }
