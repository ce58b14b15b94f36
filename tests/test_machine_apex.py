"""Which Apex is installed: absent, foreign, Python-only, half gone, compiled."""

from __future__ import annotations

import json

import pytest

from apex_site import COMMIT, OTHER_TORCH_MODULE, SUFFIX, site
from apexbench.machine import apex_verdict

__all__ = ["site"]


CRASHING_MODULE = """
#include <Python.h>
#include <stdlib.h>
PyMODINIT_FUNC PyInit_%(name)s(void) { abort(); }
"""


def test_absent(site):
    status = site.status()
    assert (status.state, status.sentence) == ("absent", "Apex is not installed.")
    reason, remedy = status.missing("amp_C")
    assert reason == "Apex is not installed"
    assert f"git+https://github.com/NVIDIA/apex@{COMMIT}" in remedy
    assert "APEX_CUDA_EXT=1" in remedy
    assert "TORCH_CUDA_ARCH_LIST=9.0" in remedy


def test_a_folder_of_the_users_named_apex_is_not_apex(site):
    site.write("apex/readme.txt")
    assert site.status().state == "absent"


@pytest.mark.parametrize("with_metadata", [True, False])
def test_foreign_by_its_metadata_and_by_its_contents(site, with_metadata):
    site.write("apex/__init__.py", "raise ImportError('No module named velruse')")
    site.write("apex/models.py")
    if with_metadata:
        site.metadata(summary="Pyramid toolkit to add Velruse, Flash Messages, CSRF and Sessions")
    status = site.status()
    assert status.state == "foreign"
    assert "Pyramid" in status.sentence
    assert "pip uninstall -y apex && " in status.remedy
    assert "Pyramid" in status.missing("amp_C")[0]


def test_python_only(site):
    site.python_apex()
    site.metadata({"url": "…", "vcs_info": {"vcs": "git", "commit_id": COMMIT}})
    status = site.status()
    assert status.state == "python_only"
    assert status.sentence == (
        "Apex 6424da3 was built Python-only: FusedAdam and the norms have no kernels."
    )
    assert (status.commit, status.commit_source) == (COMMIT, "pip (direct_url.json)")
    assert status.missing("amp_C")[0] == "Apex 6424da3 was built Python-only: no amp_C"
    assert "--no-cache-dir" in status.missing("amp_C")[1]
    assert status.missing("apex.normalization") is None
    assert status.missing("apex.amp")[0] == "removed from Apex in 2025"
    assert status.errors == {}


def test_legacy_apex_has_amp(site):
    site.python_apex("amp")
    assert site.status().has_amp
    assert site.status().missing("apex.amp") is None
    assert site.status(probe=False).has_amp


def test_compiled_with_and_without_a_contrib_module(site):
    site.python_apex()
    site.compile("amp_C")
    site.compile("fused_layer_norm_cuda")
    site.metadata()
    status = site.status()
    assert status.state == "compiled"
    assert status.remedy is None
    assert status.missing("amp_C") is None
    assert status.missing("fused_layer_norm_cuda") is None
    assert status.modules["amp_C"]
    reason, remedy = status.missing("xentropy_cuda")
    assert reason == "Apex (unknown commit) was built without xentropy_cuda"
    assert "APEX_XENTROPY=1" in remedy
    assert any("cuobjdump" in note for note in status.notes)
    json.dumps(status.to_dict())


def test_built_for_another_torch(site):
    site.python_apex()
    site.compile("amp_C", OTHER_TORCH_MODULE)
    site.compile("fused_layer_norm_cuda")
    status = site.status()
    assert status.state == "wrong_torch"
    assert "another torch than torch 2.11.0+cu130" in status.sentence
    assert "undefined symbol" in status.errors["amp_C"]
    assert str(site.folder) not in status.sentence
    assert status.missing("amp_C")[0] == "amp_C was built for another torch"
    # The file is there: only importing it tells.
    assert site.status(probe=False).state == "compiled"


def test_built_for_another_cuda():
    error = "ImportError: libcudart.so.12: cannot open shared object file: No such file"
    assert apex_verdict.OTHER_TORCH.search(error)
    assert not apex_verdict.OTHER_TORCH.search(
        "ImportError: libnccl.so.2: cannot open shared object"
    )


def test_a_module_that_ends_the_process_is_named_and_the_others_still_tried(site):
    site.python_apex()
    site.compile("amp_C", CRASHING_MODULE)
    site.compile("fused_layer_norm_cuda")
    status = site.status()
    assert status.state == "broken"
    assert "SIGABRT" in status.errors["amp_C"]
    assert status.modules["fused_layer_norm_cuda"]


def test_a_file_that_is_no_library(site):
    site.python_apex()
    site.write(f"amp_C{SUFFIX}", "not a library")
    status = site.status()
    assert status.state == "broken"
    assert "amp_C" in status.sentence
    assert set(status.errors) == {"amp_C"}


def test_half_uninstalled_package_without_init(site):
    site.write("apex/normalization/__pycache__/x.pyc")
    amp_c = site.write(f"amp_C{SUFFIX}")
    status = site.status()
    assert status.state == "broken"
    assert "half-uninstalled" in status.sentence
    assert f"rm -rf {site.folder / 'apex'} {amp_c}" in status.remedy


def test_half_uninstalled_only_metadata_left(site):
    site.write("apex-0.1.dist-info/METADATA", "Name: apex\nVersion: 0.1\n")
    assert site.status().sentence == (
        "Apex (unknown commit) is broken: half-uninstalled, what is left is only pip's metadata."
    )


def test_half_uninstalled_library_gone(site):
    site.python_apex()
    gone = site.write(f"amp_C{SUFFIX}")
    site.metadata()
    gone.unlink()
    status = site.status()
    assert status.state == "broken"
    assert f"amp_C{SUFFIX} is gone" in status.sentence


def test_stale_library_of_another_build(site):
    site.python_apex()
    site.metadata()
    stale = site.compile("amp_C")
    status = site.status()
    assert status.state == "broken"
    assert "amp_C is a stale file" in status.sentence
    assert status.remedy.startswith(f"rm {stale} && ")


def test_import_error_inside_apex(site):
    site.python_apex()
    site.write("apex/normalization/__init__.py", "import packaging_that_is_not_there")
    status = site.status()
    assert status.state == "broken"
    assert "packaging_that_is_not_there" in status.sentence


def test_torch_that_cannot_be_imported(site):
    site.python_apex()
    site.write("torch/__init__.py", "raise OSError('libgomp.so.1 is missing')")
    status = site.status()
    assert status.state == "broken"
    assert "torch cannot be imported (OSError: libgomp.so.1 is missing)" in status.sentence
