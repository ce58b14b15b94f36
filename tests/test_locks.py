"""Locks between real processes: held, waited for, named, given back by the kernel."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from apexbench import locks
from apexbench.errors import UserError
from apexbench.locks import Abandoned, device_lock, lock_directory, run_lock

WORKFLOW = Path(__file__).parents[1] / "workflow"
GPU = "GPU-0a1b2c3d-0000-0000-0000-000000000000"
HOLD = (
    "import sys, time; from apexbench.locks import device_lock, run_lock\n"
    "with {what}:\n"
    "    print('held', flush=True); time.sleep(60)"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(locks.LOCK_DIR, str(tmp_path / "locks"))
    return tmp_path / "locks"


def hold(what, **options):
    """Another process that holds ``what``; returned once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(what=what)],
        env=dict(os.environ, PYTHONPATH=str(WORKFLOW)),
        stdout=subprocess.PIPE,
        **options,
    )
    assert process.stdout.readline() == b"held\n"
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_held_device_names_its_holder(tmp_path):
    other = hold(f"device_lock({GPU!r})", cwd=tmp_path)
    try:
        with pytest.raises(UserError) as caught, device_lock(GPU, wait=False):
            pass
        assert f"GPU {GPU} is held by pid {other.pid} (user " in str(caught.value)
        assert f"in {tmp_path} since " in str(caught.value)
    finally:
        end(other)


def test_sigkill_gives_the_device_back(folder):
    end(hold(f"device_lock({GPU!r})"))
    assert json.loads((folder / f"{GPU}.lock").read_text())["pid"] != os.getpid()
    with device_lock(GPU, wait=False):
        assert json.loads((folder / f"{GPU}.lock").read_text())["pid"] == os.getpid()


def test_the_wait_says_for_whom_and_ends_with_the_holder():
    other = hold(f"device_lock({GPU!r})")
    said = []
    threading.Timer(0.6, other.kill).start()
    with device_lock(GPU, on_wait=said.append):
        pass
    end(other)
    assert len(said) == 1
    assert said[0].startswith(f"waiting for GPU {GPU}: held by pid {other.pid} (user ")


def test_the_wait_is_said_again(monkeypatch):
    monkeypatch.setattr(locks, "_REPEAT_SECONDS", 0.3)
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.05)
    other = hold(f"device_lock({GPU!r})")
    said = []
    threading.Timer(1.0, other.kill).start()
    with device_lock(GPU, on_wait=said.append):
        pass
    end(other)
    assert 3 <= len(said) <= 5


def test_a_wait_nobody_needs_is_abandoned():
    other = hold(f"device_lock({GPU!r})")
    try:
        with pytest.raises(Abandoned), device_lock(GPU, abandon=lambda: True):
            pass
    finally:
        end(other)


def test_a_child_that_inherits_the_lock_keeps_it():
    with device_lock(GPU) as fds:
        child = subprocess.Popen(["sleep", "60"], pass_fds=fds)
    try:
        with pytest.raises(UserError, match="is held by"), device_lock(GPU, wait=False):
            pass
    finally:
        child.kill()
        child.wait()
    with device_lock(GPU, wait=False):
        pass


def test_several_devices_are_taken_in_sorted_order(monkeypatch):
    taken = []
    real = locks._take
    monkeypatch.setattr(
        locks, "_take", lambda fd, key, *rest: (taken.append(key), real(fd, key, *rest))
    )
    with device_lock(["GPU-b", "GPU-a", "GPU-b"]) as fds:
        assert len(fds) == 2
    assert taken == ["GPU-a", "GPU-b"]


def test_one_held_device_gives_back_the_others():
    other = hold("device_lock('GPU-b')")
    try:
        with pytest.raises(UserError), device_lock(["GPU-a", "GPU-b"], wait=False):
            pass
        with device_lock("GPU-a", wait=False):
            pass
    finally:
        end(other)


