"""Each wrong Apex, as real files, is named by doctor, by the machine rule and in the report."""

from __future__ import annotations

import html
import json
import re
import sys

import pytest

import record_factory as factory
import test_doctor
from apex_site import COMMIT, H200, OTHER_TORCH_MODULE, SUFFIX, Site
from apexbench.machine import apex, cubin, describe, install
from apexbench.report.render import report


def pyramid(site):
    site.write("apex/__init__.py", "raise ImportError('No module named velruse')")
    site.metadata(summary="Pyramid toolkit to add Velruse, Flash Messages, CSRF and Sessions")


def python_only(site):
    site.python_apex()
    site.metadata({"url": "…", "vcs_info": {"vcs": "git", "commit_id": COMMIT}})


def another_arch(site):
    site.python_apex()
    site.compile("amp_C")
    site.compile("fused_layer_norm_cuda")
    site.write("apex-build.json", json.dumps({"commit": COMMIT, "architectures": ["sm_80"]}))


def another_torch(site):
    site.python_apex()
    site.compile("amp_C", OTHER_TORCH_MODULE)
    site.compile("fused_layer_norm_cuda")


def half_uninstalled(site):
    site.write("apex/normalization/__pycache__/x.pyc")
    site.write(f"amp_C{SUFFIX}")


def absent(site):
    pass


@pytest.mark.parametrize(
    ("make", "state", "words"),
    [
        (absent, "absent", "Apex is not installed."),
        (pyramid, "foreign", "PyPI's Pyramid toolkit, not NVIDIA Apex"),
        (python_only, "python_only", "Apex 6424da3 was built Python-only: FusedAdam and the norms"),
        (another_arch, "wrong_architecture", "was compiled for sm_80; this GPU needs sm_90."),
        (another_torch, "wrong_torch", "was built for another torch than torch 2.11.0+cu130"),
        (half_uninstalled, "broken", "is broken: half-uninstalled, what is left is"),
    ],
    ids=("absent", "foreign", "python_only", "wrong_architecture", "wrong_torch", "broken"),
)
def test_a_wrong_apex_is_named_everywhere(make, state, words, tmp_path, monkeypatch):
    build = install.TorchBuild("2.11.0+cu130", "13.0", "0" * 40, tmp_path / "torch")
    monkeypatch.setattr(apex, "visible_gpus", lambda: [H200])
    monkeypatch.setattr(apex, "torch_build", lambda: build)
    monkeypatch.setattr(cubin, "cuobjdump", lambda: None)
    site = Site(tmp_path / "site")
    make(site)
    status = site.status()
    assert status.state == state
    assert words in status.sentence
    assert status.remedy

    test_doctor.set_up(monkeypatch, [H200], test_doctor.CUDA_BUILD, status)
    code, told = test_doctor.output(tmp_path, 400)
    assert code == 0
    assert words in " ".join(told.split())
    assert status.remedy in test_doctor.output(tmp_path, 80)[1].splitlines()

    monkeypatch.setattr(describe, "apex_status", lambda: status)
    monkeypatch.setitem(sys.modules, "torch", None)
    described = json.loads(json.dumps(describe.describe()))
    assert described["apex"]["state"] == state
    assert words in described["apex"]["sentence"]
    assert described["apex"]["remedy"] == status.remedy

    record = factory.optimizer()[0]
    record.provenance["apex"] = described["apex"]
    arm = next(cell for cell in record.cells if cell.package == "apex")
    arm.status, arm.quantities, arm.parity = "unavailable", {}, None
    arm.reason, arm.remedy = status.missing("amp_C")
    record.comparisons = [c for c in record.comparisons if c.implementation != arm.implementation]
    report(factory.write_run(tmp_path / "run", [record]), tmp_path / "out")
    page = re.sub(r"\s+", " ", html.unescape((tmp_path / "out/report.html").read_text()))
    assert words in page
    assert arm.reason in page
