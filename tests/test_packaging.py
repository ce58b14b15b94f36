"""The promises of the packaging: hashed locks, one way to install, clear refusals, no leaks."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import apexbench
from conftest import ROOT, require, require_tool

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ["requirements.lock", "requirements-dev.lock", "docker/requirements.lock"]


def read_lock(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """The pinned requirement and the sha256 hashes of each package in a lock file."""
    entries = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    pins: dict[str, tuple[Requirement, list[str]]] = {}
    for entry in entries:
        if not entry.strip() or entry.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
        parsed = Requirement(requirement)
        pins[canonicalize_name(parsed.name)] = (parsed, hashes)
    return pins


def make(*arguments: str, cwd: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run make as a person would: without the variables of an enclosing make."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    for name in ("PYTHON", "TORCH", "TORCH_INDEX", "TORCH_VERSION"):
        inherited.pop(name, None)
    return subprocess.run(
        [require_tool("make", "it is the entry point"), *arguments],
        cwd=cwd,
        env=inherited | ({"PATH": path} if path else {}),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and the files it depends on, under an awkward name."""
    folder = tmp_path / "my bench (1)"
    folder.mkdir()
    package = folder / "workflow" / "apexbench"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "apexbench" / "__init__.py", package)
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / name, folder)
    return folder


