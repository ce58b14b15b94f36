"""A copy of the repository whose runs can be broken: the real Snakemake over a toy component."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

from apexbench.components.names import component_files
from conftest import ROOT

TESTS = Path(__file__).parent
TOY = """\
preset: quick
device: cpu
components:
OTHERS
  toy: {cases: CASES}
transformer: {enabled: false}
measuring: {case_seconds: 0.2, pilot_rounds: 10, implementation_seconds: 60}
report: {reference: false}
"""


def all_disabled(*kept: str) -> str:
    """Lines of config.yaml that leave out every component but ``kept``."""
    names = [name for name in component_files() if name not in kept]
    return "\n".join(f"  {name}: {{enabled: false}}" for name in names)


def toy_config(*names: str) -> str:
    """config.yaml for the toy alone, one case a name."""
    cases = json.dumps([{"name": name} for name in names])
    return TOY.replace("OTHERS", all_disabled()).replace("CASES", cases)


def python_with_toy(folder: Path) -> Path:
    """A Python of its own that sees this environment's packages and the toy, installed.

    ``apexbench exec`` drops the caller's PYTHON* variables, so a plug-in has to be installed.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(
        sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    )
    outer = [part for part in sys.path if part.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({part!r})" for part in outer]
    (site / "outer.pth").write_text("\n".join(lines) + "\n")
    shutil.copy(TESTS / "toy_component.py", site)
    info = site / "toy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[apexbench.components]\ntoy = toy_component:component\n"
    )
    return folder / "bin" / "python"


def copy_project(target: Path) -> Path:
    """The repository's files, without results, in a folder of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file() and not name.startswith("results/"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target


class Project:
    """One copy of the repository and the Python that runs it."""

    def __init__(self, folder: Path, python: Path = Path(sys.executable)):
        self.folder = copy_project(folder)
        self.python = python
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "APEXBENCH_"))},
            "APEXBENCH_LOCK_DIR": str(folder.parent / "locks"),
        }

    def configure(self, text: str) -> None:
        """Write config.yaml."""
        (self.folder / "config.yaml").write_text(text)

    def argv(self, *arguments: str) -> list[str]:
        """The command that a user would type."""
        return [str(self.python), "-m", "snakemake", "--cores", "1", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake in a session of its own."""
        return subprocess.Popen(
            self.argv(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end; its output is in ``stdout``."""
        return subprocess.run(
            self.argv(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def index(self, component: str = "toy") -> dict:
        """The index of one component."""
        return json.loads((self.folder / "results/records" / component / "index.json").read_text())

    def records(self, component: str = "toy") -> dict[str, Path]:
        """The records that the index names, by key."""
        folder = self.folder / "results/records" / component
        return {entry["key"]: folder / entry["file"] for entry in self.index(component)["records"]}

    def processes(self) -> list[str]:
        """Command lines of processes that work in this copy, by their working folder."""
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(proc / "cwd").startswith(str(self.folder)):
                    found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def wait_until_gone(self, seconds: float = 10) -> list[str]:
        """What of the run is still there after at most ``seconds``."""
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return left
