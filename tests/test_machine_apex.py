"""Every kind of wrong Apex, as real files that the real child process really imports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from apexbench.machine import apex, apex_proof, cubin, import_probe, install
from apexbench.machine.gpu import Gpu

COMMIT = "6424da3b4faa6c8f062da4a48c424fff3f02d42d"
H200 = Gpu(0, "GPU-1", "NVIDIA H200", 141 * 1024**3, "9.0", "00:01.0")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
STANDARD_LIBRARY = [sysconfig.get_path("stdlib"), f"{sysconfig.get_path('stdlib')}/lib-dynload"]

GOOD_MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "%(name)s", 0, -1, 0};
PyMODINIT_FUNC PyInit_%(name)s(void) { return PyModule_Create(&definition); }
"""
OTHER_TORCH_MODULE = """
#include <Python.h>
void _ZN3c105ErrorC2ENS_14SourceLocationE(void);
PyMODINIT_FUNC PyInit_%(name)s(void) { _ZN3c105ErrorC2ENS_14SourceLocationE(); return 0; }
"""
CRASHING_MODULE = """
#include <Python.h>
#include <stdlib.h>
PyMODINIT_FUNC PyInit_%(name)s(void) { abort(); }
"""


class Site:
    """A folder like site-packages with a stand-in torch, filled by the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("torch/__init__.py", "__version__ = '2.11.0'")

    def write(self, name: str, text: str = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def python_apex(self, *more: str) -> None:
        self.write("apex/__init__.py", "import torch")
        for part in ("normalization", "optimizers", "multi_tensor_apply", *more):
            self.write(f"apex/{part}/__init__.py")

    def metadata(self, direct_url: dict | None = None, summary: str | None = None) -> None:
        summary = summary or "PyTorch Extensions written by NVIDIA"
        text = f"Metadata-Version: 2.1\nName: apex\nVersion: 0.1\nSummary: {summary}\n\nlong text"
        self.write("apex-0.1.dist-info/METADATA", text)
        if direct_url is not None:
            self.write("apex-0.1.dist-info/direct_url.json", json.dumps(direct_url))
        files = [str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()]
        owned = [f for f in files if not f.startswith("torch/")]
        self.write("apex-0.1.dist-info/RECORD", "".join(f"{name},,\n" for name in owned))

    def compile(self, name: str, source: str = GOOD_MODULE) -> Path:
        compiler = shutil.which("gcc")
        include = sysconfig.get_path("include")
        if compiler is None or not (Path(include) / "Python.h").is_file():
            if os.environ.get("APEXBENCH_CI") == "1":
                pytest.fail("missing in CI: gcc and Python's headers", pytrace=False)
            pytest.skip("needs gcc and Python's headers to make an extension module")
        path = self.folder / f"{name}{SUFFIX}"
        code = self.folder / f"{name}.c"
        code.write_text(source % {"name": name})
        command = [compiler, "-shared", "-fPIC", f"-I{include}", "-o", path, code]
        subprocess.run(command, check=True)
        code.unlink()
        return path

    def status(self, probe: bool = True) -> apex.ApexStatus:
        apex._status.cache_clear()
        return apex.apex_status(probe, [str(self.folder), *STANDARD_LIBRARY])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site folder on a machine with one H200 and a CUDA build of torch."""
    build = install.TorchBuild("2.11.0+cu130", "13.0", "0" * 40, tmp_path / "torch")
    monkeypatch.setattr(apex, "visible_gpus", lambda: [H200])
    monkeypatch.setattr(apex, "torch_build", lambda: build)
    monkeypatch.setattr(cubin, "cuobjdump", lambda: None)
    return Site(tmp_path)


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
    assert apex._OTHER_TORCH.search(error)
    assert not apex._OTHER_TORCH.search("ImportError: libnccl.so.2: cannot open shared object")


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


def test_wrong_architecture(site, monkeypatch):
    site.python_apex()
    site.compile("amp_C")
    site.compile("fused_layer_norm_cuda")
    monkeypatch.setattr(cubin, "architectures", lambda path: ["sm_80"])
    status = site.status()
    assert status.state == "wrong_architecture"
    assert status.sentence.endswith("was compiled for sm_80; this GPU needs sm_90.")
    assert status.architectures == ["sm_80"]
    assert status.missing("amp_C")[0] == "amp_C has no code for this GPU (sm_90)"


def test_the_builds_own_note_stands_in_for_cuobjdump(site):
    site.python_apex()
    site.compile("amp_C")
    site.write("apex-build.json", json.dumps({"commit": COMMIT, "architectures": ["sm_75"]}))
    status = site.status()
    assert (status.commit, status.commit_source) == (COMMIT, "apex-build.json")
    assert status.state == "wrong_architecture"


