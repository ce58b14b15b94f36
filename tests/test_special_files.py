"""A device, a pipe or a socket given as a path to write: every command refuses and leaves it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import typing

import pytest

from apexbench import cli, records
from apexbench.errors import UserError

RUN = "results/reference/nvidia-h200"
FILES = {
    "machine": ["machine", "--out", "{}"],
    "measure": ["measure", "--request", "{{}}", "--out", "{}", "--log", "log"],
    "measure's log": ["measure", "--request", "{{}}", "--out", "out", "--log", "{}"],
    "compare": ["compare", RUN, RUN, "--html", "{}"],
    "readme": ["readme", "--records", RUN, "--out", "{}"],
    "exec": ["exec", "--no-lock", "--log", "{}", "--", "doctor"],
    "image build": ["image", "build", "--out", "{}", "--sif", "x.sif"],
    "image build's log": ["image", "build", "--log", "{}", "--print"],
    "image pin": ["image", "pin", "--log", "{}"],
    "image show": ["image", "show", "--out", "{}"],
    "image sif": ["image", "sif", "{}"],
    "image native": ["image", "native", "--log", "{}"],
}
FOLDERS = {
    "aggregate": ["aggregate", "--results", RUN, "--out", "{}"],
    "figures": ["figures", "--results", RUN, "--out", "{}"],
    "report": ["report", "--records", RUN, "--out", "{}"],
    "reference": ["reference", "--results", RUN, "--out", "{}"],
    "retry": ["retry", "--status", "failed", "--results", "{}"],
    "recommend": ["recommend", "--results", "{}"],
    "doctor": ["doctor", "--results", "{}"],
    "selfcheck": ["selfcheck", "--results", "{}", "--only", "faults"],
    "exec": ["exec", "--no-lock", "--results", "{}", "--", "doctor"],
}
KINDS = ("pipe", "socket", "device") if os.geteuid() == 0 else ("pipe", "socket")


def special(kind, path):
    """A pipe, a socket, or a device that swallows what is written, as /dev/null does."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    else:
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("this sandbox lets nobody make a device")
    return path


@pytest.fixture
def soon():
    """A write to a pipe that nobody reads would wait for ever."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(words, "is not a regular file") for words in FILES.values()]
    + [(words, "is not a folder") for words in FOLDERS.values()],
    ids=[*FILES, *(f"{name}'s folder" for name in FOLDERS)],
)
def test_every_command_refuses_it(
    monkeypatch, capsys, tmp_path, root, soon, arguments, sentence, kind
):
    path = special(kind, tmp_path / kind)
    before = path.lstat()
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["apexbench", *(word.format(path) for word in arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told == f"apexbench: {path} {sentence}, and is left as it is: name another path.\n"
    after = path.lstat()
    assert (before.st_ino, before.st_mode, before.st_rdev) == (
        after.st_ino, after.st_mode, after.st_rdev,
    )  # fmt: skip


def test_no_option_that_takes_a_path_is_forgotten():
    """Each looks at what lies there, but for those that are only read."""
    open_to_all, seen = set(), 0
    for command in [*cli.app.registered_commands, *cli.image.registered_commands]:
        hints = typing.get_type_hints(command.callback, include_extras=True)
        for name, hint in hints.items():
            if "Path" in str(typing.get_args(hint)[:1]):
                seen += 1
                if typing.get_args(hint)[1].callback is None:
                    open_to_all.add(name)
    assert seen >= 20
    assert open_to_all == {"folders"}


def test_the_writer_itself_refuses_it(tmp_path):
    path = special("pipe", tmp_path / "pipe")
    (tmp_path / "link").symlink_to(path)
    for target in (path, tmp_path / "link", tmp_path):
        with pytest.raises(UserError, match="is not a regular file, and is left as it is"):
            records.write_text_atomically(target, "text")
    assert path.is_fifo()
    with pytest.raises(UserError, match="name a path whose folders are folders"):
        records.write_text_atomically(path / "below", "text")
