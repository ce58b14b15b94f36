"""What is given to Snakemake on its command line, read before (make) or after it (Snakefile)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from apexbench import config
from apexbench import plan as plans
from apexbench.config import given
from apexbench.errors import UserError
from conftest import ROOT

WORKFLOW = ROOT / "workflow"
BOMB = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 10)}]\n"
    for last, name in zip("abcde", "bcdef", strict=True)
)
FILES = {
    "twice": ("seed: 1\nseed: 2\n", "line 2 gives the key 'seed' a second time"),
    "bomb": (BOMB, "past 10000 values, aliases expanded"),
    "itself": ("a: &a {b: *a}\n", "uses the alias 'a', which is not defined above it"),
    "code": ("__use_yte__: true\nseed: ?open('pwned', 'w')\n", "asks for __use_yte__"),
    "merged": ("x: &x {__use_yte__: true}\n<<: *x\n", "asks for __use_yte__"),
    "tag": ("seed: !!python/name:os.system\n", "has the tag"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_config_file_of_the_command_line_is_read_strictly(name, tmp_path):
    text, expected = FILES[name]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    for words in (["--configfile", str(path)], ["-n", f"--configfiles={path}", "--cores", "1"]):
        with pytest.raises(UserError) as caught:
            given.check(words)
        assert expected in str(caught.value)
        assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--config", "components={amp: {}, amp: {}}"], "gives the key 'amp' a second time"),
        (["-C", "seed=1", "preset=quick", "seed=2"], "--config gives seed a second time"),
        (["--config", "seed=1", "--cores", "1", "--config=seed=2"], "seed a second time"),
        (["--configfile", "/nonexistent/x.yaml"], "is missing: name a file that is there"),
    ],
)
def test_what_snakemake_lets_pass_is_refused(words, expected):
    with pytest.raises(UserError, match=expected):
        given.check(words)


@pytest.mark.parametrize("number", ["9" * 45, "-" + "9" * 90, "1e-400", "0.0000e-1", "1.0e400"])
def test_a_number_that_cannot_be_kept_is_never_another(tmp_path, number):
    """Neither 0, nor infinite, nor rounded: Snakemake's reader would make it so."""
    path = tmp_path / "x.yaml"
    path.write_text(f"seed: {number}\n")
    (tmp_path / "config.yaml").write_text(path.read_text())
    ways = (
        lambda: config.load(tmp_path),
        lambda: given.check(["--configfile", str(path)]),
        lambda: given.check(["--config", f"seed={number}"]),
        lambda: given.check(["--config", f"transformer={{seeds: [{number}]}}"]),
    )
    for way in ways:
        if number == "0.0000e-1":
            way()
            continue
        with pytest.raises(UserError) as caught:
            way()
        assert f"'{number[:50]}" in str(caught.value)


def test_what_is_no_config_file_is_a_sentence_before_snakemake_reads_it(tmp_path):
    """Which has a traceback for a folder and for bytes, waits for a pipe, and reads zeros for ever.

    In a process of its own, which a wait does not hold up.
    """
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "bytes").write_bytes(b"seed: \xff\n")
    for name, expected in {
        ".": "is not a file: put a YAML file there.",
        "pipe": "is not a file: put a YAML file there.",
        "zeros": "is not a file: put a YAML file there.",
        "bytes": "line 1 is not UTF-8: save the file as UTF-8.",
    }.items():
        path = tmp_path / name
        refused = subprocess.run(
            [sys.executable, "-m", "apexbench", "given", "--", "--configfile", str(path)],
            env={**os.environ, "PYTHONPATH": str(WORKFLOW)},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert refused.returncode == 2
        assert refused.stderr == f"apexbench: {path} {expected}\n"


def test_what_is_well_formed_passes(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("seed: 1\n")
    given.check(["--configfile", str(path), "-n", "--config", "seed=1; touch x", "preset=quick"])
    given.check(["-j1", "--profile", "x", "all", "--", "results/report.html"])


def test_the_snakefile_reads_the_files_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "x.yaml"
    path.write_text("seed: 1\nseed: 2\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("{}\n")
    with pytest.raises(SystemExit, match="gives the key 'seed' a second time"):
        plans.load(tmp_path, {"seed": 2}, configfiles=[path])


def test_make_asks_before_snakemake_runs_what_a_file_holds(root, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(FILES["code"][0])
    flags = f"SNAKEMAKE_FLAGS=--configfile {path}"
    told = subprocess.run(
        ["make", "--dry-run", "report", flags],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    check, _, run = told.partition(" && ")
    assert check.splitlines()[-1].endswith(f"-P -m apexbench given -- --configfile {path}")
    assert "PYTHONSAFEPATH=1" in run
    assert "-m snakemake" in run
    command = [sys.executable, "-P", "-m", "apexbench", "given", "--", "--configfile", str(path)]
    refused = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={
            "PYTHONPATH": str(root / "workflow")},
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"apexbench: {path} asks for __use_yte__")
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "pwned").exists()
