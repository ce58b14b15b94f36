"""How each engine is called, word for word, and which one is chosen."""

import sys
from pathlib import Path

import pytest

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
