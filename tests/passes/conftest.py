"""What tests of staged programs share."""

from __future__ import annotations

import pytest

from tvm_cascade.testing.graph_builtins import register_graph_builtins, remove_graph_builtins


@pytest.fixture
def graph_builtins():
    """What the stand-ins for the builtins of CUDA graphs have done."""
    yield register_graph_builtins()
    remove_graph_builtins()


@pytest.fixture(scope="module", autouse=True)
def _stages_are_built_quickly(quick_stages: None) -> None:
    """What programs compute is compared here; what optimisation makes of them, in tests/runtime and tests/schedules."""
