"""What an image is built from, without an engine: recipe, key, command, digest, log, bill."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import yaml

from apexbench import config as configs
from apexbench.errors import UserError
from apexbench.image import log as logs
from apexbench.image import native, pin, record, sbom, sif
from apexbench.image.contrib import CONTRIB, CORE, modules, switches
from apexbench.image.engine import Builder
from apexbench.image.planned import ImagePlan, decision
from apexbench.image.recipe import Base, Recipe, qualified, untagged
from apexbench.machine.apex_source import COMMIT, EXTENSIONS, LEGACY_COMMIT, REPOSITORY
from apexbench.machine.legacy import legacy_apex
from apexbench.runtimes.decide import Decision, decide
from conftest import ROOT

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
SETTINGS = yaml.safe_load((ROOT / "config.yaml").read_text())["image"]


def recipe(**changes):
    return Recipe.from_settings({**SETTINGS, **changes}, ["9.0"])


def seen(made):
    return dict.fromkeys(made.bases, DIGEST)


# ---- config.yaml ----


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


# ---- the recipe ----


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


# ---- the engine's command ----


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


# ---- the digest in config.yaml ----


def test_pinning_changes_two_lines_of_the_real_config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text((ROOT / "config.yaml").read_text())
    bases = {
        "base": Base(SETTINGS["base"], DIGEST),
        "runtime_base": Base(SETTINGS["runtime_base"], OTHER),
    }
    assert pin.write(path, bases) == [f"image.digest: {DIGEST}", f"image.runtime_digest: {OTHER}"]
    old, new = (ROOT / "config.yaml").read_text().splitlines(), path.read_text().splitlines()
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    assert len(changed) == 2
    assert changed[0][1].endswith("# written by `apexbench image pin`")
    assert configs.load(tmp_path).image["digest"] == DIGEST
    assert pin.write(path, bases) == []


def test_a_base_from_the_command_line_is_not_pinned_in_the_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("image:\n  base: a/b:1\n  digest: null\n")
    assert pin.write(path, {"base": Base("c/d:1", DIGEST)}) == []
    assert "null" in path.read_text()


def test_a_config_without_the_line_says_what_to_add(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("image: {base: 'a/b:1'}\n")
    with pytest.raises(UserError, match=r"no line image\.digest.*add `digest: null`"):
        pin.write(path, {"base": Base("a/b:1", DIGEST)})


# ---- which runtime ----


def works(name):
    return None


def broken(name):
    return "not installed", f"install {name}"


@pytest.mark.parametrize(
    ("runtime", "gpu", "given", "apex", "problem", "inside", "name", "why"),
    [
        ("auto", False, None, False, works, works, "native", "without a GPU"),
        ("auto", True, None, True, works, works, "native", "a compiled Apex is installed"),
        ("auto", True, None, False, works, works, "docker", "brings a compiled Apex"),
        ("auto", True, None, False, broken, works, "native", "podman: not installed"),
        ("auto", True, None, False, works, broken, "native", "docker: not installed"),
        ("auto", False, "x.sif", False, works, works, "apptainer", "image.sif"),
        ("native", True, "x.sif", False, works, works, "native", "runtime: native was asked"),
        ("podman", False, None, False, works, broken, "podman", "runtime: podman was asked"),
    ],
)
def test_the_runtime_is_chosen_with_its_reason(
    runtime, gpu, given, apex, problem, inside, name, why
):
    found = decide(runtime, gpu, given, lambda: apex, problem, inside)
    assert found.name == name
    assert why in found.why
    assert found.contained == (name != "native")


@pytest.mark.parametrize(
    ("runtime", "given", "sentence"),
    [
        ("docker", None, "docker does not work here: not installed"),
        ("podman", "x.sif", r"cannot run image\.sif"),
        ("auto", "x.sif", r"image\.sif needs apptainer"),
        ("dokcer", None, "is unknown; choose auto"),
    ],
)
def test_a_runtime_that_cannot_be_had_is_refused(runtime, given, sentence):
    with pytest.raises(UserError, match=sentence):
        decide(runtime, True, given, lambda: False, broken, works)


def test_this_machine_without_a_gpu_needs_no_image(monkeypatch):
    monkeypatch.setattr("apexbench.image.planned.visible_gpus", list)
    assert decision(ROOT, {}) == Decision("native", decision(ROOT, {}).why)
    plan = ImagePlan(configs.load(ROOT), decision(ROOT, {}), ROOT)
    assert (plan.contained, plan.record, plan.recipe) == (False, [], None)
    plan.check()


def test_on_a_cluster_the_login_nodes_engines_and_gpus_do_not_count(monkeypatch):
    def asked(*_):
        pytest.fail("the login node was asked")

    monkeypatch.setattr("apexbench.image.planned.compiled_apex", asked)
    monkeypatch.setattr("apexbench.runtimes.decide.engine_problem", asked)
    slurm = {"cluster": "slurm", "device": "cuda"}
    assert decision(ROOT, slurm).name == "native"
    assert decision(ROOT, {**slurm, "runtime": "apptainer"}).name == "apptainer"
    assert decision(ROOT, {**slurm, "image": {"sif": "x.sif"}}).name == "apptainer"


def test_a_pinned_digest_is_no_change_of_the_rules_param(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def plan(**image):
        loaded = configs.load(ROOT, {"image": {"architectures": ["9.0"], **image}})
        return ImagePlan(loaded, Decision("docker", ""), ROOT)

    first = plan().arguments()
    made = {"bases": {"base": {"name": SETTINGS["base"], "digest": DIGEST}}}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/image.json").write_text(json.dumps(made))
    pinned = plan(digest=DIGEST)
    assert pinned.arguments() == first
    assert pinned.pins() == f"--pin base={DIGEST}"
    assert plan(digest=OTHER).arguments() != first
    assert plan(apex_commit="0" * 40).arguments() != first
    assert plan(sif="a b.sif").arguments() == "--sif 'a b.sif'"


def test_the_legacy_apex_is_told_apart_by_its_modules(tmp_path):
    assert legacy_apex(tmp_path) is None
    for part in ("amp", "optimizers"):
        (tmp_path / "apex" / part).mkdir(parents=True)
    (tmp_path / "apex/__init__.py").touch()
    (tmp_path / "apex-build.json").write_text(json.dumps({"commit": LEGACY_COMMIT}))
    found = legacy_apex(tmp_path)
    assert found is not None
    assert (found["commit"], found["compiled"]) == (LEGACY_COMMIT, False)
    (tmp_path / "amp_C.so").touch()
    assert legacy_apex(tmp_path)["compiled"]


# ---- the log, the record, the bill ----


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("write /x: no space left on device", "the disk is full"),
        ("apexbench: nvcc is 12.8: use another.", "nvcc is 12.8: use another."),
        ("#9 4.2 apexbench: nvcc is 12.8: use another.", "nvcc is 12.8: use another."),
        ("c++: fatal error: Killed signal terminated program cc1plus", "want of memory"),
        ("manifest for pytorch/pytorch:9 not found: manifest unknown", "does not exist"),
        ("fatal: unable to access: Could not resolve host: github.com", "the network"),
        ("ERROR: BuildKit is enabled but the buildx component is missing", "no BuildKit"),
        ('short-name "x/y" did not resolve to an alias', "which registry"),
        (
            "Got permission denied while trying to connect to the Docker daemon",
            "usermod -aG docker",
        ),
        ("Cannot connect to the Docker daemon at unix:///x", "systemctl start docker"),
        ("something else", "its last lines stand above."),
    ],
)
def test_what_a_failed_build_said_becomes_a_sentence(line, words):
    assert words in logs.explain(["#1 begin", line, "exit status 1"])


def test_a_failed_command_shows_its_end_and_keeps_all_of_it(tmp_path, capfd):
    program = "for i in $(seq 100); do echo line $i; done; echo no space left on device; exit 3"
    log = tmp_path / "a b" / "build.log"
    with pytest.raises(UserError, match=r"building failed with exit status 3: the disk is full"):
        logs.run(["sh", "-c", program], log, "building")
    shown = capfd.readouterr().err
    assert "line 100" in shown
    assert "line 80\n" not in shown
    assert "line 1\n" in log.read_text()
    with pytest.raises(UserError, match="cannot be started"):
        logs.run(["/nowhere/docker"], log, "building")


def test_a_sif_that_changed_or_went_is_refused(tmp_path):
    file, out = tmp_path / "x.sif", tmp_path / "image.json"
    file.write_bytes(b"one")
    made = sif.given(str(file), out)
    assert record.read(out) == made
    assert made["id"].startswith("sha256:")
    file.write_bytes(b"other")
    with pytest.raises(UserError, match="has changed since"):
        record.read(out)
    file.unlink()
    with pytest.raises(UserError, match="is not there any more"):
        record.read(out)
    with pytest.raises(UserError, match=r"image\.sif: .* is not there"):
        sif.given(str(file), out)
    with pytest.raises(UserError, match="run `apexbench image build`"):
        record.read(tmp_path / "none.json")
    out.write_text("{}")
    with pytest.raises(UserError, match="is no image record"):
        record.read(out)


def test_the_bill_names_apex_by_its_commit():
    packages = {
        "python": [
            ["apex", "0.1", None, {"url": REPOSITORY, "vcs_info": {"commit_id": COMMIT}}],
            ["typing_extensions", "4.16.0", "PSF-2.0", None],
        ],
        "system": [["libc6", "2.36-9+deb12u10", "amd64"]],
        "release": ["debian", "12"],
    }
    image = {"id": DIGEST, "reference": "localhost/apexbench:1", "labels": {"a": "b"}}
    bill = sbom.document(packages, image)
    assert bill == sbom.document(packages, image)
    apex, typing, libc = bill["components"]
    assert apex["version"] == COMMIT
    assert COMMIT in apex["purl"]
    assert typing["purl"] == "pkg:pypi/typing-extensions@4.16.0"
    assert libc["purl"].startswith("pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64")
