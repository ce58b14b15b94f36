"""An ordinary user, a project and an image that the tests of a real engine share."""

from __future__ import annotations

import json

import pytest

from containers import Rootless, make_base
from pipeline import Project, all_disabled

CONFIG = """\
preset: quick
device: cpu
runtime: podman
components:
OTHERS
  rms_norm: {rows: [64], widths: [256], dtypes: [float32], directions: [forward], also: [],
             implementations: [torch_eager]}
transformer: {enabled: false}
measuring: {case_seconds: 0.2, pilot_rounds: 10, implementation_seconds: 60}
report: {reference: false, pdf: false}
image:
  base: localhost/base:latest
  digest: null    # seen at the first build
  apex: false
""".replace("OTHERS", all_disabled("rms_norm"))


@pytest.fixture(scope="module")
def user():
    made = Rootless()
    try:
        make_base(made)
        yield made
    finally:
        made.close()


class UsersProject(Project):
    """A copy of the repository that belongs to the user, with a space in its path."""

    def __init__(self, user: Rootless):
        super().__init__(user.folder / "my bench (1)", user.python)
        self.user, self.environment = user, dict(user.env)
        self.configure(CONFIG)
        user.own(self.folder)

    def argv(self, *arguments: str) -> list[str]:
        return self.user.argv(super().argv(*arguments))


@pytest.fixture(scope="module")
def project(user):
    """One finished run: the image built by its rule, one component measured in it."""
    made = UsersProject(user)
    done = made.run("results/records/rms_norm/index.json", "results/machine.json")
    assert done.returncode == 0, done.stdout
    return made


@pytest.fixture(scope="module")
def image(project):
    return json.loads((project.folder / "results/image.json").read_text())
