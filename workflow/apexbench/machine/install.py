"""What is installed, read from package metadata and files: nothing here imports what it describes.

Importing torch takes seconds and a broken Apex can end the process, so everything that only needs
a version, a commit or a path is answered from the files themselves.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from apexbench.machine.apex_source import EXTENSIONS

NVIDIA_PARTS = ("normalization", "optimizers", "multi_tensor_apply", "amp")
"""Subpackages at least one of which every NVIDIA Apex has; PyPI's Pyramid toolkit has none."""


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch as its own version.py states it; ``cuda`` is None in a CPU build."""

    version: str
    cuda: str | None
    git: str | None
    folder: Path


def torch_build() -> TorchBuild | None:
    """The installed torch, without importing it; None if there is none."""
    folder = _package_folder("torch", None)
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return None
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    if folder is None or "__version__" not in values:
        return None
    return TorchBuild(values["__version__"], values.get("cuda"), values.get("git_version"), folder)


def package_version(distribution: str) -> str | None:
    """The version in the installed distribution's metadata, None if it is not installed."""
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, KeyError):
        return None


def _find(name: str, search_path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    try:
        if search_path is None:
            return importlib.util.find_spec(name)
        return importlib.machinery.PathFinder.find_spec(name, list(search_path))
    except (ImportError, ValueError, OSError):
        return None


def _package_folder(name: str, search_path: Sequence[str] | None) -> Path | None:
    spec = _find(name, search_path)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


@dataclass(frozen=True)
class ApexInstall:
    """Apex as its files show it. ``kind``: absent, foreign, leftovers or nvidia.

    ``extensions`` are the compiled modules found, by name. ``stale`` are those of them that this
    installation did not bring, ``lost`` the files it brought that are gone. ``fingerprint`` is the
    SHA-256 of the RECORD file, or, when pip keeps none, of the modules' names, sizes and times.
    """

    kind: str
    path: Path | None = None
    version: str | None = None
    commit: str | None = None
    commit_source: str | None = None
    extensions: dict[str, Path] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)
    build: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    notes: list[str] = field(default_factory=list)


def find_apex(search_path: Sequence[str] | None = None) -> ApexInstall:
    """Look for Apex on ``search_path`` (default: where this process imports from)."""
    importlib.invalidate_caches()
    extensions = {}
    for name in EXTENSIONS:
        spec = _find(name, search_path)
        if spec is not None and spec.origin and spec.origin.endswith(".so"):
            extensions[name] = Path(spec.origin)
    folder = _package_folder("apex", search_path)
    distribution = _distribution(search_path)
    kind = _kind(folder, distribution, extensions)
    if kind in ("absent", "foreign"):
        version = _version(distribution) if kind == "foreign" else None
        return ApexInstall(kind, folder if kind == "foreign" else None, version)
    site = Path(str(distribution.locate_file(""))).resolve() if distribution else None
    editable = _direct_url(distribution).get("dir_info", {}).get("editable", False)
    notes = []
    if distribution and folder and not editable and folder.parent.resolve() != site:
        notes.append(f"apex is imported from {folder}, not from the installation in {site}")
        distribution = None
    record = distribution.read_text("RECORD") if distribution and not editable else None
    stale, lost = _compare_with_record(distribution, record, extensions)
    build = _build_file(folder, distribution)
    commit, source = _commit(folder, distribution, build)
    return ApexInstall(
        kind=kind,
        path=folder,
        version=_version(distribution),
        commit=commit,
        commit_source=source,
        extensions=extensions,
        stale=stale,
        lost=lost,
        leftovers=[*([folder] if folder else []), *extensions.values()],
        build=build,
        fingerprint=_fingerprint(record, extensions),
        notes=notes,
    )


def _distribution(search_path: Sequence[str] | None) -> metadata.Distribution | None:
    path = list(sys.path if search_path is None else search_path)
    return next(iter(metadata.distributions(name="apex", path=path)), None)


def _version(distribution: metadata.Distribution | None) -> str | None:
    try:
        return distribution.version if distribution else None
    except Exception:  # a dist-info folder without a readable METADATA
        return None


