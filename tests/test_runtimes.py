"""How each engine is called, word for word, and one command run for real."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apexbench import execute, locks
from apexbench.errors import UserError
from apexbench.runtimes import Job, choose, container_name
from apexbench.runtimes.apptainer import Apptainer
from apexbench.runtimes.choose import image_problem
from apexbench.runtimes.docker import Docker
from apexbench.runtimes.environment import passed_on
from apexbench.runtimes.native import Native
from apexbench.runtimes.podman import Podman

A, B = "GPU-aaaa", "GPU-bbbb"
WORKFLOW = Path(__file__).parents[1] / "workflow"
EXEC_ON_GPU = (
    "import sys; from pathlib import Path; from apexbench import execute\n"
    "execute.visible_gpu_uuids = lambda: [{gpu!r}]\n"
    "sys.exit(execute.execute(['--version'], 'native', device='cuda', results=Path({results!r})))"
)


def job(**changes):
    given = {
        "command": ("measure", "layer_norm", "; touch x"),
        "repository": Path("/srv/ann/my bench (1)"),
        "results": Path("/srv/ann/my bench (1)/results"),
        "scratch": Path("/srv/ann/my bench (1)/results/.cache"),
        "name": "apexbench-run-measure",
        "image": "sha256:abc",
        "environment": {"PATH": "/bin", "HF_TOKEN": "secret", "TERM": "xterm"},
        "uid": 1234,
        "gid": 100,
    }
    return Job(**given | changes)


def values(argv, option):
    return [word.split("=", 1)[1] for word in argv if word.startswith(option + "=")]


@pytest.mark.parametrize("runtime", [Docker(), Podman(lambda: "")], ids=["docker", "podman"])
def test_docker_and_podman_close_what_is_not_needed(runtime):
    argv = runtime.argv(job())
    assert argv[:2] == [runtime.name, "run"]
    for word in (
        "--rm",
        "--pull=never",
        "--network=none",
        "--read-only",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--user=1234:100",
        "--name=apexbench-run-measure",
    ):
        assert word in argv
    assert values(argv, "--mount") == [
        "type=bind,src=/srv/ann/my bench (1),dst=/srv/ann/my bench (1),readonly",
        "type=bind,src=/srv/ann/my bench (1)/results,dst=/srv/ann/my bench (1)/results",
        "type=bind,src=/srv/ann/my bench (1)/results/.cache,"
        "dst=/srv/ann/my bench (1)/results/.cache",
    ]
    image = argv.index("sha256:abc")
    assert argv[image - 1] == "--entrypoint=python3"
    assert argv[image + 1 :] == ["-P", "-m", "apexbench", "measure", "layer_norm", "; touch x"]
    assert runtime.removal(job())[-1] == "apexbench-run-measure"


@pytest.mark.parametrize(
    "runtime", [Docker(), Podman(lambda: ""), Apptainer()], ids=["docker", "podman", "apptainer"]
)
def test_no_gpu_unless_asked_and_no_secret_ever(runtime):
    argv, env = runtime.argv(job()), runtime.environment(job())
    assert not [w for w in argv if "nvidia" in w or w in ("--gpus", "--nv")]
    assert not [w for w in argv if "secret" in w]
    assert not [k for k, v in env.items() if k.startswith("APPTAINERENV_") and v == "secret"]


def test_docker_gets_several_gpus_as_one_quoted_field():
    argv = Docker().argv(job(gpus=(A, B)))
    assert argv[argv.index("--gpus") + 1] == f'"device={A},{B}"'
    assert f"CUDA_VISIBLE_DEVICES={A},{B}" in values(argv, "--env")


def test_podman_maps_the_users_ids_unless_root():
    assert "--userns=keep-id" in Podman(lambda: "").argv(job())
    assert "--userns=keep-id" not in Podman(lambda: "").argv(job(uid=0, gid=0))


def test_podman_takes_the_gpu_by_uuid_where_cdi_knows_it():
    assert values(Podman(lambda: f"name: {A}").argv(job(gpus=(A,))), "--device") == [
        f"nvidia.com/gpu={A}"
    ]
    argv = Podman(lambda: 'name: "0"').argv(job(gpus=(A,)))
    assert values(argv, "--device") == ["nvidia.com/gpu=all"]
    assert f"CUDA_VISIBLE_DEVICES={A}" in values(argv, "--env")


def test_apptainer_passes_values_with_commas_and_hides_the_host():
    asked = job(image="/images/a b.sif", gpus=(A, B))
    argv, env = Apptainer(extra=["--unsquash"]).argv(asked), Apptainer().environment(asked)
    assert argv[:2] == ["apptainer", "exec"]
    assert {"--cleanenv", "--containall", "--nv", "--network=none", "--unsquash"} <= set(argv)
    assert "--no-privs" not in argv
    assert values(argv, "--mount")[0].endswith(",ro")
    assert env["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert env["APPTAINERENV_PYTHONNOUSERSITE"] == "1"
    assert env["PATH"] == "/bin"
    assert "APPTAINERENV_HOME" not in env
    image = argv.index("/images/a b.sif")
    assert argv[image + 1 : image + 6] == [
        "env",
        "HOME=/srv/ann/my bench (1)/results/.cache/apptainer/home",
        "python3",
        "-P",
        "-m",
    ]


@pytest.mark.parametrize(
    "runtime", [Docker(), Podman(lambda: ""), Apptainer()], ids=["docker", "podman", "apptainer"]
)
def test_further_paths_are_read_only_and_the_folder_is_the_callers(runtime):
    inside, outside = Path("/srv/ann/my bench (1)/docs/text"), Path("/data/a b.txt")
    asked = job(reads=(inside, outside), folder=Path("/srv/ann/my bench (1)/results/.."))
    argv = runtime.argv(asked)
    mounts = values(argv, "--mount")
    [mount] = [mount for mount in mounts if "/data" in mount]
    assert mount.startswith(
        "type=bind,src=/data/a b.txt,dst=/data/a b.txt,ro"
        if runtime.name == "apptainer"
        else "type=bind,src=/data/a b.txt,dst=/data/a b.txt,readonly"
    )
    assert not [mount for mount in mounts if "docs/text" in mount]
    option = "--pwd" if runtime.name == "apptainer" else "--workdir"
    assert values(argv, option) == [str(asked.folder)]
    assert values(runtime.argv(job()), option) == [str(job().repository)]


@pytest.mark.parametrize("runtime", [Docker(), Apptainer()], ids=["docker", "apptainer"])
def test_a_comma_in_the_path_stays_one_mount_field(runtime):
    argv = runtime.argv(job(repository=Path('/a,"b"')))
    assert values(argv, "--mount")[0].startswith('type=bind,"src=/a,""b""","dst=/a,""b"""')


