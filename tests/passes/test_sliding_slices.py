"""Takes of constant indices along time as slices: frames keep what is behind them, and values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.importers.sliding import load_frame
from tvm_cascade.passes.main_rewriting import bindings_of, name_of
from tvm_cascade.passes.sliding.slices import with_slices
from tvm_cascade.testing.quick_build import virtual_machine

SHAPE = (1, 4, 20)


def network(indices: Any, axis: int = 2) -> Any:
    """A convolution over time, of whose rows some are taken into a dense layer."""
    rng = np.random.default_rng(0)
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            weights = relax.const(rng.standard_normal((6, 4, 3)).astype("float32"))
            y = bb.emit(relax.op.nn.conv1d(x, weights))
            taken = bb.emit(relax.op.take(y, relax.const(np.array(indices, "int32")), axis))
            flat = bb.emit(relax.op.reshape(taken, (1, int(np.prod([int(d) for d in taken.ty.shape.values])))))
            dense = rng.standard_normal((int(flat.ty.shape.values[1]), 3)).astype("float32")
            out = bb.emit_output(relax.op.matmul(flat, relax.const(dense)))
        bb.emit_func_output(out)
    return bb.finalize()


@pytest.mark.parametrize("indices", [17, [17], [15, 16, 17], [11, 14, 17]])
def test_frames_keep_what_is_taken(indices: Any) -> None:
    mod = network(indices)
    sliced = with_slices(mod)
    assert "take" not in [name_of(b.value) for b in bindings_of(sliced["main"])]
    data = tvm.runtime.tensor(np.random.default_rng(1).standard_normal(SHAPE).astype("float32"))
    want, got = (virtual_machine(m)["main"](data).numpy() for m in (mod, sliced))
    np.testing.assert_array_equal(got, want)
    rows = 18 - np.min(indices) if np.size(indices) > 1 else 0  # of one row nothing is kept: it is the new one
    assert load_frame(mod, 1, axis=2).plan.state_bytes == 4 * (3 * 4 + 6 * rows)


@pytest.mark.parametrize(("indices", "axis"), [([3, 1], 2), ([1, 2, 4], 2), ([[1, 2]], 2), (-1, 2)])
def test_other_takes_stay(indices: Any, axis: int) -> None:
    mod = network(indices, axis)
    assert with_slices(mod) is mod
