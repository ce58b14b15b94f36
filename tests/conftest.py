"""What every test may use: the repository's root, and how a test says what it needs."""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# A shell that starts the tests in the background has them, and all they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

IN_CI = os.environ.get("APEXBENCH_CI") == "1"
# CI tries the same examples at each run: what is green there stays green.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
if IN_CI:
    hypothesis.settings.load_profile("ci")
NO_TORCH = "ModuleNotFoundError: No module named 'torch'"


def require(found: object, why: str) -> None:
    """Skip the calling test with its reason when `found` is false; in CI, fail it.

    CI (`.ci/run` sets APEXBENCH_CI=1) installs everything that a test may need, so that a test
    cannot vanish there unnoticed.
    """
    if found:
        return
    if IN_CI:
        pytest.fail(f"missing in CI: {why}", pytrace=False)
    pytest.skip(why)


def require_tool(name: str, why: str) -> str:
    """Return the path of the command `name`, or skip (in CI: fail) the test, saying why."""
    path = shutil.which(name)
    require(path, f"`{name}` is not installed: {why}")
    assert path is not None
    return path


def require_compiled_torch() -> None:
    """Skip (in CI: fail) where torch.compile lacks a compiler; skip where torch's folder breaks it.

    A measuring job works around such a folder (see `apexbench.jobs.plain_paths`), a test's own
    process cannot.
    """
    from apexbench.components import requirements
    from apexbench.machine.toolchain import compile_missing

    unmet = compile_missing("cpu")
    require(unmet is None, f"torch.compile {unmet[0] if unmet else ''}")
    if (unmet := requirements.compiler("cpu")) is not None:
        pytest.skip(f"torch.compile {unmet[0]}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw the same random numbers at each run; a test of chance seeds its own generators."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


READING = ("test_config", "test_records", "test_reference", "test_report_", "test_rulegraph")
READING += ("test_statistics", "test_stop_rule")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what measures nothing: `make test` tests it beside the rest."""
    for item in items:
        if item.path.name.startswith(READING):
            item.add_marker("reads")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Where torch was left out on purpose (TORCH=0), what needs it is skipped; never in CI."""
    report = yield
    if report.failed and NO_TORCH in str(report.longrepr) and not IN_CI:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "Skipped: torch is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """The same for a single test, whichever process it was that missed torch."""
    report = yield
    if report.failed and NO_TORCH in str(report.longrepr) and not IN_CI:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: torch is not installed")
    return report