def test_every_user_can_use_folder_and_file(folder):
    before = os.umask(0o077)
    try:
        with device_lock(GPU):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / f"{GPU}.lock").stat().st_mode) == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_two_users_share_the_lock(tmp_path, folder):
    for parent in [tmp_path, *tmp_path.parents]:
        if not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    with device_lock(GPU):
        code = (
            f"import os, sys; sys.path.insert(0, {str(WORKFLOW)!r})\n"
            "from apexbench.errors import UserError; from apexbench.locks import device_lock\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "try:\n"
            f"    with device_lock({GPU!r}, wait=False): print('taken')\n"
            "except UserError as error: print(error)"
        )
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert f"held by pid {os.getpid()}" in answer.stdout, answer.stderr
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "taken\n", answer.stderr


def test_a_planted_link_is_refused(tmp_path, folder):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    (folder / f"{GPU}.lock").symlink_to(victim)
    with pytest.raises(UserError, match="device locks cannot be kept there"), device_lock(GPU):
        pass
    (folder / f"{GPU}.lock").unlink()
    os.link(victim, folder / f"{GPU}.lock")
    with pytest.raises(UserError, match="not a plain lock file"), device_lock(GPU):
        pass
    assert victim.read_text() == "precious"


def test_a_linked_folder_is_refused(tmp_path, folder):
    folder.symlink_to(tmp_path)
    with pytest.raises(UserError, match=locks.LOCK_DIR), device_lock(GPU):
        pass


def test_a_folder_that_cannot_be_made_has_a_remedy(monkeypatch):
    monkeypatch.setenv(locks.LOCK_DIR, "/proc/apexbench")  # read-only for root as well
    with pytest.raises(UserError, match=f"set {locks.LOCK_DIR} to a folder"), device_lock(GPU):
        pass


def test_no_device_needs_no_folder(monkeypatch):
    monkeypatch.setenv(locks.LOCK_DIR, "/proc/apexbench")
    with device_lock([]) as fds:
        assert fds == []


def test_a_key_is_never_a_path(folder):
    with device_lock("../../escape"):
        pass
    assert [entry.name for entry in folder.iterdir()] == [".._.._escape.lock"]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"pid": "x"}', "\xff"])
def test_any_content_is_survived(folder, content):
    other = hold(f"device_lock({GPU!r})")
    try:
        (folder / f"{GPU}.lock").write_bytes(content.encode("latin-1"))
        with pytest.raises(UserError, match="held by another process"), device_lock(GPU, False):
            pass
    finally:
        end(other)


def test_a_holder_cannot_write_to_the_terminal(folder):
    other = hold(f"device_lock({GPU!r})")
    try:
        path = folder / f"{GPU}.lock"
        data = json.loads(path.read_text()) | {"user": "\x1b[2Jann\n"}
        path.write_text(json.dumps(data))
        with pytest.raises(UserError, match=r"\(user \?\[2Jann\?\)"), device_lock(GPU, False):
            pass
    finally:
        end(other)


def test_the_default_folder_does_not_depend_on_the_user(monkeypatch):
    monkeypatch.delenv(locks.LOCK_DIR)
    assert str(lock_directory()) in {"/run/lock/apexbench", "/tmp/apexbench-locks"}


def test_a_results_folder_has_one_run(tmp_path):
    results = tmp_path / "my results (1)"
    other = hold(f"run_lock({str(results)!r})")
    try:
        began = time.monotonic()
        with pytest.raises(UserError, match=rf"is in use by pid {other.pid} \(user "):
            run_lock(results)
        assert time.monotonic() - began < 1.0
    finally:
        end(other)
    with run_lock(results) as lock:
        lock.release()
        run_lock(results).release()


def test_a_results_folder_that_cannot_be_written_is_one_sentence():
    with pytest.raises(UserError, match="run a copy of the project elsewhere"):
        run_lock("/proc/results")
