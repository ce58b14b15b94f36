"""SIGTERM while Snakemake's main thread holds its scheduler's lock: the hang, and its cure."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from apexbench import broken_pipe, cli, locks, owner, plan
from apexbench.errors import UserError
from apexbench.image import log
from apexbench.jobs.progress import Progress
from apexbench.termination import handle_beside_main

WORKFLOW = Path(__file__).parents[1] / "workflow"

# The signal comes at the worst moment by construction: a job has ended, the main thread finishes it
# under the lock. Two jobs, so that Snakemake has a reason to end early.
SNAKEFILE = """
import os, signal, sys
from snakemake.scheduling.job_scheduler import JobScheduler
from apexbench.termination import handle_beside_main

finish = JobScheduler._finish_jobs

def finish_and_be_killed(self):
    if self._tofinish:
        assert self._lock.locked()
        os.kill(os.getpid(), signal.SIGTERM)
    finish(self)

JobScheduler._finish_jobs = finish_and_be_killed

onstart:
    if {cured}:
        handle_beside_main()

rule all:
    input: "a", "b"

rule b:
    input: "a"
    output: "b"
    shell: "touch {{output}}"

rule a:
    output: "a"
    shell: "touch {{output}}"
"""


def start(folder: Path, cured: bool) -> subprocess.Popen[str]:
    (folder / "Snakefile").write_text(SNAKEFILE.format(cured=cured))
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1", "--nolock"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(WORKFLOW)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.workflow
def test_sigterm_ends_snakemake_even_while_its_main_thread_holds_the_scheduler_s_lock(tmp_path):
    running = start(tmp_path, cured=True)
    told, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "Will exit after finishing currently running jobs" in told
    assert (tmp_path / "a").exists()


@pytest.mark.workflow
def test_without_the_cure_it_hangs_as_long_as_snakemake_has_the_fault(tmp_path):
    running = start(tmp_path, cured=False)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "a").exists() and time.monotonic() < end:
            time.sleep(0.05)
        with pytest.raises(subprocess.TimeoutExpired):
            # Fails once Snakemake has no such fault: then apexbench.termination can go.
            running.communicate(timeout=5)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


def test_the_handler_waits_beside_the_main_thread_and_gets_every_signal():
    lock, got = threading.Lock(), []

    def takes_the_lock(signum, frame):
        with lock:
            got.append(signum)

    before = signal.signal(signal.SIGUSR1, takes_the_lock)
    try:
        handle_beside_main(signal.SIGUSR1)
        with lock:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.05)
            assert got == []
        end = time.monotonic() + 5
        while len(got) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert got == [signal.SIGUSR1] * 3
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kept", [signal.SIG_IGN, signal.SIG_DFL])
def test_an_ignored_or_default_signal_stays_so(kept):
    before = signal.signal(signal.SIGUSR1, kept)
    try:
        handle_beside_main(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is kept
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ("typer", ["apexbench", "doctor"]),
        ("torch", ["apexbench.jobs.worker", "{}"]),
        ("torch", ["apexbench.jobs.ranks", "2", "{}"]),
    ],
    ids=("command", "worker", "ranks"),
)
def test_ctrl_c_while_a_command_is_being_imported_is_no_traceback(tmp_path, slow, words):
    (tmp_path / f"{slow}.py").write_text(
        "import time; print('loading', flush=True); time.sleep(30)"
    )
    request = {"component": "layer_norm", "device": "cpu", "seed": 0, "environment": {}}
    request["measuring"] = {"implementation_seconds": 9}
    job = {"request": request, "beat": str(tmp_path / "beat"), "events": 1, "cache": "x"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    running = subprocess.Popen(
        [sys.executable, "-m", *(word.format(tmp_path / "job.json") for word in words)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{WORKFLOW}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "loading\n"
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=10)
    assert running.returncode == -signal.SIGINT
    assert told == ""


def test_ctrl_c_while_the_snakefile_is_read_is_one_sentence(tmp_path, monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan.planned, "decision", pressed)
    with pytest.raises(SystemExit, match=r"^apexbench: interrupted before the first job began\.$"):
        plan.load(tmp_path, {})


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_a_reader_that_is_gone_ends_nothing(tmp_path, monkeypatch, number):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sys, "stderr", Gone())
    Progress("toy", 2, tmp_path / "toy.log").start(0)
    owner.say("preset quick")
    locks.say("waits")
    assert cli._say("refused") == 2
    with pytest.raises(UserError, match="exit status 3"):
        log.run(["bash", "-c", "echo x; exit 3"], tmp_path / "x.log", "it", echo=True)
    assert "toy: 2 cases" in (tmp_path / "toy.log").read_text()
    assert broken_pipe._Outliving(Gone()).write("five\n") == 5


def test_nothing_printed_for_a_person_can_end_a_run():
    """Whoever prints on stderr goes through one function, which never fails."""
    package = WORKFLOW / "apexbench"
    printing = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"print\([^)]*file=sys\.stderr", path.read_text(encoding="utf-8"))
    }
    # The latter is of a step inside an image's build, where there is no more of the package.
    assert printing == {"broken_pipe.py", "image/inside.py"}


def test_a_job_whose_terminal_is_gone_goes_on(tmp_path):
    """Nohup, then the window is closed: every write is EIO."""
    master, slave = os.openpty()
    os.close(master)
    words = ["exec", "--runtime", "native", "--no-lock", "--results", str(tmp_path)]
    words += ["--", "configuration", "--text={}", "--out", str(tmp_path / "config.json")]
    done = subprocess.run(
        [sys.executable, "-m", "apexbench", *words],
        env={**os.environ, "PYTHONPATH": str(WORKFLOW)},
        stdout=slave,
        stderr=slave,
        check=False,
    )
    os.close(slave)
    assert done.returncode == 0
    assert (tmp_path / "config.json").read_text() == "{}\n"
