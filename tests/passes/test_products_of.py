"""Multiply-accumulates of a module by shapes are those that the analysis of its kernels counts."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import relax

from tvm_cascade.passes.extract_graph import extract_work
from tvm_cascade.passes.float_remains import products_of


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ((5, 3, 3, 3), {"padding": 1}),
        ((5, 3, 3, 3), {"padding": (0, 0, 1, 1), "strides": 2}),
        ((6, 1, 3, 5), {"padding": (2, 3, 1, 0), "groups": 3, "dilation": (2, 1)}),
        ((4, 3, 1, 1), {}),
    ],
)
def test_taps_on_padding_are_left_out(weights: tuple[int, ...], options: dict[str, object]) -> None:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (1, 3, 9, 8)), ("w", weights)))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d(x, w, **options))
        builder.emit_func_output(out)
    mod = builder.get()
    before = tvm_ffi.structural_hash(mod)
    assert products_of(mod) == extract_work(relax.transform.LegalizeOps()(mod)).macs > 0
    assert tvm_ffi.structural_hash(mod) == before
