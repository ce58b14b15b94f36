"""torch.compile on the CPU where project, Python and caches lie in a folder with spaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from apexbench.components import requirements
from apexbench.jobs import plain_paths
from apexbench.machine import apex_source
from apexbench.machine.toolchain import needs_quoting
from conftest import ROOT, require_compiled_torch

JOB = """
import json, sys
from pathlib import Path
from apexbench import records
from apexbench.jobs import supervisor
from apexbench.jobs.request import Request

out = Path(sys.argv[1])
supervisor.run(Request.parse(sys.argv[2]), out, out.parent / "log")
(record,) = records.read_index(out)
cell = record.cell("torch_compiled")
print(json.dumps([sys.prefix, cell.status, cell.reason]))
"""
REQUEST = {
    "component": "layer_norm",
    "device": "cpu",
    "seed": 0,
    "measuring": {
        "case_seconds": 0.2,
        "pilot_rounds": 4,
        "confidence": 0.99,
        "margin": 0.01,
        "throttle_retries": 0,
        "implementation_seconds": 120,
    },
    "environment": {},
    "implementations": ["torch_default", "torch_compiled"],
    "cases": [
        {
            "rows": 64,
            "width": 96,
            "dtype": "float32",
            "direction": "forward",
            "autocast": False,
            "affine": True,
        }
    ],
}


def test_what_needs_quoting():
    assert not needs_quoting("/srv/me/bench-1.0/.venv")
    assert all(needs_quoting(path) for path in ("/my bench", "/bench (1)", "/it's", "/a&b"))


def test_a_plain_folder_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/opt/venv")
    monkeypatch.setenv(plain_paths.CACHE, "/opt/cache")
    assert plain_paths.interpreter(tmp_path) == sys.executable
    assert plain_paths.environment(tmp_path) == dict(os.environ)
    assert not list(tmp_path.iterdir())


def test_a_remedy_names_the_python_that_lasts(tmp_path, monkeypatch):
    prefix = tmp_path / "my bench (1)" / ".venv"
    (prefix / "bin").mkdir(parents=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    linked = plain_paths.interpreter(scratch)
    assert linked == str(scratch / "python/bin/python")
    monkeypatch.setattr(sys, "prefix", str(scratch / "python"))
    monkeypatch.setattr(sys, "executable", linked)
    monkeypatch.setattr(apex_source, "LEGACY_FOLDER", scratch / "python/legacy-apex")
    for command in (apex_source.install_command("9.0"), apex_source.legacy_command()):
        assert str(scratch) not in command
        assert f"'{prefix}/bin/python' -m pip install" in command
    monkeypatch.chdir(prefix.parent)
    assert apex_source.python_command() == ".venv/bin/python"


def test_torch_in_such_a_folder_is_named_with_the_remedy(tmp_path, monkeypatch):
    package = tmp_path / "my site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr("apexbench.machine.toolchain.compile_missing", lambda device: None)
    reason, remedy = requirements.compiler("cpu")
    assert "without spaces" in reason
    assert str(package) in remedy
    assert requirements.compiler("cuda") is None


def test_a_compiled_arm_is_measured_in_a_folder_with_spaces(tmp_path):
    require_compiled_torch()
    place = tmp_path / "my bench (1)"
    prefix = place / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    packages = prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.rmdir()
    import torch

    packages.symlink_to(Path(torch.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "workflow"),
        plain_paths.CACHE: str(place / "cache"),
    }
    out = place / "results/records/layer_norm/index.json"
    done = subprocess.run(
        [prefix / "bin/python", "-c", JOB, out, json.dumps(REQUEST)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [str(prefix), "ok", None]
    assert list((place / "cache").rglob("*.so")), "the compile cache is not where it was asked for"
