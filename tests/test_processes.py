"""Nothing outlives its owner: real processes, killed for real."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apexbench import processes
from apexbench.errors import UserError
from apexbench.processes import OwnerWatch, announce_owner, start_time
from apexbench.supervision import OWNER_DIED, TIMED_OUT, run_supervised

WORKFLOW = Path(__file__).parents[1] / "workflow"
SUPERVISE = (
    "import sys; from apexbench.supervision import run_supervised; "
    "sys.exit(run_supervised({argv!r}, **{options!r}))"
)
# Writes its own process id, then its grandchild's: one that left the group.
TREE = (
    "import os, subprocess, sys, time; "
    "child = subprocess.Popen(['sleep', '60'], start_new_session=True); "
    "print(os.getpid(), child.pid, file=open(sys.argv[1] + '.new', 'w'), flush=True); "
    "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(60)"
)


@pytest.fixture(autouse=True)
def no_owner(monkeypatch):
    monkeypatch.delenv(processes.OWNER_PID, raising=False)
    monkeypatch.delenv(processes.OWNER_START, raising=False)


def wait_until(condition, seconds=10.0):
    stop_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop_at, "waited in vain"
        time.sleep(0.02)


def environment():
    return dict(os.environ, PYTHONPATH=str(WORKFLOW))


def supervisor(argv, **options):
    """argv of a Python process that supervises ``argv``."""
    return [sys.executable, "-c", SUPERVISE.format(argv=argv, options=options)]


def start_owner(argv):
    """A process that announces itself as the owner, then runs ``argv`` through bash."""
    code = (
        "import subprocess; from apexbench.processes import announce_owner; announce_owner(); "
        # As Snakemake does; the second command keeps bash from replacing itself.
        f"subprocess.run(['bash', '-c', 'set -euo pipefail; \"$@\"; true', 'bash', *{argv!r}])"
    )
    return subprocess.Popen([sys.executable, "-c", code], env=environment())


def running(*pids):
    return [pid for pid in pids if start_time(pid) is not None]


def test_everything_goes_within_two_seconds_when_the_owner_gets_sigkill(tmp_path):
    pids = tmp_path / "pids"
    owner = start_owner(supervisor([sys.executable, "-c", TREE, str(pids)]))
    wait_until(pids.exists)
    child, grandchild = map(int, pids.read_text().split())
    supervising = int(processes.stat_fields(child)[1])
    owner.kill()
    owner.wait()
    wait_until(lambda: not running(child, grandchild, supervising), seconds=2.0)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    pids = tmp_path / "pids"
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + TREE
    owner = start_owner(supervisor([sys.executable, "-c", code, str(pids)], grace=0.5))
    wait_until(pids.exists)
    child, grandchild = map(int, pids.read_text().split())
    owner.kill()
    owner.wait()
    wait_until(lambda: not running(child, grandchild), seconds=2.5)


def test_nothing_is_started_for_a_dead_owner(tmp_path, monkeypatch):
    owner = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv(processes.OWNER_PID, str(owner.pid))
    monkeypatch.setenv(processes.OWNER_START, f"{start_time(owner.pid)}@{processes.boot_id()}")
    owner.kill()
    owner.wait()
    assert run_supervised(["touch", str(tmp_path / "started")]) == OWNER_DIED
    assert not (tmp_path / "started").exists()


def test_the_child_dies_with_a_killed_supervisor(tmp_path):
    pids = tmp_path / "pids"
    process = subprocess.Popen(
        supervisor([sys.executable, "-c", TREE, str(pids)]), env=environment()
    )
    wait_until(pids.exists)
    child, grandchild = map(int, pids.read_text().split())
    process.kill()
    process.wait()
    wait_until(lambda: not running(child), seconds=2.0)
    os.kill(grandchild, signal.SIGKILL)  # no one is left to end it


def test_cleanup_runs_when_the_supervisor_gets_sigkill(tmp_path):
    started, cleaned = tmp_path / "started", tmp_path / "cleaned"
    argv = ["bash", "-c", f"touch '{started}'; sleep 60"]
    process = subprocess.Popen(supervisor(argv, cleanup=["touch", str(cleaned)]), env=environment())
    wait_until(started.exists)
    time.sleep(0.3)  # the guard starts beside the child
    assert not cleaned.exists()
    process.kill()
    process.wait()
    wait_until(cleaned.exists, seconds=2.0)


def test_cleanup_runs_on_the_time_limit_but_not_after_a_normal_end(tmp_path):
    cleaned = tmp_path / "cleaned"
    assert run_supervised(["true"], cleanup=["touch", str(cleaned)]) == 0
    assert not cleaned.exists()
    assert run_supervised(["sleep", "9"], timeout=0.2, cleanup=["touch", str(cleaned)]) == TIMED_OUT
    assert cleaned.exists()


@pytest.mark.parametrize("polling", [False, True])
def test_exit_statuses(polling, monkeypatch):
    if polling:
        monkeypatch.delattr(os, "pidfd_open")
    assert run_supervised(["true"]) == 0
    assert run_supervised(["bash", "-c", "exit 7"]) == 7
    assert run_supervised(["bash", "-c", "kill -SEGV $$"]) == 128 + signal.SIGSEGV
    began = time.monotonic()
    assert run_supervised(["sleep", "60"], timeout=0.2) == TIMED_OUT
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_forwarded_to_the_child(tmp_path, signum):
    ready, got = tmp_path / "ready", tmp_path / "got"
    code = (
        "import signal, sys, time\n"
        f"def note(n, _): open({str(got)!r}, 'w').write(str(n)); sys.exit(0)\n"
        f"signal.signal({int(signum)}, note); open({str(ready)!r}, 'w'); time.sleep(60)"
    )
    process = subprocess.Popen(supervisor([sys.executable, "-c", code]), env=environment())
    wait_until(ready.exists)
    process.send_signal(signum)
    assert process.wait(5) == 128 + signum
    assert got.read_text() == str(int(signum))


def test_what_leaves_the_group_is_swept_after_a_normal_end(tmp_path):
    pids = tmp_path / "pids"
    code = f"setsid sleep 60 & echo $! > '{pids}'; sleep 0.2"
    assert run_supervised(["bash", "-c", code]) == 0
    assert not running(int(pids.read_text()))


def test_own_children_are_not_swept():
    mine = subprocess.Popen(["sleep", "60"])
    try:
        assert run_supervised(["true"]) == 0
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def test_the_log_gets_a_copy(tmp_path, capfdbinary):
    log = tmp_path / "a folder" / "job.log"
    size = 300_000
    code = f"import sys; print('x' * {size}); print('error', file=sys.stderr)"
    assert run_supervised([sys.executable, "-c", code], log=log) == 0
    written = log.read_bytes()
    assert written.count(b"x") == size
    assert b"error" in written
    assert capfdbinary.readouterr().err.count(b"x") == size


def test_a_missing_program_is_one_sentence():
    with pytest.raises(UserError, match="no-such-program cannot be started"):
        run_supervised(["no-such-program"])


def test_another_process_with_the_same_id_is_not_the_owner():
    with OwnerWatch(os.getpid(), start_time(os.getpid())) as watch:
        assert watch.alive()
        assert not watch.wait(0.05)
    with OwnerWatch(os.getpid(), start_time(os.getpid()) - 1) as watch:
        assert not watch.alive()


def test_the_owner_round_trip(monkeypatch):
    announced = {}
    announce_owner(announced)
    for name, value in announced.items():
        monkeypatch.setenv(name, value)
    with OwnerWatch.from_environment() as watch:
        assert watch.pid == os.getpid()
        assert watch.alive()
    # A batch job sees the variables of the login node: another machine, another boot.
    monkeypatch.setenv(processes.OWNER_START, "12@another-boot")
    assert OwnerWatch.from_environment() is None


def test_a_foreign_owner_variable_is_one_sentence(monkeypatch):
    monkeypatch.setenv(processes.OWNER_PID, "; touch x")
    with pytest.raises(UserError, match="does not name a process"):
        OwnerWatch.from_environment()


def test_a_name_with_parentheses_does_not_hide_the_start_time(tmp_path):
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "60"])
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text().startswith("a)"))
        assert start_time(process.pid) is not None
        process.kill()
        wait_until(lambda: start_time(process.pid) is None)  # a zombie now
    finally:
        process.kill()
        process.wait()
