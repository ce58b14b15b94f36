"""The tests' own Slurm touches no other and takes down itself alone; it is not started here."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT


def lab(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("APEXBENCH_CI", "APEXBENCH_SLURM")}
    return subprocess.run(
        [sys.executable, "tests/slurm/lab.py", *arguments],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_lab_starts_only_when_asked_for(tmp_path):
    refused = lab("up", str(tmp_path / "lab"))
    assert refused.returncode == 1
    assert "set APEXBENCH_SLURM=1" in refused.stderr
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize("text", ["ClusterName=theirs\n", ""])
@pytest.mark.parametrize("name", ["slurm.conf", "slurmdbd.conf", "gres.conf"])
def test_the_lab_leaves_another_slurm_conf_alone(tmp_path, monkeypatch, text, name):
    monkeypatch.syspath_prepend(str(ROOT / "tests/slurm"))
    monkeypatch.setenv("APEXBENCH_SLURM", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    import lab as module

    conf = tmp_path / "etc" / name
    conf.parent.mkdir()
    conf.write_text(text)
    with pytest.raises(module.LabError, match="belongs to a cluster, which is left alone"):
        module.up(tmp_path / "lab", conf.parent)
    module.down(tmp_path / "lab", conf.parent)
    assert conf.read_text() == text
    assert not (tmp_path / "lab").exists()


def test_the_lab_takes_down_nothing_but_itself(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/slurm"))
    import lab as module

    asked = []
    monkeypatch.setattr(module, "_quiet", lambda *command: asked.append(command))
    conf = tmp_path / "etc/slurm.conf"
    conf.parent.mkdir()
    conf.write_text(f"{module.MARK} in {tmp_path / 'lab'}\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    module.down(tmp_path / "mine", conf.parent)
    assert (conf.exists(), asked) == (True, [])
    assert (tmp_path / "mine/thesis.txt").exists()
    (tmp_path / "lab/run").mkdir(parents=True)
    module.down(tmp_path / "lab", conf.parent)
    assert (conf.exists(), (tmp_path / "lab").exists()) == (False, False)