def _kind(
    folder: Path | None, distribution: metadata.Distribution | None, extensions: dict[str, Path]
) -> str:
    parts = [part for part in NVIDIA_PARTS if folder and (folder / part).is_dir()]
    text = _metadata_text(distribution).lower()
    if "pyramid" in text or "velruse" in text:
        return "foreign"
    if folder and (folder / "__init__.py").is_file():
        if parts:
            return "nvidia"
        return "leftovers" if "nvidia" in text else "foreign"
    # Without __init__.py a folder named apex is a namespace package: what an interrupted
    # uninstallation leaves, or a folder of the user's that has nothing to do with Apex.
    return "leftovers" if parts or distribution or extensions else "absent"


def _metadata_text(distribution: metadata.Distribution | None) -> str:
    """The header of METADATA or PKG-INFO (summary, author, requirements), not its long text."""
    if distribution is None:
        return ""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    return text.split("\n\n", 1)[0].split("\nDescription:", 1)[0]


def _compare_with_record(
    distribution: metadata.Distribution | None, record: str | None, extensions: dict[str, Path]
) -> tuple[list[str], list[str]]:
    if distribution is None or record is None:
        return [], []
    # Resolved, because lib64 of a virtual environment is often a link to lib.
    recorded = {Path(str(file.locate())).resolve(): str(file) for file in distribution.files or ()}
    stale = [name for name, file in extensions.items() if file.resolve() not in recorded]
    needed = {"apex/__init__.py", *(f"apex/{part}/__init__.py" for part in NVIDIA_PARTS)}
    lost = [
        name
        for file, name in recorded.items()
        if (name in needed or name.endswith(".so")) and not file.exists()
    ]
    return stale, sorted(lost)


def _direct_url(distribution: metadata.Distribution | None) -> dict[str, Any]:
    return _json(distribution.read_text("direct_url.json") if distribution else None)


def _json(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _build_file(folder: Path | None, distribution: metadata.Distribution | None) -> dict[str, Any]:
    """``apex-build.json``, which the image's build writes beside the package or in its metadata."""
    texts = [distribution.read_text("apex-build.json")] if distribution else []
    for place in (folder, folder.parent) if folder else ():
        try:
            texts.append((place / "apex-build.json").read_text())
        except OSError:
            continue
    return next((found for found in map(_json, texts) if found), {})


def _commit(
    folder: Path | None, distribution: metadata.Distribution | None, build: dict[str, Any]
) -> tuple[str | None, str | None]:
    direct_url = _direct_url(distribution)
    candidates: list[tuple[Any, str]] = [
        (direct_url.get("vcs_info", {}).get("commit_id"), "pip (direct_url.json)"),
        (build.get("commit"), "apex-build.json"),
    ]
    if "dir_info" in direct_url:
        checkout = Path(unquote(urlparse(str(direct_url.get("url", ""))).path))
        candidates.append((git_head(checkout), f"git checkout {checkout}, as it is now"))
    if folder and (folder.parent / "setup.py").is_file():
        candidates.append((git_head(folder.parent), f"git checkout {folder.parent}, as it is now"))
    for commit, source in candidates:
        if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40}", commit):
            return commit, source
    return None, None


def git_head(checkout: Path) -> str | None:
    """The commit a git checkout is on, read from its files so that git need not be installed."""
    try:
        git = checkout / ".git"
        if git.is_file():  # a worktree or submodule: "gitdir: <folder>"
            git = checkout / git.read_text().split(":", 1)[1].strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        reference = head.removeprefix("ref: ")
        common = git / "commondir"
        if common.is_file():
            git = git / common.read_text().strip()
        if (git / reference).is_file():
            return (git / reference).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
    except (OSError, IndexError):
        return None
    return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), None)


def _fingerprint(record: str | None, extensions: dict[str, Path]) -> str | None:
    if record is not None:
        return hashlib.sha256(record.encode()).hexdigest()
    return files_fingerprint(extensions.values())


def files_fingerprint(files: Iterable[Path]) -> str | None:
    """SHA-256 of names, sizes and modification times; None for no files."""
    lines = []
    for file in sorted(files):
        status = file.stat()
        lines.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None
