"""What the tests of the image share: config.yaml's image, and two digests."""

from __future__ import annotations

import yaml

from conftest import ROOT

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
SETTINGS = yaml.safe_load((ROOT / "config.yaml").read_text())["image"]
