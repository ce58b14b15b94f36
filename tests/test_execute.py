"""One command run for real, natively: in its environment, with its device locked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apexbench import execute, locks
from apexbench.errors import UserError
from apexbench.runtimes.apptainer import Apptainer
from apexbench.runtimes.podman import Podman

A = "GPU-aaaa"
WORKFLOW = Path(__file__).parents[1] / "workflow"
EXEC_ON_GPU = (
    "import sys; from pathlib import Path; from apexbench import execute\n"
    "execute.visible_gpu_uuids = lambda: [{gpu!r}]\n"
    "sys.exit(execute.execute(['--version'], 'native', device='cuda', results=Path({results!r})))"
)
# A repository whose apexbench says what it sees.
SAYS = """
import json, os, sys, time
if sys.argv[1] == "sleep":
    open(sys.argv[2], "w").close()
    time.sleep(60)
print(json.dumps([sys.argv[1:], os.environ["CUDA_VISIBLE_DEVICES"], os.environ["PYTHONPATH"],
                  os.environ["APEXBENCH_LOCKS_HELD"]]))
links = [os.path.realpath("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")]
print("inherited", [os.path.basename(link) for link in links if link.endswith(".lock")])
sys.exit(5)
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    place = tmp_path / "my bench (1)"
    package = place / "workflow" / "apexbench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SAYS)
    monkeypatch.setattr(execute, "REPOSITORY", place)
    monkeypatch.setenv(locks.LOCK_DIR, str(tmp_path / "locks"))
    for name in ("APEXBENCH_OWNER_PID", "APEXBENCH_OWNER_START", execute.HELD, execute.SCRATCH):
        monkeypatch.delenv(name, raising=False)
    return place


def test_exec_runs_the_command_on_its_device_and_returns_its_status(repository, capfd):
    log = repository / "logs" / "job.log"
    argv = ["--device", "cpu", "--log", str(log), "--", "measure", "a b", "--flag", "; touch x"]
    assert execute.main(argv) == 5
    said = log.read_text()
    assert '["measure", "a b", "--flag", "; touch x"], "", ' in said
    assert locks.cpu_key() in said
    # A command that outlives its supervisor for a moment still has its device locked.
    assert f"inherited ['{locks.cpu_key()}.lock']" in said
    assert "runtime: native, because no image is configured." in capfd.readouterr().err
    assert (repository / "results" / ".cache" / "native" / "inductor").is_dir()


def test_exec_waits_for_nobody_when_its_run_has_ended(repository, monkeypatch, tmp_path):
    owner = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv("APEXBENCH_OWNER_PID", str(owner.pid))
    with locks.device_lock(locks.cpu_key()):
        code = (
            "import sys; from pathlib import Path; from apexbench import execute\n"
            f"execute.REPOSITORY = Path({str(repository)!r})\n"
            f"sys.exit(execute.main(['--', 'sleep', {str(tmp_path / 'started')!r}]))"
        )
        waiting = subprocess.Popen(
            [sys.executable, "-c", code],
            env=dict(os.environ, PYTHONPATH=str(WORKFLOW)),
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = [waiting.stderr.readline() for _ in range(2)]
        assert f"held by pid {os.getpid()}" in lines[1]
        owner.kill()
        owner.wait()
        assert waiting.wait(3) == 137
        waiting.stderr.close()
    assert not (tmp_path / "started").exists()


def test_exec_holds_the_device_until_the_command_is_gone(repository, tmp_path):
    started = tmp_path / "started"
    code = (
        "import sys; from pathlib import Path; from apexbench import execute\n"
        f"execute.REPOSITORY = Path({str(repository)!r})\n"
        f"sys.exit(execute.main(['--', 'sleep', {str(started)!r}]))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=str(WORKFLOW))
    )
    while not started.exists():
        assert running.poll() is None
        time.sleep(0.02)
    with pytest.raises(UserError, match=f"held by pid {running.pid}"):
        locks.device_lock(locks.cpu_key(), wait=False).__enter__()
    running.kill()
    running.wait()
    with locks.device_lock(locks.cpu_key(), on_wait=lambda _: None):
        pass


def test_exec_inside_exec_does_not_wait_for_itself(repository, monkeypatch, capfd):
    monkeypatch.setenv(execute.HELD, locks.cpu_key())
    with locks.device_lock(locks.cpu_key()):
        assert execute.main(["--", "measure"]) == 5
        assert execute.main(["--no-lock", "--", "measure"]) == 5
    assert capfd.readouterr().out.count("inherited []") == 2


def test_exec_without_a_command_is_one_sentence(repository):
    with pytest.raises(UserError, match="exec needs a subcommand"):
        execute.main(["--device", "cpu", "--"])


def test_exec_says_when_results_cannot_be_written(repository):
    with pytest.raises(UserError, match="cannot be made"):
        execute.execute(["measure"], results=Path("/proc/results"))


def test_exec_takes_image_and_engine_from_the_record(repository, monkeypatch, tmp_path):
    given = {}

    def start(argv, environment, **_):
        given.update(argv=argv, environment=environment)
        return 0

    monkeypatch.setattr(execute, "run_supervised", start)
    monkeypatch.setattr(execute, "choose", lambda runtime, image: (Podman(lambda: ""), "test"))
    monkeypatch.setattr(execute, "_check", lambda runtime, job: None)
    record = tmp_path / "image.json"
    record.write_text('{"engine": "podman", "id": "sha256:abc", "reference": "localhost/x:1"}')
    corpus = tmp_path / "text"
    argv = ["--image-record", str(record), "--read", str(corpus), "--", "measure"]
    assert execute.main(argv) == 0
    assert "sha256:abc" in given["argv"]
    assert f"--env={execute.IMAGE}=sha256:abc" in given["argv"]
    assert [w for w in given["argv"] if w.startswith("--mount=") and str(corpus) in w]
    with pytest.raises(UserError, match="run `apexbench image build`"):
        execute.main(["--image-record", str(tmp_path / "none.json"), "--", "measure"])


def test_exec_names_a_missing_sif(repository, monkeypatch):
    monkeypatch.setattr(execute, "choose", lambda r, i: (Apptainer(), "test"))
    with pytest.raises(UserError, match=r"gone\.sif is not there; build the image"):
        execute.execute(["measure"], image=str(repository / "gone.sif"))


def test_two_folders_on_one_gpu_take_turns_by_its_uuid(repository, tmp_path):
    with locks.device_lock(A):
        waiting = subprocess.Popen(
            [sys.executable, "-c", EXEC_ON_GPU.format(gpu=A, results=str(tmp_path))],
            env={**os.environ, "PYTHONPATH": str(WORKFLOW)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in waiting.stderr:
            if "waiting" in line:
                break
        assert line.startswith(f"waiting for GPU {A}: held by pid {os.getpid()} (user ")
        assert waiting.poll() is None
    waiting.communicate(timeout=30)
    assert waiting.returncode == 0
