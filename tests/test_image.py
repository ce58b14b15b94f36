"""What an image is made of: config.yaml, the recipe and its key, the engine's command."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from apexbench.errors import UserError
from apexbench.image import native, sif
from apexbench.image.contrib import CONTRIB, CORE, modules, switches
from apexbench.image.engine import Builder
from apexbench.image.recipe import Base, Recipe, qualified, untagged
from apexbench.machine.apex_source import COMMIT, EXTENSIONS, LEGACY_COMMIT, REPOSITORY
from conftest import ROOT
from image_recipe import DIGEST, OTHER, SETTINGS


def recipe(**changes):
    return Recipe.from_settings({**SETTINGS, **changes}, ["9.0"])


def seen(made):
    return dict.fromkeys(made.bases, DIGEST)


def test_config_yaml_says_once_what_the_package_says_in_remedies():
    assert SETTINGS["apex_repository"] == REPOSITORY
    assert SETTINGS["apex_commit"] == COMMIT
    assert SETTINGS["legacy_commit"] == LEGACY_COMMIT
    for name in ("Dockerfile", "legacy-amp.Dockerfile", "apptainer.def"):
        text = (ROOT / "docker" / name).read_text()
        for address in ("github.com", "pytorch/pytorch", COMMIT, LEGACY_COMMIT):
            assert address not in text, name
    for name in ("Dockerfile", "legacy-amp.Dockerfile"):
        assert "# syntax=" not in (ROOT / "docker" / name).read_text()


def test_no_digest_is_typed_by_hand():
    assert SETTINGS["digest"] is None
    assert SETTINGS["runtime_digest"] is None


def test_the_schema_knows_every_contrib_extension():
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    known = schema["properties"]["image"]["properties"]["contrib"]["items"]["enum"]
    assert known == list(CONTRIB)
    for switch, built in CONTRIB.values():
        assert {EXTENSIONS[module] for module in built} == {switch}
    assert switches(["xentropy"]) == {
        "APEX_CPP_EXT": "1",
        "APEX_CUDA_EXT": "1",
        "APEX_XENTROPY": "1",
    }
    assert modules(["xentropy", "group_norm"]) == ["xentropy_cuda", "group_norm_cuda"]


def test_contrib_is_what_a_component_uses():
    used = {
        module
        for path in (ROOT / "workflow/apexbench/components").glob("*.py")
        for module in re.findall(r'requirements\.apex\("(\w+)"\)', path.read_text())
        if EXTENSIONS.get(module) not in (None, *CORE)
    }
    assert used == set(modules(SETTINGS["contrib"]))


@pytest.mark.parametrize(
    ("changes", "target", "bases", "architectures"),
    [
        ({}, "runtime", ["base", "runtime_base"], ("9.0",)),
        ({"runtime_base": None}, "runtime", ["base"], ("9.0",)),
        ({"apex": False}, "measuring", ["base"], ()),
        ({"legacy_kernels": True}, "legacy", ["legacy_base"], ("9.0",)),
        (
            {"architectures": ["8.0", "10.0a"]},
            "runtime",
            ["base", "runtime_base"],
            ("8.0", "10.0a"),
        ),
    ],
)
def test_what_config_yaml_asks_for(changes, target, bases, architectures):
    made = recipe(**changes)
    assert (made.target, list(made.bases), made.architectures) == (target, bases, architectures)
    assert Recipe.parse(made.text()) == made
    assert made.dockerfile(ROOT).is_file()


def test_without_a_gpu_the_architecture_must_be_given():
    with pytest.raises(UserError, match=r"no GPU is visible.*set image\.architectures"):
        Recipe.from_settings(SETTINGS, [])
    assert Recipe.from_settings({**SETTINGS, "apex": False}, []).architectures == ()


def test_a_missing_base_is_named():
    with pytest.raises(UserError, match=r"image\.base is not set"):
        recipe(base=None)


@pytest.mark.parametrize(
    ("name", "full", "bare"),
    [
        ("pytorch/pytorch:2.11.0", "docker.io/pytorch/pytorch:2.11.0", "docker.io/pytorch/pytorch"),
        ("debian", "docker.io/library/debian", "docker.io/library/debian"),
        ("localhost/base:latest", "localhost/base:latest", "localhost/base"),
        ("host:5000/a/b:1", "host:5000/a/b:1", "host:5000/a/b"),
        ("nvcr.io/nvidia/pytorch", "nvcr.io/nvidia/pytorch", "nvcr.io/nvidia/pytorch"),
    ],
)
def test_names_of_images(name, full, bare):
    assert qualified(name) == full
    assert untagged(full) == bare
    assert Base(name).reference == full
    # podman 4 takes no reference with both a tag and a digest.
    assert Base(name, DIGEST).reference == f"{bare}@{DIGEST}"


@pytest.mark.parametrize(
    "changes",
    [
        {"apex_commit": "0" * 40},
        {"legacy_commit": "0" * 40},
        {"architectures": ["8.0"]},
        {"contrib": ["xentropy"]},
        {"apex": False},
    ],
)
def test_the_key_changes_with_what_the_image_holds(changes):
    old, new = recipe(), recipe(**changes)
    assert old.key(ROOT, seen(old)) != new.key(ROOT, seen(new))


def test_the_key_changes_with_the_base_and_not_with_its_name():
    made = recipe()
    assert made.key(ROOT, seen(made)) != made.key(ROOT, {**seen(made), "base": OTHER})
    assert made.key(ROOT, seen(made)) == replace(made, base=Base("x/y")).key(ROOT, seen(made))


def test_the_key_ignores_comments_and_counts_instructions(tmp_path):
    (tmp_path / "docker").mkdir()
    for name in ("Dockerfile", "requirements.lock"):
        (tmp_path / "docker" / name).write_text((ROOT / "docker" / name).read_text())
    made = recipe()
    before = made.key(tmp_path, seen(made))
    path = tmp_path / "docker/Dockerfile"
    path.write_text("# another comment\n\n" + path.read_text())
    assert made.key(tmp_path, seen(made)) == before
    path.write_text(path.read_text() + "RUN true\n")
    assert made.key(tmp_path, seen(made)) != before


def test_without_apex_its_commit_does_not_matter():
    old, new = recipe(apex=False), recipe(apex=False, apex_commit="0" * 40)
    assert old.key(ROOT, seen(old)) == new.key(ROOT, seen(new))


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_build_command_word_for_word(engine):
    made = recipe(contrib=["xentropy", "fast_layer_norm"]).pinned({"base": DIGEST})
    labels = made.labels("key", {"torch": "2.11.0+cu130", "cuda": "13.0"})
    argv = Builder(engine).build_argv(
        made, ROOT, "localhost/apexbench:1", labels, {"MAX_JOBS": "2"}
    )
    assert argv[:2] == [engine, "build"]
    assert ("--progress=plain" in argv) == (engine == "docker")
    assert argv[argv.index("--target") + 1] == "runtime"
    assert argv[-1] == str(ROOT)
    given = [argv[i + 1] for i, word in enumerate(argv) if word == "--build-arg"]
    assert given == [
        f"BASE_IMAGE=docker.io/pytorch/pytorch@{DIGEST}",
        f"RUNTIME_IMAGE=docker.io/{SETTINGS['runtime_base']}",
        f"APEX_REPOSITORY={REPOSITORY}",
        f"APEX_COMMIT={COMMIT}",
        "APEX_CONTRIB=xentropy,fast_layer_norm",
        f"LEGACY_COMMIT={LEGACY_COMMIT}",
        "TORCH_CUDA_ARCH_LIST=9.0",
        "MAX_JOBS=2",
    ]
    shown = dict(argv[i + 1].split("=", 1) for i, word in enumerate(argv) if word == "--label")
    assert shown["apexbench.apex.commit"] == COMMIT
    assert shown["apexbench.torch"] == "2.11.0+cu130"
    assert shown["apexbench.cuda"] == "13.0"
    assert shown["apexbench.cuda.architectures"] == "9.0"
    assert shown["org.opencontainers.image.base.name"].endswith(SETTINGS["runtime_base"])


def test_every_argument_of_the_dockerfiles_is_given():
    for changes in ({}, {"legacy_kernels": True}):
        made = recipe(**changes)
        text = made.dockerfile(ROOT).read_text()
        declared = {
            line.split()[1].split("=")[0] for line in text.splitlines() if line.startswith("ARG ")
        }
        assert set(made.build_arguments()) == declared - {"MAX_JOBS", "APEX_PARALLEL_BUILD"}


def test_the_apptainer_definition_gets_every_argument():
    argv = sif.build_argv(recipe(runtime_base=None), ROOT, ROOT / "x.sif")
    given = {argv[i + 1].split("=")[0] for i, word in enumerate(argv) if word == "--build-arg"}
    text = (ROOT / "docker/apptainer.def").read_text()
    used = {part.split("}}")[0].strip() for part in text.split("{{")[1:]}
    assert used == given
    assert argv[:2] == ["apptainer", "build"]


def test_questions_to_an_image_get_no_network_and_no_rights():
    argv = Builder("podman").run_argv("img", ["-c", "1"], ROOT)
    assert {"--network=none", "--read-only", "--cap-drop=all", "--rm"} <= set(argv)
    assert argv[-4:] == ["img", "-P", "-c", "1"]
    assert f"--mount=type=bind,src={ROOT},dst=/package,readonly" in argv


@pytest.mark.parametrize(
    ("digests", "digest"),
    [
        ([f"pytorch/pytorch@{DIGEST}"], DIGEST),
        ([f"mirror.example/x@{OTHER}", f"docker.io/pytorch/pytorch@{DIGEST}"], DIGEST),
        ([f"mirror.example/x@{OTHER}"], None),
        (None, None),
    ],
)
def test_the_digest_is_the_registrys_own(digests, digest):
    base = Base("pytorch/pytorch:2.11.0")
    assert Builder("docker").digest(base, {"RepoDigests": digests}) == digest


def test_native_commands_have_the_images_flags():
    [(_, apex), (_, legacy)] = native.commands(recipe(contrib=["xentropy"]), legacy=True)
    assert apex[apex.index("--commit") + 1] == COMMIT
    assert apex[apex.index("--architectures") + 1] == "9.0"
    assert apex[apex.index("--contrib") + 1] == "xentropy"
    assert legacy[legacy.index("--commit") + 1] == LEGACY_COMMIT
    assert legacy[legacy.index("--folder") + 1].endswith("legacy-apex")
    assert len(native.commands(recipe(), legacy=False)) == 1


def test_apptainer_keeps_its_layers_out_of_the_home_folder(tmp_path, monkeypatch):
    seen = {}

    def built(argv, log, what, environment, **_):
        seen.update(environment)
        Path(argv[-2]).write_bytes(b"sif")

    monkeypatch.setattr(sif.logs, "run", built)
    monkeypatch.setattr(sif.preflight, "disk_problem", lambda *_: None)
    monkeypatch.delenv("APPTAINER_CACHEDIR", raising=False)
    sif.build(recipe(), ROOT, tmp_path / "image.json", tmp_path / "log")
    assert Path(seen["APPTAINER_CACHEDIR"]).is_relative_to(tmp_path)
    monkeypatch.setenv("APPTAINER_CACHEDIR", "/scratch/me")
    shutil.rmtree(tmp_path / ".cache")
    sif.build(recipe(), ROOT, tmp_path / "image.json", tmp_path / "log")
    assert seen["APPTAINER_CACHEDIR"] == "/scratch/me"