def test_commit_of_a_local_checkout(site, tmp_path):
    checkout = tmp_path / "my apex (1)"
    (checkout / ".git" / "refs" / "heads").mkdir(parents=True)
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/master\n")
    (checkout / ".git" / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/master\n")
    site.python_apex()
    site.metadata({"url": checkout.as_uri(), "dir_info": {}})
    status = site.status()
    assert status.commit == COMMIT
    assert "as it is now" in status.commit_source


@pytest.mark.parametrize("text", ["{", "[]", '{"commit": "$(touch x)"}', '{"commit": 7}'])
def test_a_damaged_build_file_is_no_commit(site, text):
    site.python_apex()
    site.write("apex-build.json", text)
    assert site.status().commit is None


@pytest.mark.parametrize("module", ["amp_C", "fused_layer_norm_cuda", "apex.amp", "xentropy_cuda"])
def test_without_a_gpu_every_arm_has_the_same_reason(site, monkeypatch, module):
    monkeypatch.setattr(apex, "visible_gpus", list)
    assert site.status().missing(module)[0] == "needs an NVIDIA GPU"
    site.python_apex()
    assert site.status().missing(module)[0] == "needs an NVIDIA GPU"


def test_a_cpu_build_of_torch_beside_a_gpu(site, monkeypatch):
    build = install.TorchBuild("2.13.0+cpu", None, None, site.folder)
    monkeypatch.setattr(apex, "torch_build", lambda: build)
    reason, remedy = site.status().missing("amp_C")
    assert reason == "needs a CUDA build of torch"
    assert "torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130" in remedy


def test_the_probe_gives_up_in_time(site):
    site.write("torch/__init__.py", "import time; time.sleep(60)")
    path = [str(site.folder), *STANDARD_LIBRARY]
    results = import_probe.probe(["torch", "apex"], path, time_limit=1)
    assert results["torch"].error == "no answer within 1 s"
    assert not results["apex"].ok


def test_output_of_a_module_does_not_disturb_the_answers(site):
    answer = json.dumps({"end": "nonsense", "ok": True, "absent": False, "error": None})
    site.write("torch/__init__.py", f"print({answer!r}, flush=True)")
    path = [str(site.folder), *STANDARD_LIBRARY]
    results = import_probe.probe(["torch", "apex"], path)
    assert results["torch"].ok
    assert set(results) == {"torch", "apex"}


LISTING = """
ELF file    1: amp_C.1.sm_90.cubin
ELF file    2: amp_C.2.sm_90a.cubin
PTX file    1: amp_C.1.sm_80.ptx
ELF file    3: amp_C.3.sm_120.cubin
"""


def test_cuobjdumps_listing():
    assert cubin.parse(LISTING) == ["compute_80", "sm_120", "sm_90", "sm_90a"]


@pytest.mark.parametrize(
    ("embedded", "capability", "expected"),
    [
        (["sm_90"], "9.0", True),
        (["sm_80"], "9.0", False),
        (["sm_80"], "8.6", True),
        (["sm_86"], "8.0", False),
        (["compute_80"], "9.0", True),
        (["compute_90"], "8.0", False),
        (["sm_90a"], "9.0", True),
        (["sm_100a"], "10.3", False),
        (["compute_90a"], "10.0", False),
        (["sm_100f"], "10.3", True),
        (["sm_120"], "12.0", True),
        (["nonsense"], "9.0", False),
        ([], "9.0", False),
    ],
)
def test_which_code_runs_where(embedded, capability, expected):
    assert cubin.runs_on(embedded, capability) is expected


def test_a_failed_proof_outranks_a_clean_import(site, monkeypatch):
    status = apex.ApexStatus(state="compiled", sentence="…", commit=COMMIT, capability="9.0")
    good = {"ok": True, "error": None}
    assert apex_proof.after_proof(status, {"a": good}) is status
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    judged = apex_proof.after_proof(status, {"a": good, "b": {"ok": False, "error": error}})
    assert judged.state == "wrong_architecture"
    assert "no kernel image" in judged.sentence
    assert "TORCH_CUDA_ARCH_LIST=9.0" in judged.remedy
    other = apex_proof.after_proof(status, {"b": {"ok": False, "error": "ImportError: x"}})
    assert other.state == "broken"


def test_a_proof_reports_the_error_not_the_advice_after_it():
    program = (
        "import sys; sys.stderr.write('Traceback\\n  File\\n"
        "torch.AcceleratorError: CUDA error: no kernel image\\nFor debugging consider x\\n');"
        "sys.exit(1)"
    )
    assert (
        apex_proof._run(program, 10)["error"]
        == "torch.AcceleratorError: CUDA error: no kernel image"
    )
    assert (
        apex_proof._run("import os; os._exit(3)", 10)["error"] == "the process ended with status 3"
    )
    assert "within" in apex_proof._run("import time; time.sleep(9)", 0.3)["error"]
    assert apex_proof._run("pass", 10) == {"ok": True, "error": None}
