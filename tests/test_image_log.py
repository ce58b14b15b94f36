"""What is left of a build: a sentence from its log, the record, the bill of materials."""

from __future__ import annotations

import os

import pytest

from apexbench import config as configs
from apexbench.errors import UserError
from apexbench.image import log as logs
from apexbench.image import record, sbom, sif
from apexbench.image.planned import ImagePlan
from apexbench.machine.apex_source import COMMIT, REPOSITORY
from apexbench.runtimes.decide import Decision
from conftest import ROOT
from image_recipe import DIGEST


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
        ("failed to read from slirp4netns sync pipe: EOF", 'netns = "host"'),
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
    os.mkfifo(file)
    loaded = configs.load(ROOT, {"image": {"sif": str(file)}})
    with pytest.raises(UserError, match=r"image\.sif: .* is not there, or no file: correct"):
        ImagePlan(loaded, Decision("apptainer", ""), ROOT).check_recipe()
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
