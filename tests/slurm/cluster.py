"""A project whose runs go through the lab's Slurm, and what Slurm says of its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import lab
import slurm_toys

from conftest import require
from pipeline import Project, all_disabled, python_with_toy

HERE = Path(__file__).parent
# What a user edits in profiles/slurm, each line as it stands there.
EDITS = {
    "  device: cuda\n": "  device: cpu\n",
    "  preset: full  ": "  preset: quick  ",
    "  gpu_model: NVIDIA H200  ": "  gpu_model: null  ",
    "  # slurm_partition: gpu  ": "  slurm_partition: gpu  ",
    "  # slurm_account: my_project ": "  slurm_account: none ",
    "  mem_mb: 32000 ": "  mem_mb: 300 ",
    "    mem_mb: 64000\n": "    mem_mb: 300\n",
    "  cpus_per_task: 8 ": "  cpus_per_task: 1 ",
    "slurm-init-seconds-before-status-checks: 15\n": "slurm-init-seconds-before-status-checks: 5\n",
    "latency-wait: 60\n": "latency-wait: 10\n",
}
CONFIG = """\
preset: quick
components:
OTHERS
COMPONENTS
transformer: {enabled: false}
measuring: {case_seconds: 0.2, pilot_rounds: 10, implementation_seconds: 600}
report: {reference: false}
"""


@contextlib.contextmanager
def running_slurm(folder: Path, *options: str) -> Iterator[Path]:
    """The lab in ``folder`` while the context lasts; skips (in CI: fails) where there is none."""
    require(lab.asked_for(), "set APEXBENCH_SLURM=1 to install and start a Slurm here")
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n", "env", "APEXBENCH_SLURM=1"]
    command = [*as_root, sys.executable, str(Path(lab.__file__))]
    begin = [*command, "up", str(folder), *options]
    try:
        up = subprocess.run(begin, capture_output=True, text=True, check=False)
        require(up.returncode == 0, f"Slurm cannot be started here: {up.stderr.strip()}")
        yield folder
    finally:
        subprocess.run([*command, "down", str(folder)], check=True)
    assert not folder.exists()
    assert not (lab.ETC / "slurm.conf").exists()


def python_with_toys(folder: Path) -> Path:
    """A Python with the toys installed under their names."""
    python = python_with_toy(folder)
    site = next((folder / "lib").glob("python*/site-packages"))
    shutil.copy(HERE / "slurm_toys.py", site)
    points = site / "toy-1.dist-info/entry_points.txt"
    entries = [f"{name} = slurm_toys:{name}\n" for name in slurm_toys.NAMES]
    points.write_text(points.read_text() + "".join(entries))
    return python


class SlurmProject(Project):
    """A copy of the repository that is run with its own profiles/slurm."""

    def __init__(self, folder: Path, python: Path, resources: str = ""):
        super().__init__(folder, python)
        self.profile = self.folder / "profiles/slurm/config.yaml"
        # One lock a GPU in place of the CPU's, so that jobs on several pretended GPUs can overlap.
        locks = f"{folder.parent}/locks-\\$CUDA_VISIBLE_DEVICES"
        scratch = f"{folder.parent}/scratch"
        self.edit(
            EDITS
            | {
                "# precommand: >-\n#   mkdir -p /scratch/$USER/tmp &&\n#   export TMPDIR=": "pre"
                f"command: >-\n  mkdir -p {scratch}/tmp {locks} &&\n"
                f"  export APEXBENCH_LOCK_DIR={locks} TMPDIR=",
                "#   APPTAINER_CACHEDIR=": "  APPTAINER_CACHEDIR=",
                "set-resources:\n": f"set-resources:\n{resources}",
            }
        )

        self.profile.write_text(self.profile.read_text().replace("/scratch/$USER", scratch))

    def edit(self, changes: dict[str, str]) -> None:
        """Change lines of the profile, each of which must be there once."""
        text = self.profile.read_text()
        for old, new in changes.items():
            assert text.count(old) == 1, f"profiles/slurm has {text.count(old)} × {old!r}"
            text = text.replace(old, new)
        self.profile.write_text(text)

    def measure(self, **cases: list[dict]) -> None:
        """config.yaml with these toys and their cases."""
        lines = [f"  {name}: {{cases: {json.dumps(cases[name])}}}" for name in cases]
        text = CONFIG.replace("OTHERS", all_disabled()).replace("COMPONENTS", "\n".join(lines))
        self.configure(text)

    def argv(self, *arguments: str) -> list[str]:
        """What `make slurm` runs."""
        profile = ["--workflow-profile", "profiles/slurm"]
        return [str(self.python), "-m", "snakemake", *profile, *arguments]

    def jobs(self, *states: str) -> dict[str, str]:
        """Slurm's jobs of this folder in ``states`` (all, if none is named): rule by job id."""
        listed = ask("squeue", "--noheader", f"--states={','.join(states) or 'all'}", "-o%i|%k|%Z")
        rows = [line.split("|") for line in listed.splitlines()]
        return {
            job: comment.removeprefix("rule_").split("_wildcards_")[0]
            for job, comment, place in rows
            if place == str(self.folder)
        }

    def wait_for(
        self, rule: str, state: str = "RUNNING", seconds: float = 60, but: str = ""
    ) -> str:
        """The id of the job of ``rule``, another than ``but``, once it is in ``state``."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for job, name in self.jobs(state).items():
                if name == rule and job != but:
                    return job
            time.sleep(0.2)
        raise AssertionError(f"no job of {rule} is {state} after {seconds} s: {self.jobs()}")

    def wait_until_held(self, component: str, seconds: float = 90) -> str:
        """The id of the job of ``component`` once its first case is kept and the second begun."""
        job = self.wait_for(component)
        log = self.folder / f"results/logs/{component}.log"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if log.exists() and "case 2 of 2" in log.read_text():
                return job
            time.sleep(0.1)
        raise AssertionError(f"{component} measures nothing after {seconds} s")


def ask(*command: str) -> str:
    """What a command of Slurm's answers."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Watcher(threading.Thread):
    """Samples which GPUs the running jobs of a project hold: ``{job: "0"}`` a sample."""

    def __init__(self, project: SlurmProject):
        super().__init__(daemon=True)
        self.project, self.samples, self.over = project, [], threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.3):
            held = {}
            for job in self.project.jobs("RUNNING"):
                told = ask("scontrol", "--details", "show", "job", job)
                if found := re.search(r"GRES=gpu:\w+:\d+\(IDX:([0-9,-]+)\)", told):
                    held[job] = found[1]
            self.samples.append(held)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
