"""Kernels for foreign machines on this machine: operations on words, as calls and as expressions."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_cascade.schedules import tir
from tvm_cascade.schedules.rules.intrinsics import call
from tvm_cascade.schedules.rules.portable import WORDS, WORDS_FILE, portable
from tvm_cascade.schedules.tir.quick_build import can_link, linked, quick_build

needs_linker = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("ld") is None, reason="words are linked by ld"
)

ARITIES = {"smlad": 3, "smmlar": 3, "sxtab16": 2, "sxtab16_ror8": 2}
CORNERS = (0, 1, -1, 0x7FFFFFFF, -0x80000000, 0x00FF00FF, -0x7F7F7F80, 0x00800080, 0x7FFF8000, 0x80007FFF - (1 << 32))


def function(operation: str, count: int) -> tirx.PrimFunc:
    """Apply an operation to `count` tuples of words."""
    arity = ARITIES.get(operation, 1)
    words = [tirx.decl_buffer((count,), "int32", f"words{k}") for k in range(arity)]
    made, i = tirx.decl_buffer((count,), "int32", "made"), tir.scalar("i", "int32")
    given: list[Any] = [buffer[i] for buffer in words]
    if operation in ("ld32", "ldr"):
        given = [tirx.address_of(words[0][i])]
    body = tir.for_range(i, count, tirx.BufferStore(made, call(operation, *given), [i]))
    return tirx.PrimFunc([*words, made], body).with_attr("global_symbol", "main")


def computed(operation: str, words: list[np.ndarray], as_calls: bool) -> np.ndarray:
    func = portable(function(operation, len(words[0])), as_calls)
    built = quick_build(tvm.IRModule({"main": func})).mod
    library = linked(built, WORDS_FILE) if as_calls else linked(built)
    made = tvm.runtime.tensor(np.zeros(len(words[0]), np.int32))
    library["main"](*(tvm.runtime.tensor(w) for w in words), made)
    return made.numpy()


@needs_linker
@pytest.mark.parametrize("operation", WORDS)
def test_calls_compute_what_expressions_compute(operation: str) -> None:
    assert can_link()
    random = np.random.default_rng(0)
    arity = ARITIES.get(operation, 1)
    limits = np.iinfo(np.int32)
    drawn = random.integers(limits.min, limits.max, (arity, 500), np.int32, endpoint=True)
    near = random.integers(-300, 300, (arity, 100)).astype(np.int32)
    corners = np.array(np.meshgrid(*[CORNERS] * arity)).reshape(arity, -1).astype(np.int32)
    words = list(np.ascontiguousarray(np.concatenate([drawn, near, corners], axis=1)))
    as_calls, as_expressions = (computed(operation, words, way) for way in (True, False))
    np.testing.assert_array_equal(as_calls, as_expressions)
    assert len(set(as_calls.tolist())) > 10  # the operation is there
