"""Which state an Apex is in, in one sentence, and what to do: read off what was found of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from apexbench.machine import apex_source, cubin
from apexbench.machine.apex_source import CORE
from apexbench.machine.import_probe import Imported
from apexbench.machine.install import ApexInstall, TorchBuild

# How the loader words it when a module was compiled against another torch or another CUDA.
OTHER_TORCH = re.compile(
    r"undefined symbol|lib(c10|torch|cudart|cublas|cusparse)\w*\.so[\d.]*: cannot open"
)


@dataclass(frozen=True)
class Evidence:
    """What was found of an Apex: its files, what importing them said, what they were built for."""

    install: ApexInstall
    imported: Mapping[str, Imported]
    modules: Mapping[str, bool]
    errors: Mapping[str, str]
    embedded: Mapping[str, list[str]]
    capability: str | None
    torch: TorchBuild | None

    def judge(self) -> tuple[str, str]:
        """State and sentence: the first of these that holds."""
        name = called(self.install.commit)
        kind = self.install.kind
        if kind == "absent":
            return "absent", "Apex is not installed."
        if kind == "foreign":
            label = " ".join(filter(None, ("apex", self.install.version)))
            return "foreign", f"The installed {label} is PyPI's Pyramid toolkit, not NVIDIA Apex."
        problem = self._broken()
        if problem:
            return "broken", f"{name} is broken: {problem}."
        other = next((m for m in CORE if OTHER_TORCH.search(self.errors.get(m, ""))), None)
        if other:
            version = f"torch {self.torch.version}" if self.torch else "the installed torch"
            detail = short(self.errors[other])
            return "wrong_torch", f"{name} was built for another torch than {version}: {detail}."
        failed = next((m for m in CORE if m in self.errors), None)
        if failed:
            return "broken", f"{name} is broken: {failed}: {short(self.errors[failed])}."
        if not any(self.modules.get(module, False) for module in CORE):
            text = f"{name} was built Python-only: FusedAdam and the norms have no kernels."
            return "python_only", text
        for module in CORE:
            built_for = self.embedded.get(module)
            if self.capability and built_for and not cubin.runs_on(built_for, self.capability):
                theirs, ours = ", ".join(built_for), digits(self.capability)
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
            return f"torch cannot be imported ({short(torch.error)})"
        for module in ("apex", "apex.normalization", "apex.optimizers"):
            fate = self.imported.get(module)
            if fate and not fate.ok:
                return f"{module} cannot be imported ({short(fate.error)})"
        return None

    def _compiled(self, name: str) -> str:
        count = sum(self.modules.values())
        missing = [module for module in CORE if not self.modules.get(module, False)]
        built_for = sorted({arch for names in self.embedded.values() for arch in names})
        detail = f"{count} module{'s' if count != 1 else ''}"
        detail += f", {', '.join(built_for)}" if built_for else ""
        detail += f"; without {missing[0]}" if missing else ""
        return f"{name} is compiled ({detail})."


def remedy(state: str, install: ApexInstall, capability: str | None) -> str | None:
    """The command that leads from ``state`` to a compiled Apex; None where it is compiled."""
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


def called(commit: str | None) -> str:
    """Apex, by its commit."""
    return f"Apex {commit[:7]}" if commit else "Apex (unknown commit)"


def digits(capability: str) -> str:
    """``90`` of the compute capability 9.0."""
    return capability.replace(".", "")


def short(error: str | None) -> str:
    """An import error on one line, without the folder of the file it names."""
    text = re.sub(r"(?<![\w.])/\S*/", "", " ".join((error or "unknown error").split()))
    text = text.removeprefix("ImportError: ").rstrip(".")
    return text if len(text) <= 160 else f"{text[:157]}..."
