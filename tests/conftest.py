"""Fixtures of the whole suite."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts of tests/golden instead of comparing"
    )


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` equals the file `name` below tests/golden, or with --update-golden becomes it."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            return
        remedy = "where the new text is right, pytest --update-golden writes it; then read the diff"
        if not path.is_file():
            pytest.fail(f"tests/golden/{name} is missing: {remedy}", pytrace=False)
        expected = path.read_bytes().decode()
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), f"tests/golden/{name}", "now", lineterm="", n=1
            )
            changed = "\n".join(list(lines)[:60]) or "only line endings differ"
            pytest.fail(f"tests/golden/{name} differs: {remedy}\n{changed}", pytrace=False)

    return check


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder with `models/` and `cases/` (public files that are not part of the project); tests that need it skip without."""
    folder = os.environ.get("TVM_CASCADE_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TVM_CASCADE_TEST_DATA names no folder with public models")
    return Path(folder)


@pytest.fixture(scope="session")
def models(test_data: Path) -> Path:
    return test_data / "models"


@pytest.fixture(scope="session")
def emulator() -> None:
    """Skip where the Arm cross compiler or QEMU is missing (`make test` installs both on Debian)."""
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name parameters that are functions by their name: an address would differ between the processes of one run."""
    return getattr(val, "__name__", None) if callable(val) else None


def _is_missing(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a skip is for something that continuous integration installs; torch has a run of its own (`make test-torch`)."""
    if not (os.environ.get("TVM_CASCADE_STRICT") and report.skipped):
        return False
    why = str(report.longrepr)
    return "not installed" in why or ("could not import" in why and "could not import 'torch" not in why)


def _fail_what_is_missing() -> Iterator[None]:
    """With TVM_CASCADE_STRICT (continuous integration) what is missing is a failure, never a skip."""
    outcome = yield
    report = outcome.get_result()
    if _is_missing(report):
        report.outcome = "failed"


pytest_runtest_makereport = pytest.hookimpl(hookwrapper=True)(_fail_what_is_missing)
pytest_make_collect_report = pytest_runtest_makereport  # for whole files that ask for a package when they are read
