"""apex.amp beside torch: played by a fake that patches torch and scales as the real one does."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from apexbench.components import amp_legacy, requirements
from apexbench.components.amp import component
from apexbench.components.amp_workload import label
from apexbench.jobs import launch
from apexbench.jobs.request import Task
from apexbench.machine import apex, apex_source
from apexbench.measuring.sampler import Sampler, Settings, Watch
from apexbench.measuring.timers import CpuTimer

torch.set_num_threads(1)
LINEAR = F.linear
CASE = {"model": "mlp", "batch": 32, "legacy": "O1"}


class FakeAmp(types.ModuleType):
    """``apex.amp``: initialize patches torch for good, scale_loss scales and unscales."""

    def __init__(self):
        super().__init__("apex.amp")
        self.scale, self.calls = 2.0**10, 0

    def initialize(self, module, optimizer, opt_level, verbosity):
        assert verbosity == 0
        original = F.linear

        def halved(x, weight, bias=None):
            self.calls += 1
            return original(x.half(), weight.half(), None if bias is None else bias.half()).float()

        F.linear = halved
        torch.Tensor.of_apex = lambda tensor: tensor
        torch.imported_meanwhile = types.ModuleType("torch.imported_meanwhile")
        return module, optimizer

    @contextlib.contextmanager
    def scale_loss(self, loss, optimizer):
        yield loss * self.scale
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.div_(self.scale)

    def master_params(self, optimizer):
        return (p for group in optimizer.param_groups for p in group["params"])

    def state_dict(self):
        return {"loss_scaler0": {"loss_scale": self.scale, "unskipped": 0}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An Apex with amp and without extensions; what it does to torch is undone afterwards."""
    package, amp = types.ModuleType("apex"), FakeAmp()
    package.__file__, package.amp = str(tmp_path / "apex" / "__init__.py"), amp
    monkeypatch.setitem(sys.modules, "apex", package)
    monkeypatch.setitem(sys.modules, "apex.amp", amp)
    monkeypatch.setitem(sys.modules, "amp_C", None)
    yield amp
    F.linear = LINEAR
    for space, name in ((torch.Tensor, "of_apex"), (torch, "imported_meanwhile")):
        if hasattr(space, name):
            delattr(space, name)


def arms(case: dict, *names: str):
    workload = component.workload(case, "cpu", 0)
    workload.allocate(2)
    return workload, [workload.arm(component.implementations[name]) for name in names]


def test_patches_are_in_place_in_its_own_windows_only(fake) -> None:
    _, (legacy, plain) = arms(CASE, "apex_amp_o1", "torch_fp32")
    assert len(legacy.training.patches) == 2
    assert F.linear is LINEAR
    assert not hasattr(torch.Tensor, "of_apex")
    assert hasattr(torch, "imported_meanwhile")
    legacy.prepare(1)
    assert F.linear is not LINEAR
    legacy.call(0)
    legacy.finish()
    used = fake.calls
    assert used > 0
    plain.prepare(1)
    plain.call(0)
    plain.finish()
    assert fake.calls == used
    assert F.linear is LINEAR


def test_its_gradients_pass_the_gate_and_its_losses_are_told(fake) -> None:
    workload, (legacy,) = arms(CASE, "apex_amp_o1")
    parity = workload.check(legacy)
    assert parity.passed, parity.checks
    details = workload.details(legacy)
    assert details["loss"] < details["first_loss"]
    assert (details["skipped_steps"], details["scale"]) == (0, 2.0**10)
    assert (details["opt_level"], details["compiled"]) == ("O1", False)
    assert F.linear is LINEAR


def test_a_forgotten_unscaling_fails_the_gate(fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeAmp, "scale_loss", lambda self, loss, _: contextlib.nullcontext(loss * self.scale)
    )
    workload, (legacy,) = arms(CASE, "apex_amp_o1")
    assert not workload.check(legacy).passed


def test_a_python_only_install_is_not_timed(fake) -> None:
    workload, (legacy, plain) = arms(CASE, "apex_amp_o1", "torch_fp32")
    assert legacy.untimed.startswith("not tested")
    settings = Settings(case_seconds=0.05, pilot_rounds=10)
    both = {"apex_amp_o1": legacy, "torch_fp32": plain}
    sampler = Sampler(workload, both, CpuTimer(), settings, [], 0, Watch(), lambda *_: False)
    samples = sampler.run("step_time", 0.05)
    assert list(samples.times) == ["torch_fp32"]
    assert samples.dropped == {"apex_amp_o1": amp_legacy.PYTHON_ONLY}


def test_another_apex_s_extension_is_put_out_of_reach(fake, monkeypatch, tmp_path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "amp_C.py").write_text("")
    monkeypatch.delitem(sys.modules, "amp_C")
    monkeypatch.syspath_prepend(str(folder))
    assert not amp_legacy.is_compiled()
    with pytest.raises(ImportError):
        __import__("amp_C")
    sys.modules["apex"].__file__ = str(folder / "apex" / "__init__.py")
    monkeypatch.delitem(sys.modules, "amp_C")
    assert amp_legacy.is_compiled()


def test_each_level_has_a_process_with_the_folder_first_on_its_path(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    tasks = [Task({"legacy": level}, 0, str(level)) for level in ("none", "O1", "O2")]
    assert [launch.legacy(task) for task in tasks] == [None, "O1", "O2"]
    paths = launch.environment(tasks[1:2], tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(apex_source.LEGACY_FOLDER)
    assert paths[-1] == "here"
    assert launch.environment(tasks[:1], tmp_path)["PYTHONPATH"] == "here"


def test_an_installed_folder_is_enough_and_its_case_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(requirements, "apex", lambda name: lambda device: (apex.REMOVED, "install"))
    assert requirements.legacy_amp("cuda") == (apex.REMOVED, "install")
    monkeypatch.setattr(apex_source, "LEGACY_FOLDER", tmp_path)
    (tmp_path / "apex" / "amp").mkdir(parents=True)
    assert requirements.legacy_amp("cuda") is None
    assert label(CASE) == "mlp batch 32 beside apex.amp O1"
    assert label({**CASE, "legacy": "none"}) == "mlp batch 32"
