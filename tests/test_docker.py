"""The proof that runs inside the image build, as far as it goes without a GPU's compiler."""

import importlib.util
import re
from types import ModuleType

import pytest
import yaml

from conftest import ROOT

# What `cuobjdump --list-elf` prints for a module with code for two architectures.
LISTING = """ELF file    1: amp_C.1.sm_90.cubin
ELF file    2: amp_C.2.sm_100a.cubin
ELF file    3: amp_C.3.sm_90.cubin
"""


@pytest.fixture(scope="module")
def prove() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prove_apex", ROOT / "docker" / "prove_apex.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_architectures_are_read_from_the_listing(prove: ModuleType) -> None:
    assert prove.embedded(LISTING) == ["sm_100a", "sm_90"]
    assert prove.embedded("") == []


def test_an_architecture_list_names_machine_code(prove: ModuleType) -> None:
    assert prove.targets("8.0;9.0a 12.0+PTX") == {
        "8.0": "sm_80",
        "9.0a": "sm_90a",
        "12.0+PTX": "sm_120",
    }


@pytest.mark.parametrize("wrong", ["", " ; ", "Hopper", "90"])
def test_a_wrong_architecture_list_ends_with_a_sentence(prove: ModuleType, wrong: str) -> None:
    with pytest.raises(SystemExit, match="TORCH_CUDA_ARCH_LIST"):
        prove.targets(wrong)


def test_the_dockerfile_builds_by_default_what_config_yaml_names() -> None:
    image = yaml.safe_load((ROOT / "config.yaml").read_text())["image"]
    text = (ROOT / "docker" / "Dockerfile").read_text()
    for argument, key in [
        ("BASE_IMAGE", "base"),
        ("APEX_REPOSITORY", "apex_repository"),
        ("APEX_COMMIT", "apex_commit"),
    ]:
        given = re.findall(rf"^ARG {argument}=(\S+)$", text, re.M)
        assert given, argument
        assert set(given) == {image[key]}, argument


def test_the_dockerfile_needs_no_frontend_from_a_registry_and_no_heredoc() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert "# syntax=" not in text
    assert "<<" not in text
