"""What Apex is on this machine: the one source for doctor, records and report.

pip reports success for an Apex without a single kernel, and the package version is always 0.1, so
a build is known by its commit and by importing its compiled modules.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.machine import apex_source, apex_verdict, cubin
from apexbench.machine.apex_source import EXTENSIONS
from apexbench.machine.gpu import cuda_driver_version, visible_gpus
from apexbench.machine.import_probe import Imported, probe
from apexbench.machine.install import ApexInstall, find_apex, torch_build
from apexbench.records import digest, read_text, write_text_atomically

STATES = (
    "absent",
    "foreign",
    "python_only",
    "compiled",
    "wrong_architecture",
    "wrong_torch",
    "broken",
)

NEEDS_GPU = "needs an NVIDIA GPU"
REMOVED = "removed from Apex in 2025"


@dataclass(frozen=True)
class ApexStatus:
    """What Apex is here. ``state`` is one of ``STATES``; ``sentence`` says it to a person.

    ``modules`` says of each compiled module whether it can be imported (with ``probed`` False:
    whether its file is there); ``errors`` holds the message of each that is there and fails.
    ``architectures`` is the union of ``module_architectures``: "sm_90" for machine code,
    "compute_90" for PTX. ``build_seconds`` is what apex-build.json says. ``remedy`` is the command
    that leads to a compiled Apex, None when it is.
    """

    state: str
    sentence: str
    remedy: str | None = None
    commit: str | None = None
    commit_source: str | None = None
    build_seconds: float | None = None
    version: str | None = None
    path: str | None = None
    modules: dict[str, bool] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    has_amp: bool = False
    architectures: list[str] = field(default_factory=list)
    module_architectures: dict[str, list[str]] = field(default_factory=dict)
    capability: str | None = None
    gpu: bool = False
    torch_cuda: str | None = None
    probed: bool = False
    fingerprint: str | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def missing(self, module: str) -> tuple[str, str] | None:
        """Why an arm that needs ``module`` cannot run here, and the remedy; None if it can.

        ``module`` is a compiled module ("amp_C"), ``apex.amp``, or a Python module of Apex.
        """
        if not self.gpu:
            return NEEDS_GPU, "Run on a machine with an NVIDIA GPU that CUDA_VISIBLE_DEVICES shows."
        if self.torch_cuda is None:
            build = torch_build()
            version = build.version if build else "2.13.0"
            command = apex_source.torch_command(version, cuda_driver_version())
            return "needs a CUDA build of torch", command
        if module == "apex.amp":
            return None if self.has_amp else (REMOVED, apex_source.legacy_command())
        install = self.remedy or self._install(module)
        if self.state in ("absent", "foreign", "broken"):
            return self.sentence.rstrip("."), install
        if module not in EXTENSIONS:
            return None
        if module in self.errors:
            if apex_verdict.OTHER_TORCH.search(self.errors[module]):
                return f"{module} was built for another torch", install
            return f"{module} cannot be imported: {self.errors[module]}", install
        if not self.modules.get(module, False):
            if self.state == "python_only":
                return f"{self._name} was built Python-only: no {module}", install
            return f"{self._name} was built without {module}", install
        embedded = self.module_architectures.get(module)
        if self.capability and embedded and not cubin.runs_on(embedded, self.capability):
            needed = f"sm_{apex_verdict.digits(self.capability)}"
            return f"{module} has no code for this GPU ({needed})", install
        return None

    @property
    def _name(self) -> str:
        return apex_verdict.called(self.commit)

    def _install(self, module: str) -> str:
        flag = EXTENSIONS.get(module)
        return apex_source.install_command(self.capability, [flag] if flag else [])


def apex_status(probe: bool = True, search_path: Sequence[str] | None = None) -> ApexStatus:
    """What Apex is on ``search_path`` (default: where this process imports from).

    With ``probe`` torch and then every module are imported in a child process with a time limit
    (some seconds); without, only files are looked at, and ``wrong_torch``, ``wrong_architecture``
    and import errors cannot be seen. Answers are kept for the life of the process.
    """
    if probe and search_path is None and _recalled:
        return _recalled[-1]
    return _status(probe, None if search_path is None else tuple(search_path))


_recalled: list[ApexStatus] = []


def recall_status(folder: Path) -> ApexStatus:
    """``apex_status()``, kept in ``folder`` for later processes of the same machine.

    Probing starts a process that imports torch and every module, which is seconds in each of a
    run's jobs. The answer is kept under what it depends on: Apex's files, torch, driver and GPUs.
    """
    build, install = torch_build(), find_apex()
    known = digest(
        [
            install.kind,
            install.commit,
            install.fingerprint,
            [build.version, build.cuda, build.git] if build else None,
            cuda_driver_version(),
            [gpu.to_dict() for gpu in visible_gpus()],
        ]
    )
    path = folder / f"apex-{known}.json"
    try:
        status = ApexStatus(**json.loads(read_text(path)))
    except (OSError, ValueError, TypeError, UserError):
        status = apex_status()
        write_text_atomically(path, json.dumps(status.to_dict()) + "\n")
    _recalled[:] = [status]
    return status


@functools.cache
def _status(probing: bool, search_path: tuple[str, ...] | None) -> ApexStatus:
    install = find_apex(search_path)
    build = torch_build()
    try:
        visible = visible_gpus()
    except UserError:  # a wrong CUDA_VISIBLE_DEVICES is reported by whoever picks the device
        visible = []
    capability = visible[0].compute_capability if visible else None
    imported: dict[str, Imported] = {}
    if probing and install.kind in ("nvidia", "leftovers"):
        names = ["torch", "apex", "apex.normalization", "apex.optimizers", "apex.amp"]
        imported = probe([*names, *EXTENSIONS], search_path)
    modules, errors = _modules(install, imported)
    embedded = _architectures(install) if probing else {}
    found = apex_verdict.Evidence(install, imported, modules, errors, embedded, capability, build)
    state, sentence = found.judge()
    notes = list(install.notes)
    if probing and modules and any(modules.values()) and not embedded:
        notes.append("embedded architectures unknown: cuobjdump is not here")
    return ApexStatus(
        state=state,
        sentence=sentence,
        remedy=apex_verdict.remedy(state, install, capability),
        commit=install.commit,
        commit_source=install.commit_source,
        build_seconds=install.build.get("seconds"),
        version=install.version,
        path=str(install.path) if install.path else None,
        modules=modules,
        errors=errors,
        has_amp=_has_amp(install, imported),
        architectures=sorted({name for names in embedded.values() for name in names}),
        module_architectures=embedded,
        capability=capability,
        gpu=bool(visible),
        torch_cuda=build.cuda if build else None,
        probed=bool(imported),
        fingerprint=install.fingerprint,
        notes=notes,
    )


def _modules(
    install: ApexInstall, imported: Mapping[str, Imported]
) -> tuple[dict[str, bool], dict[str, str]]:
    if install.kind not in ("nvidia", "leftovers"):
        return dict.fromkeys(EXTENSIONS, False), {}
    if not imported:
        return {name: name in install.extensions for name in EXTENSIONS}, {}
    modules = {name: name in imported and imported[name].ok for name in EXTENSIONS}
    failed = {name: fate.error or "" for name, fate in imported.items() if not fate.ok}
    errors = {name: text for name, text in failed.items() if not imported[name].absent}
    return modules, errors


def _has_amp(install: ApexInstall, imported: Mapping[str, Imported]) -> bool:
    if imported:
        return "apex.amp" in imported and imported["apex.amp"].ok
    return bool(install.path and (install.path / "amp" / "__init__.py").is_file())


def _architectures(install: ApexInstall) -> dict[str, list[str]]:
    """Per module what its build proved, else from cuobjdump; where that is missing, what the build
    wrote down. cuobjdump takes half a minute for a module of many kernels.
    """
    found = _proven(install)
    names = [name for name in install.extensions if name not in found]
    with ThreadPoolExecutor() as pool:  # each waits for a cuobjdump of its own
        listed = list(pool.map(cubin.architectures, (install.extensions[name] for name in names)))
    found |= {name: embedded for name, embedded in zip(names, listed, strict=True) if embedded}
    found = {name: found[name] for name in install.extensions if name in found}
    recorded = install.build.get("architectures")
    if not found and isinstance(recorded, dict):
        found = {name: list(map(str, names)) for name, names in recorded.items()}
    elif not found and isinstance(recorded, list):
        found = {name: list(map(str, recorded)) for name in install.extensions if name != "apex_C"}
    return found


def _proven(install: ApexInstall) -> dict[str, list[str]]:
    """The architectures that the build proved of the modules that still have their size."""
    recorded, sizes = install.build.get("architectures"), install.build.get("bytes")
    if not isinstance(recorded, dict) or not isinstance(sizes, dict):
        return {}
    return {
        name: list(map(str, recorded[name]))
        for name, path in install.extensions.items()
        if isinstance(recorded.get(name), list)
        and recorded[name]
        and sizes.get(name) == path.stat().st_size
    }
