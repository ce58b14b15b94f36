"""`make soak`: many runs in one folder, many kills, one long job. Writes docs/soak.md's figures.

Not part of the tests: it takes tens of minutes. Ends with status 1 where anything grew, was left
over, or was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "workflow")]

import kills  # noqa: E402
from pipeline import Project, python_with_toy, toy_config  # noqa: E402
from soak_page import page  # noqa: E402

TARGET = "results/summary.csv"
MOST_GROWTH = 0.05
"""Of the memory's median over the last fifth of the runs against that of the first."""


def role(command: list[str]) -> str | None:
    """Which of the run's long-lived processes a command line belongs to."""
    for word, name in (("snakemake", "snakemake"), ("exec", "exec"), ("measure", "measure")):
        if word in command[:6]:
            return name
    return "worker" if "apexbench.jobs.worker" in command[:6] else None


@dataclass
class Peaks:
    """The most memory (bytes, resident) of each role, and its open files at every look."""

    memory: dict[str, int] = field(default_factory=dict)
    files: dict[str, list[int]] = field(default_factory=dict)

    def look(self, folder: Path) -> None:
        """Take every process of the run in ``folder`` into account."""
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                if not os.readlink(proc / "cwd").startswith(str(folder)):
                    continue
                name = role((proc / "cmdline").read_bytes().decode().split("\0"))
                pages = int((proc / "statm").read_text().split()[1])
                opened = len(os.listdir(proc / "fd"))
            except (OSError, IndexError, ValueError):
                continue
            if name is not None:
                size = pages * os.sysconf("SC_PAGE_SIZE")
                self.memory[name] = max(self.memory.get(name, 0), size)
                self.files.setdefault(name, []).append(opened)


def watched(folder: Path, action: Callable[[], None], every: float = 0.2) -> Peaks:
    """Do ``action`` and return the peaks of the processes in ``folder`` meanwhile."""
    peaks, done = Peaks(), threading.Event()

    def watch() -> None:
        while not done.wait(every):
            peaks.look(folder)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        action()
    finally:
        done.set()
        thread.join()
    return peaks


def temporary(project: Project) -> int:
    """Files and folders that the runs left in their folder of temporary files."""
    return sum(1 for _ in Path(project.environment["TMPDIR"]).rglob("*"))


def unfinished(project: Project) -> int:
    """Half-written files under the results."""
    return sum(1 for _ in (project.folder / "results").rglob(".writing-*"))


