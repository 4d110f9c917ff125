"""What tests of staged programs share."""

from __future__ import annotations

import pytest

from tvm_cascade.testing.graph_builtins import register_graph_builtins, remove_graph_builtins


@pytest.fixture
def graph_builtins():
    """What the stand-ins for the builtins of CUDA graphs have done."""
    yield register_graph_builtins()
    remove_graph_builtins()
