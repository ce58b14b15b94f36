"""What an installed Apex can do here: architectures, builds, a GPU, a probe that hangs."""

from __future__ import annotations

import functools
import json
import time

import pytest

from apex_site import COMMIT, STANDARD_LIBRARY, site
from apexbench.machine import apex, apex_proof, cubin, import_probe, install

__all__ = ["site"]


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


def test_what_the_build_proved_is_not_asked_of_cuobjdump_again(site, monkeypatch):
    site.python_apex()
    site.compile("amp_C")
    site.compile("fused_layer_norm_cuda")
    asked = []
    monkeypatch.setattr(cubin, "architectures", lambda path: asked.append(path.name) or ["sm_80"])
    sizes = {
        name: path.stat().st_size
        for name, path in install.find_apex([str(site.folder)]).extensions.items()
    }
    proven = {name: ["sm_90"] for name in sizes}
    build = {"commit": COMMIT, "architectures": proven, "bytes": sizes}
    site.write("apex-build.json", json.dumps(build))
    assert (site.status().architectures, asked) == (["sm_90"], [])
    sizes["amp_C"] += 1
    site.write("apex-build.json", json.dumps(build))
    assert site.status().architectures == ["sm_80", "sm_90"]
    assert len(asked) == 1
    assert asked[0].startswith("amp_C")


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


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("import time; time.sleep(600)", "no answer within 3 s"),
        ("import os; os._exit(3)", "the import ended the process with status 3"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def", "SyntaxError: invalid syntax"),
    ],
    ids=("hang", "exit", "SystemExit", "syntax"),
)
def test_an_apex_whose_import_does_not_end_well_is_named_in_one_time_limit(
    site, monkeypatch, body, sentence
):
    """Its parts are not tried again: each would take as long."""
    site.python_apex()
    site.metadata()
    site.write("apex/__init__.py", body)
    monkeypatch.setattr(apex, "probe", functools.partial(import_probe.probe, time_limit=3))
    begin = time.monotonic()
    status = site.status()
    assert time.monotonic() - begin < 6
    assert status.state == "broken"
    assert f"apex cannot be imported ({sentence}" in status.sentence
    assert status.remedy


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
