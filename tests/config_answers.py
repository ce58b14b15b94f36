"""What the tests of the config loader share: a folder with a config, and its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apexbench.config import Config, load
from apexbench.errors import UserError

ROOT = Path(__file__).parents[1]
PRESETS = ("quick", "full", "reference", "article")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("{}\n", encoding="utf-8")
    return tmp_path


def given_yaml(project: Path, text: str | bytes, **kwargs: Any) -> Config:
    data = text.encode() if isinstance(text, str) else text
    (project / "config.yaml").write_bytes(data)
    return load(project, **kwargs)


def sentence(project: Path, text: str | bytes = "{}", **kwargs: Any) -> str:
    with pytest.raises(UserError) as caught:
        given_yaml(project, text, **kwargs)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message
