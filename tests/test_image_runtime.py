"""Which runtime a run uses, and what is pinned in config.yaml."""

from __future__ import annotations

import json

import pytest

from apexbench import config as configs
from apexbench.errors import UserError
from apexbench.image import pin
from apexbench.image.planned import ImagePlan, decision
from apexbench.image.recipe import Base
from apexbench.machine.apex_source import LEGACY_COMMIT
from apexbench.machine.legacy import legacy_apex
from apexbench.runtimes.decide import Decision, decide
from conftest import ROOT
from image_recipe import DIGEST, OTHER, SETTINGS


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