def stub_python(folder: Path, script: str) -> str:
    """Put a `python3` that runs the shell `script` first on a PATH; return that PATH."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_is_pinned_and_hashed(name: str) -> None:
    for package, (requirement, hashes) in read_lock(name).items():
        assert [s.operator for s in requirement.specifier] == ["=="], package
        assert hashes, package
        assert all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes), package


@pytest.mark.parametrize(
    ("name", "extras"),
    [("requirements.lock", ["build"]), ("requirements-dev.lock", ["build", "dev"])],
)
def test_lock_holds_every_declared_dependency_at_an_accepted_version(
    name: str, extras: list[str]
) -> None:
    pins = read_lock(name)
    declared = list(PROJECT["dependencies"])
    for extra in extras:
        declared += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, declared):
        pinned, _ = pins[canonicalize_name(requirement.name)]
        [pin] = pinned.specifier
        assert requirement.specifier.contains(pin.version), f"{requirement} against {pin}"


def test_locks_agree_with_each_other() -> None:
    base = read_lock("requirements.lock")
    for name in LOCKS[1:]:
        other = read_lock(name)
        for package in base.keys() & other.keys():
            # Not the marker: a development tool may need a package where nothing else does.
            (one, hashes), (two, others) = base[package], other[package]
            assert (one.specifier, hashes) == (two.specifier, others), f"{package} in {name}"
    assert base.keys() <= read_lock("requirements-dev.lock").keys()


@pytest.mark.parametrize("name", LOCKS)
def test_torch_is_in_no_lock(name: str) -> None:
    assert not {"torch", "triton"} & read_lock(name).keys()


def test_torch_is_pinned_by_the_makefile_alone() -> None:
    assert re.search(r"^TORCH_VERSION \?= 2\.\d+\.\d+$", (ROOT / "Makefile").read_text(), re.M)
    assert not [d for d in PROJECT["dependencies"] if Requirement(d).name == "torch"]


def test_version_is_the_packages() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert f"## [{apexbench.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    installed = {d.name: d.version for d in distributions()}
    require("apexbench" in installed, "apexbench is not installed here: run `make test`")
    assert installed["apexbench"] == apexbench.__version__


def test_missing_venv_module_names_the_package_to_install(checkout: Path, tmp_path: Path) -> None:
    real = require_tool("python3", "the stub hands everything else to it")
    path = stub_python(
        tmp_path / "bin",
        f'case "$*" in *ensurepip*) exit 1;; esac\nexec "{real}" "$@"',
    )
    result = make("install", "TORCH=0", cwd=checkout, path=path)
    assert result.returncode == 2
    assert "sudo apt-get install python3-venv" in result.stderr
    assert not (checkout / ".venv").exists()


def test_old_python_is_refused_in_one_sentence(checkout: Path, tmp_path: Path) -> None:
    path = stub_python(
        tmp_path / "bin",
        'case "$*" in *version_info\\ *) exit 1;; -V) echo Python 3.10.4;; *) echo old;; esac',
    )
    result = make("install", "TORCH=0", cwd=checkout, path=path)
    assert result.returncode == 2
    sentence = result.stderr.splitlines()[0]
    assert sentence.startswith("apexbench needs Python 3.11 or newer, and python3 is Python 3.10.4")
    assert not (checkout / ".venv").exists()


def test_unknown_python_is_named(checkout: Path) -> None:
    result = make("install", "PYTHON=no-such-python", cwd=checkout)
    assert result.returncode == 2
    assert '"no-such-python" is not a command here' in result.stderr


def test_an_installed_venv_is_not_installed_again(checkout: Path) -> None:
    first = make("--dry-run", "install", "TORCH=0", cwd=checkout)
    stamp = re.search(r"touch (\.venv/\.installed-\d+)$", first.stdout, re.M)
    assert stamp, first.stdout
    (checkout / ".venv").mkdir()
    (checkout / stamp[1]).touch()
    again = make("install", "TORCH=0", cwd=checkout)
    assert again.returncode == 0
    assert "installing" not in again.stdout
    os.utime(checkout / stamp[1], (0, 0))
    assert "--require-hashes" in make("--dry-run", "install", "TORCH=0", cwd=checkout).stdout


def test_another_spelling_of_the_same_python_installs_nothing_again(
    checkout: Path, tmp_path: Path
) -> None:
    real = Path(sys.executable).resolve()
    stub_python(tmp_path / "other", 'echo "/opt/other 3.12.1 (main)"')
    (tmp_path / "alias").symlink_to(real)

    def stamp(*arguments: str) -> str:
        told = make("--dry-run", "install", "TORCH=0", *arguments, cwd=checkout).stdout
        found = re.search(r"touch (\.venv/\.installed-\d+)$", told, re.M)
        assert found, told
        return found[1]

    spellings = [real, tmp_path / "alias", tmp_path / "bin" / ".." / "alias", sys.executable]
    (tmp_path / "bin").mkdir()
    (made,) = {stamp(f"PYTHON={spelling}") for spelling in spellings}
    assert stamp(f"PYTHON={tmp_path / 'other' / 'python3'}") != made
    subprocess.run([real, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    assert stamp() == made  # PYTHON is now .venv/bin/python


def test_torch_index_can_be_emptied_and_torch_left_out(checkout: Path) -> None:
    chosen = make("--dry-run", "install", "TORCH_INDEX=https://wheels.example", cwd=checkout)
    assert "--index-url 'https://wheels.example'" in chosen.stdout
    emptied = make("--dry-run", "install", "TORCH_INDEX=", cwd=checkout)
    assert "install 'torch==" in emptied.stdout
    assert "--index-url" not in emptied.stdout
    assert "torch==" not in make("--dry-run", "install", "TORCH=0", cwd=checkout).stdout
    assert "torch==" not in make("--dry-run", "paper", cwd=checkout).stdout


def tracked_files() -> list[Path]:
    """The repository's versioned files."""
    git = require_tool("git", "it lists the versioned files")
    listing = subprocess.run(
        [git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("this is an export of the repository, without its history")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_versioned_files_name_no_private_host_or_home() -> None:
    leaks = re.compile(
        r"/home/(?!apexbench\b)\w+/|/root/\.pyenv|/Users/\w+/|file:///"
        r"|--(?:extra-)?index-url[ =]+https?:(?!//download\.pytorch\.org/)"
        r"|files\.pythonhosted|://[^/\s'\"]+:[^/\s'\"@]+@"
    )
    this_file = Path(__file__).resolve()
    found = []
    for path in tracked_files():
        if path.resolve() == this_file:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if leaks.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_no_binary_or_large_file_is_versioned() -> None:
    fetched = {".whl", ".so", ".a", ".o", ".cu", ".sif", ".tar", ".gz", ".zip"}
    for path in tracked_files():
        assert path.suffix not in fetched, path
        assert path.stat().st_size < 4 * 1024 * 1024, path
