"""What tests of readers share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _programs_are_built_quickly(quick_host: None) -> None:
    """What is read is compared by its values."""
