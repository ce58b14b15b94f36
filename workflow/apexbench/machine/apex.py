"""What Apex is on this machine: the one source for doctor, records and report.

pip reports success for an Apex without a single kernel, and the package version is always 0.1, so
a build is known by its commit and by importing its compiled modules.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apexbench.errors import UserError
from apexbench.machine import apex_source, cubin
from apexbench.machine.apex_source import CORE, EXTENSIONS
from apexbench.machine.gpu import cuda_driver_version, visible_gpus
from apexbench.machine.import_probe import Imported, probe
from apexbench.machine.install import ApexInstall, find_apex, torch_build
from apexbench.records import digest, write_text_atomically

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

# How the loader words it when a module was compiled against another torch or another CUDA.
_OTHER_TORCH = re.compile(
    r"undefined symbol|lib(c10|torch|cudart|cublas|cusparse)\w*\.so[\d.]*: cannot open"
)


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
            if _OTHER_TORCH.search(self.errors[module]):
                return f"{module} was built for another torch", install
            return f"{module} cannot be imported: {self.errors[module]}", install
        if not self.modules.get(module, False):
            if self.state == "python_only":
                return f"{self._name} was built Python-only: no {module}", install
            return f"{self._name} was built without {module}", install
        embedded = self.module_architectures.get(module)
        if self.capability and embedded and not cubin.runs_on(embedded, self.capability):
            return f"{module} has no code for this GPU (sm_{_digits(self.capability)})", install
        return None

    @property
    def _name(self) -> str:
        return _name(self.commit)

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
        status = ApexStatus(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
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
    found = _Evidence(install, imported, modules, errors, embedded, capability)
    state, sentence = found.judge()
    notes = list(install.notes)
    if probing and modules and any(modules.values()) and not embedded:
        notes.append("embedded architectures unknown: cuobjdump is not here")
    return ApexStatus(
        state=state,
        sentence=sentence,
        remedy=_remedy(state, install, capability),
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
    """Per module from cuobjdump; where it is missing, what the build wrote down."""
    names = list(install.extensions)
    with ThreadPoolExecutor() as pool:  # each waits for a cuobjdump of its own
        listed = list(pool.map(cubin.architectures, install.extensions.values()))
    found = {name: embedded for name, embedded in zip(names, listed, strict=True) if embedded}
    recorded = install.build.get("architectures")
    if not found and isinstance(recorded, dict):
        found = {name: list(map(str, names)) for name, names in recorded.items()}
    elif not found and isinstance(recorded, list):
        found = {name: list(map(str, recorded)) for name in install.extensions if name != "apex_C"}
    return found


@dataclass(frozen=True)
class _Evidence:
    install: ApexInstall
    imported: Mapping[str, Imported]
    modules: Mapping[str, bool]
    errors: Mapping[str, str]
    embedded: Mapping[str, list[str]]
    capability: str | None

    def judge(self) -> tuple[str, str]:
        """State and sentence: the first of these that holds."""
        name = _name(self.install.commit)
        kind = self.install.kind
        if kind == "absent":
            return "absent", "Apex is not installed."
        if kind == "foreign":
            label = " ".join(filter(None, ("apex", self.install.version)))
            return "foreign", f"The installed {label} is PyPI's Pyramid toolkit, not NVIDIA Apex."
        problem = self._broken()
        if problem:
            return "broken", f"{name} is broken: {problem}."
        other = next((m for m in CORE if _OTHER_TORCH.search(self.errors.get(m, ""))), None)
        if other:
            build = torch_build()
            version = f"torch {build.version}" if build else "the installed torch"
            detail = _short(self.errors[other])
            return "wrong_torch", f"{name} was built for another torch than {version}: {detail}."
        failed = next((m for m in CORE if m in self.errors), None)
        if failed:
            return "broken", f"{name} is broken: {failed}: {_short(self.errors[failed])}."
        if not any(self.modules.get(module, False) for module in CORE):
            text = f"{name} was built Python-only: FusedAdam and the norms have no kernels."
            return "python_only", text
        for module in CORE:
            built_for = self.embedded.get(module)
            if self.capability and built_for and not cubin.runs_on(built_for, self.capability):
                theirs, ours = ", ".join(built_for), _digits(self.capability)
                sentence = f"{name} was compiled for {theirs}; this GPU needs sm_{ours}."
                return "wrong_architecture", sentence
        return "compiled", self._compiled(name)

    def _broken(self) -> str | None:
        install = self.install
        if install.kind == "leftovers":
            left = sorted(path.name for path in install.leftovers) or ["only pip's metadata"]
            return f"half-uninstalled, what is left is {', '.join(left[:3])}"
        if install.lost:
            return f"half-uninstalled, {install.lost[0]} is gone"
        if install.stale:
            return f"{install.stale[0]} is a stale file of another build"
        torch = self.imported.get("torch")
        if torch and not torch.ok:
            return f"torch cannot be imported ({_short(torch.error)})"
        for module in ("apex", "apex.normalization", "apex.optimizers"):
            fate = self.imported.get(module)
            if fate and not fate.ok:
                return f"{module} cannot be imported ({_short(fate.error)})"
        return None

    def _compiled(self, name: str) -> str:
        count = sum(self.modules.values())
        missing = [module for module in CORE if not self.modules.get(module, False)]
        built_for = sorted({arch for names in self.embedded.values() for arch in names})
        detail = f"{count} module{'s' if count != 1 else ''}"
        detail += f", {', '.join(built_for)}" if built_for else ""
        detail += f"; without {missing[0]}" if missing else ""
        return f"{name} is compiled ({detail})."


def _remedy(state: str, install: ApexInstall, capability: str | None) -> str | None:
    if state == "compiled":
        return None
    command = apex_source.install_command(capability)
    clean = f"{apex_source.python_command()} -m pip uninstall -y apex"
    if install.kind == "leftovers":
        files = " ".join(shlex.quote(str(path)) for path in install.leftovers)
        return f"{clean}; rm -rf {files} && {command}" if files else f"{clean}; {command}"
    if install.stale:
        files = " ".join(shlex.quote(str(install.extensions[name])) for name in install.stale)
        return f"rm {files} && {command}"
    if state == "foreign":
        return f"{clean} && {command}"
    return command


def _name(commit: str | None) -> str:
    return f"Apex {commit[:7]}" if commit else "Apex (unknown commit)"


def _digits(capability: str) -> str:
    return capability.replace(".", "")


def _short(error: str | None) -> str:
    """An import error on one line, without the folder of the file it names."""
    text = re.sub(r"(?<![\w.])/\S*/", "", " ".join((error or "unknown error").split()))
    text = text.removeprefix("ImportError: ").rstrip(".")
    return text if len(text) <= 160 else f"{text[:157]}..."
