"""Arenas that do not fit are tried once, as those that do."""

from __future__ import annotations

import pytest

from tvm_cascade.cascading.assemble import _laid_out, _tried
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.memory import Buffer, Problem


def test_what_does_not_fit_is_not_tried_again() -> None:
    buffers = tuple(Buffer(n, 101 + n, 0, 2, name=f"tensor {n}") for n in range(3))
    problem = Problem(buffers, capacity=300)
    for tries in range(2):
        before = _tried.cache_info().misses
        with pytest.raises(InfeasibleError) as refused:
            _laid_out(problem, optimise=True, options=None)
        assert refused.value.needed == 306
        assert _tried.cache_info().misses - before == (tries == 0)
