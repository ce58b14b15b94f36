"""A site folder with an Apex of any kind in it, made without NVIDIA's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from apexbench.machine import apex, cubin, install
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