def test_native_ignores_hostile_python_variables(tmp_path):
    host = {"PYTHONPATH": "/evil", "PYTHONSTARTUP": "/evil.py", "HOME": "/nowhere", "HF_TOKEN": "t"}
    env = Native().environment(job(environment=host, scratch=tmp_path))
    assert env["PYTHONPATH"] == "/srv/ann/my bench (1)/workflow"
    assert "PYTHONSTARTUP" not in env
    assert env["HOME"] == str(tmp_path / "native" / "home")
    assert env["HF_TOKEN"] == "t"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert Native().argv(job())[:4] == [sys.executable, "-P", "-m", "apexbench"]


def test_the_callers_choice_of_gpus_stands_when_the_driver_cannot_be_asked():
    env = Native().environment(job(all_gpus=True, environment={"CUDA_VISIBLE_DEVICES": "1"}))
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in Native().environment(job(all_gpus=True))


def test_what_enters_a_container():
    host = {
        "NCCL_DEBUG": "INFO",
        "SLURM_JOB_ID": "7",
        "APEXBENCH_RUN_ID": "r",
        "APEXBENCH_OWNER_PID": "12",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_VISIBLE_DEVICES": "0",
        "AWS_SECRET_ACCESS_KEY": "x",
        "https_proxy": "http://proxy.example:3128",
        "LD_PRELOAD": "/evil.so",
    }
    assert set(passed_on(host)) == {"NCCL_DEBUG", "SLURM_JOB_ID", "APEXBENCH_RUN_ID"}


def test_container_names_are_taken_by_every_engine():
    assert container_name("a b/ü", "measure;rm") == "apexbench-a-b--measure-rm"
    assert len(container_name("r" * 300, "j")) == 120


def nothing_works(name):
    return ("not installed", f"install {name}")


def everything_works(name):
    return None


@pytest.mark.parametrize(
    ("runtime", "image", "works", "name", "why"),
    [
        ("auto", None, nothing_works, "native", "no image is configured"),
        ("auto", "img", everything_works, "docker", "it works here"),
        (
            "auto",
            "img",
            lambda n: nothing_works(n) if n == "docker" else None,
            "podman",
            "it works here",
        ),
        ("auto", "x.sif", everything_works, "apptainer", "it works here"),
        ("native", "img", nothing_works, "native", "the image img is not used"),
        ("podman", "img", everything_works, "podman", "podman, as --runtime says"),
    ],
)
def test_choose(runtime, image, works, name, why):
    chosen, reason = choose(runtime, image, works)
    assert chosen.name == name
    assert why in reason


@pytest.mark.parametrize(
    ("runtime", "image", "sentence"),
    [
        ("auto", "img", r"docker: not installed \(remedy: install docker\); podman: .*native"),
        ("podman", "img", r"runtime: podman does not work here: not installed"),
        ("docker", None, r"runtime: docker needs an image"),
        ("docker", "x.sif", r"cannot run x.sif"),
        ("apptainer", "img", r"cannot run img"),
        ("dokcer", "img", r"'dokcer' is unknown; choose auto, docker"),
    ],
)
def test_choose_refuses_with_a_remedy(runtime, image, sentence):
    with pytest.raises(UserError, match=sentence):
        choose(runtime, image, nothing_works)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("permission denied while trying to connect to the Docker daemon socket", "docker group"),
        ("Cannot connect to the Docker daemon. Is the docker daemon running?", "start it"),
        ("Error: No such image: sha256:abc", "build it again"),
        ("boom\nlast words\n", "last words"),
        ("", "no output"),
    ],
)
def test_an_image_that_cannot_be_shown(output, sentence):
    assert sentence in str(image_problem("sha256:abc", "docker", output))


def test_podman_has_no_group_to_join():
    said = "Error: mkdir /srv/ann/.local: permission denied"
    assert "group" not in str(image_problem("sha256:abc", "podman", said))


# ---- for real, natively: a repository whose apexbench says what it sees ----

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
    assert [word for word in values(given["argv"], "--mount") if str(corpus) in word]
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