def compare(values: list[float]) -> tuple[float, float]:
    """Medians of the first and the last fifth."""
    fifth = max(1, len(values) // 5)
    return statistics.median(values[:fifth]), statistics.median(values[-fifth:])


def cpu_seconds() -> float:
    """What the processes that this one started and waited for have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class Soak:
    """What was done, and what was wrong with it."""

    project: Project
    faults: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    def growth(self, what: str, series: dict[str, list[float]], allowed: float) -> None:
        """Note the first and the last fifth of every role; a fault where it grew more."""
        for name, values in sorted(series.items()):
            first, last = compare(values)
            self.figures[f"{what} of {name}"] = [round(v, 1) for v in (first, last, max(values))]
            if last > first * (1 + allowed):
                self.faults.append(f"{what} of {name} grew from {first:g} to {last:g}")

    def left_over(self, when: str) -> None:
        """A fault for every process or temporary file that outlived its run."""
        if left := self.project.wait_until_gone(5):
            self.faults.append(f"{when}: processes left: {left}")
        if count := temporary(self.project):
            self.faults.append(f"{when}: {count} temporary files left")

    def runs(self, count: int) -> None:
        """Consecutive runs that each measure again, in one folder."""
        memory: dict[str, list[float]] = {}
        files: dict[str, list[float]] = {}
        seconds = []
        for number in range(count):
            self.project.configure(toy_config("a", "b") + f"seed: {number}\n")
            begin = cpu_seconds()
            peaks = watched(self.project.folder, lambda: self._run())
            seconds.append(cpu_seconds() - begin)
            for name, value in peaks.memory.items():
                memory.setdefault(name, []).append(value / 2**20)
            for name, seen in peaks.files.items():
                files.setdefault(name, []).append(statistics.median(seen))
            if self.project.index()["measured"] != 2:
                self.faults.append(f"run {number} did not measure")
            self.left_over(f"run {number}")
            print(f"run {number + 1} of {count}: {seconds[-1]:.1f} s", flush=True)
        self.growth("MiB", memory, MOST_GROWTH)
        self.growth("open files", files, 0.0)
        self.growth("CPU seconds", {"a run": seconds}, 0.25)
        self.figures["count"] = count

    def _run(self) -> None:
        done = self.project.run(TARGET)
        if done.returncode != 0:
            self.faults.append(done.stdout[-2000:])

    def long_job(self, cases: int) -> None:
        """One job of many cases: its two long-lived processes, case by case."""
        memory: dict[str, list[float]] = {}
        files: dict[str, list[float]] = {}
        names = [f"case-{number}" for number in range(cases)]
        self.project.configure(toy_config(*names))
        running = self.project.start("results/records/toy/index.json")
        while running.poll() is None:
            peaks = Peaks()
            peaks.look(self.project.folder)
            # The first seconds are imports.
            if len(list((self.project.folder / "results/records/toy").glob("toy-case-*"))) > 2:
                for name in ("measure", "worker", "snakemake", "exec"):
                    if name in peaks.memory:
                        memory.setdefault(name, []).append(peaks.memory[name] / 2**20)
                        files.setdefault(name, []).extend(peaks.files[name])
            time.sleep(0.5)
        told, _ = running.communicate()
        if running.returncode != 0 or len(self.project.records()) != cases:
            self.faults.append(f"the long job: {told[-2000:]}")
        self.growth("MiB", memory, MOST_GROWTH)
        self.growth("open files", files, 0.0)
        self.figures["count"] = cases
        self.left_over("long job")

    def kills(self, seeds: int, make: Callable[[str], Project]) -> None:
        """One kill a seed, each in a fresh copy, compared with an undisturbed run."""
        first = make("undisturbed")
        first.configure(toy_config(*"abcd"))
        expected = kills.undisturbed(first, TARGET)
        halves = 0
        for seed in range(seeds):
            project = make(f"kill-{seed}")
            project.configure(toy_config(*"abcd"))
            try:
                said = kills.kill_and_resume(project, seed, expected, TARGET, timeout=120)
            except Exception as error:  # every seed is tried, whatever one shows
                said = f"{type(error).__name__}: {error}"
                self.faults.append(f"seed {seed}: {said}")
            halves += unfinished(project)
            print(f"kill {seed + 1} of {seeds}: {said}", flush=True)
        self.figures |= {
            "count": seeds,
            "seconds of an undisturbed run": round(expected.seconds, 1),
            "half-written files": halves,
        }


def main() -> int:
    """Run all of it or some parts; writes the figures and the page when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["runs", "job", "kills"])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--out", type=Path, help="a folder whose soak.json and soak.md to renew")
    given = parser.parse_args()
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip() or "n/a"
    result: dict[str, Any] = {"parts": {}}
    if given.out and (given.out / "soak.json").is_file():
        result = json.loads((given.out / "soak.json").read_text(encoding="utf-8"))
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    result["python"] = platform.python_version()
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        python = python_with_toy(Path(place) / "python")

        def make(name: str) -> Project:
            project = Project(Path(place) / name / "my bench (1)", python)
            scratch = Path(place) / name / "tmp"
            scratch.mkdir()
            project.environment["TMPDIR"] = str(scratch)
            return project

        for name in given.parts:
            soak = Soak(make(name))
            {
                "runs": lambda soak=soak: soak.runs(given.runs),
                "job": lambda soak=soak: soak.long_job(given.cases),
                "kills": lambda soak=soak: soak.kills(given.seeds, make),
            }[name]()
            part = {"commit": commit, "figures": soak.figures, "faults": soak.faults}
            result["parts"][name] = part
            print(name, json.dumps(part, indent=1), flush=True)
    if given.out:
        (given.out / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
        if {"runs", "job", "kills"} <= set(result["parts"]):
            (given.out / "soak.md").write_text(page(result))
    return 1 if any(result["parts"][name]["faults"] for name in given.parts) else 0


if __name__ == "__main__":
    sys.exit(main())
