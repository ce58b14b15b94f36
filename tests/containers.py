"""A real rootless podman for tests, and a small base that brings torch as the real base does.

In CI (root on a bare Debian) an ordinary user is made for it; elsewhere it runs as the caller.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from conftest import require, require_tool

USER = "apexbench-ci"
BASE = "localhost/base:latest"
# Some machines of CI lack CAP_SYS_RESOURCE, systemd, and a /dev/net/tun that users may open; a
# user's needs none of these lines.
CONTAINERS_CONF = """\
[containers]
netns = "host"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""


class Rootless:
    """An ordinary user with a podman of its own: storage, home and configuration in ``folder``."""

    def __init__(self) -> None:
        require_tool("podman", "it builds and runs the image")
        self.folder = Path(tempfile.mkdtemp(prefix="apexbench-"))
        self.uid, self.gid, self._prefix = os.getuid(), os.getgid(), []
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "APEXBENCH_"))
        }
        self.env["APEXBENCH_LOCK_DIR"] = str(self.folder / "locks")
        if os.geteuid() == 0:
            ci = os.environ.get("APEXBENCH_CI") == "1"
            require(ci, "root: as root, only CI makes a user for it")
            self._become_user()
        self.python = self._python()

    def _become_user(self) -> None:
        try:
            entry = pwd.getpwnam(USER)
        except KeyError:
            subprocess.run(["useradd", "--create-home", USER], check=True)
            entry = pwd.getpwnam(USER)
        self.uid, self.gid = entry.pw_uid, entry.pw_gid
        setpriv = require_tool("setpriv", "it starts podman as an ordinary user")
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        self._prefix = [setpriv, *ids, "--inh-caps=-all", "--"]
        for name in ("home", "run", "locks", "store", "small"):
            (self.folder / name).mkdir()
        (self.folder / "containers.conf").write_text(CONTAINERS_CONF)
        self.storage("storage.conf", self.folder / "store")
        self.env |= {
            "HOME": str(self.folder / "home"),
            "USER": USER,
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        self.own(self.folder)
        # Before podman starts: the process that keeps its namespace sees no later mount.
        self.small = self._in_memory("small", "64m")
        store = self._in_memory("store", "10g")
        try:
            os.setxattr(store, "user.overlay.test", b"y")  # what a user's overlay needs: Linux 6.6
        except OSError:
            subprocess.run(["umount", store], check=True)

    def _in_memory(self, name: str, size: str) -> Path:
        """A file system in memory, where thousands of files come and go at once."""
        place = self.folder / name
        options = f"size={size},uid={self.uid},gid={self.gid},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
        return place

    def storage(self, name: str, place: Path) -> Path:
        """A storage.conf that keeps images at ``place``."""
        path = self.folder / name
        run = self.folder / "run" / place.name
        path.write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{run}"\ngraphroot = "{place}"\n'
        )
        path.chmod(0o644)
        return path

    def own(self, path: Path) -> None:
        """Give a tree to the user."""
        for place in (path, *path.rglob("*")):
            os.chown(place, self.uid, self.gid, follow_symlinks=False)

    def _python(self) -> Path:
        """Debian's Python with this environment's packages, which the user can start."""
        if os.geteuid() != 0:
            return Path(sys.executable)
        system = Path("/usr/bin/python3")
        require(
            system.exists() and sys.version_info[:2] == (3, 11),
            "Debian 12's Python 3.11: the stand-in base is made of this environment's torch",
        )
        place = self.folder / "venv"
        subprocess.run([system, "-m", "venv", "--without-pip", place], check=True)
        site = place / "lib/python3.11/site-packages"
        outer = [path for path in sys.path if path.endswith("site-packages")]
        (site / "outer.pth").write_text("\n".join(outer) + "\n")
        if self.run([str(place / "bin/python"), "-c", "import snakemake"]).returncode != 0:
            # A folder above this environment is closed to others: links to its files instead.
            (site / "outer.pth").unlink()
            for path in outer:
                subprocess.run(["cp", "-rlf", f"{path}/.", site], check=True)
        return place / "bin/python"

    def argv(self, argv: list[str]) -> list[str]:
        """``argv`` as the user's."""
        return [*self._prefix, *argv]

    def run(
        self, argv: list[str], timeout: float = 300, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user; both streams are in ``stdout``."""
        return subprocess.run(
            self.argv(argv),
            env=self.env | env,
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def podman(self, *words: str, timeout: float = 300) -> str:
        """What ``podman <words>`` says; it must succeed."""
        done = self.run(["podman", *words], timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def apexbench(self, folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """``apexbench <words>`` of the copy of the project in ``folder``."""
        argv = [str(self.python), "-P", "-m", "apexbench", *words]
        return self.run(argv, cwd=folder, PYTHONPATH=str(folder / "workflow"), **env)

    def close(self) -> None:
        """Remove all of it; layers belong to subordinate ids, which podman knows how to remove."""
        store = self.folder / "store"
        if not store.is_mount():
            self.run(["podman", "unshare", "rm", "-rf", str(store)])
        for place in (store, self.folder / "small"):
            if place.is_mount():
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def make_base(user: Rootless) -> None:
    """Import a Debian with this environment's torch as ``BASE``.

    APEXBENCH_TEST_BASE names an archive that is made once and used again.
    """
    require_tool("mmdebstrap", "it makes the stand-in for the base image")
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    require(sources.exists(), f"{sources}: the stand-in base is made from this machine's sources")
    kept = os.environ.get("APEXBENCH_TEST_BASE")
    archive = Path(kept) if kept else user.folder / "base.tar"
    if not archive.exists():
        _make_archive(archive, sources)
    user.podman("import", "--quiet", str(archive), BASE)
    if not kept:
        archive.unlink()


def _make_archive(archive: Path, sources: Path) -> None:
    trust = (
        'mkdir -p "$1/usr/local/share/ca-certificates"; '
        'cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" '
        '2>/dev/null || :; chroot "$1" update-ca-certificates; '
        'if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$1/etc/pip.conf"; fi'
    )
    torch = f'{shlex.join([sys.executable, str(Path(__file__).resolve())])} "$1"'
    made = subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=apt"),
            "--include=python3,python3-venv,ca-certificates",
            *(f"--customize-hook={trust}", f"--customize-hook={torch}"),
            *("bookworm", str(archive), str(sources)),
        ],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert made.returncode == 0, made.stdout
    archive.chmod(0o644)


def copy_torch(root: Path) -> None:
    """Copy torch and what it needs into the Debian at ``root``, without a second download."""
    place = root / "usr/lib/python3/dist-packages"
    left, done = ["torch"], set()
    while left:
        name = left.pop().lower()
        if name in done:
            continue
        done.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, found.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
        for top in {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(top)))
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.a", "include")
                shutil.copytree(source, place / top, dirs_exist_ok=True, ignore=ignore)
            else:
                shutil.copy2(source, place / top)


if __name__ == "__main__":
    copy_torch(Path(sys.argv[1]))
