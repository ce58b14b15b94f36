"""CONTRIBUTING's diff and its entry point, done as written with a toy library, and measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from apexbench import records
from conftest import ROOT

TOY = """
import torch

def layer_norm(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return layer_norm(x, weight, bias, eps)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            found = torch.autograd.grad(layer_norm(*leaves, ctx.eps), leaves, gradient)
        return found[0] * 1.01, *found[1:], None
"""
OUTSIDE = """
from apexbench.components.layer_norm import component
from mylib import Wrong, layer_norm

@component.implementation(package="mylib")
def outside(case):
    \"\"\"mylib.layer_norm, from a package of its own.\"\"\"
    return lambda x, weight, bias: layer_norm(x, weight, bias, 1e-5)

@component.implementation(package="mylib")
def outside_wrong(case):
    \"\"\"A backward that is off by a hundredth.\"\"\"
    return lambda x, weight, bias: Wrong.apply(x, weight, bias, 1e-5)
"""
RUN = """
import json, sys
from pathlib import Path
from apexbench.components.names import implementation_names
from apexbench.jobs import supervisor
from apexbench.jobs.request import Request, sources
request = Request.parse(sys.argv[1])
supervisor.run(request, Path(sys.argv[2]), Path(sys.argv[2]).with_suffix(".log"))
known = implementation_names()["layer_norm"]
print(json.dumps([known, [str(path) for path in sources("layer_norm")]]))
"""
CASE = {
    "rows": 16, "width": 32, "dtype": "float32", "direction": "forward_backward",
    "autocast": False, "affine": True, "mixed": False,
}  # fmt: skip


def blocks() -> list[list[str]]:
    """The indented blocks of the section "Add an implementation"."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Add an implementation")[1].split("\n## ")[0]
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section, re.MULTILINE)
    return [textwrap.dedent(block).strip("\n").splitlines() for block in found]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory):
    """The record of one case, what is known by name, and the component's sources."""
    folder = tmp_path_factory.mktemp("contributing")
    package = folder / "workflow"
    shutil.copytree(ROOT / "workflow" / "apexbench", package / "apexbench")
    for name in ("schemas", "presets"):
        shutil.copytree(ROOT / "workflow" / name, package / name)
    with (package / "apexbench" / "components" / "layer_norm.py").open("a") as file:
        file.write("\n\n" + "\n".join(blocks()[0]) + "\n")
    site = folder / "site"
    (site / "mylib").mkdir(parents=True)
    (site / "mylib" / "__init__.py").write_text(TOY)
    (site / "mylib" / "for_apexbench.py").write_text(OUTSIDE)
    info = site / "mylib-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mylib\nVersion: 1\n")
    group = blocks()[1][0].removeprefix('[project.entry-points."').removesuffix('"]')
    line = blocks()[1][1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n")
    request = {
        "component": "layer_norm", "device": "cpu", "seed": 0, "environment": {}, "cases": [CASE],
        "implementations": ["torch_eager", "mylib", "outside", "outside_wrong"],
        "measuring": {
            "case_seconds": 0.1, "pilot_rounds": 10, "confidence": 0.99, "margin": 0.01,
            "throttle_retries": 0, "implementation_seconds": 300,
        },
    }  # fmt: skip
    index = folder / "records" / "layer_norm" / "index.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (package, site)))}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(request), str(index)],
        env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    (record,) = records.read_index(index)
    return record, *json.loads(done.stdout.splitlines()[-1])


def test_the_diff_is_ten_lines_at_most() -> None:
    diff, entry_point = blocks()
    assert len(diff) <= 10
    assert diff[0].startswith("@component.implementation(")
    assert len(entry_point) == 2


@pytest.mark.parametrize("name", ["mylib", "outside"])
def test_an_implementation_from_the_diff_and_one_from_outside_are_measured(measured, name) -> None:
    record, known, _ = measured
    cell = record.cell(name)
    assert (cell.status, cell.package) == ("ok", "mylib"), cell.reason
    assert cell.quantities["device_time"].samples
    assert name in known
    compared = {c.baseline for c in record.comparisons if c.implementation == name}
    assert "torch_default" in compared


def test_one_whose_backward_is_wrong_is_refused_by_parity(measured) -> None:
    record, *_ = measured
    cell = record.cell("outside_wrong")
    assert cell.status == "parity_failed"
    assert cell.reason.startswith("dx is off by")
    assert cell.quantities == {}


def test_an_edited_package_makes_its_component_stale(measured) -> None:
    *_, sources = measured
    assert any(path.endswith("mylib/for_apexbench.py") for path in sources)
