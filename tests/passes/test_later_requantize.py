"""Requantizes move behind max pools whose input others read, and all stored integers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from tvm_cascade.passes.later_requantize import with_later_requantize
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.main_rewriting import bindings_of, name_of
from tvm_cascade.schedules.tir import relax
from tvm_cascade.testing.reference import Compiled

_LOWER: Any = LowerQuantized()
_FINE, _COARSE = 0.021, 0.033


def _of_scale(scale: float, zero: int) -> tuple[Any, Any]:
    return relax.const(scale, "float32"), relax.const(zero, "int8")


def _network(shared: bool) -> tvm.IRModule:
    """Build a pool of requantized integers, which a relu reads too if `shared`."""
    bb: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2, 128), "int8"))
    with bb.function("main", [x]):
        with bb.dataflow():
            reals = bb.emit(relax.op.dequantize(x, *_of_scale(_FINE, 5), axis=0))
            q = bb.emit(relax.op.quantize(reals, *_of_scale(_COARSE, -9), axis=0, out_dtype="int8"))
            image = bb.emit(relax.op.permute_dims(bb.emit(relax.op.reshape(q, [1, 2, 1, 128])), [0, 2, 3, 1]))
            pooled = bb.emit(relax.op.nn.max_pool2d(image, [1, 3], [1, 1], [0, 1, 0, 1], layout="NHWC"))
            other = bb.emit(relax.op.nn.relu(bb.emit(relax.op.dequantize(x, *_of_scale(_FINE, 5), axis=0))))
            least = bb.emit(relax.op.quantize(other, *_of_scale(_FINE, 5), axis=0, out_dtype="int8"))
            made = bb.emit_output(relax.Tuple([pooled, least]) if shared else pooled)
        bb.emit_func_output(made)
    return relax.transform.DeadCodeElimination()(bb.finalize())


def _operators(mod: tvm.IRModule) -> list[str]:
    return [name for b in bindings_of(mod["main"]) if (name := name_of(b.value))]


def test_the_maximum_is_taken_first() -> None:
    plain = _network(shared=True)
    kept = plain.script()
    moved = with_later_requantize(plain)
    assert plain.script() == kept
    behind = _operators(moved)
    assert behind[behind.index("nn.max_pool2d") :][:3] == ["nn.max_pool2d", "dequantize", "quantize"]
    x = np.random.default_rng(0).permutation(np.arange(-128, 128)).astype("int8").reshape(1, 2, 128)
    stored = np.clip(np.rint((x.astype("float64") - 5) * _FINE / _COARSE) - 9, -128, 127).transpose(0, 2, 1)[:, None]
    padded = np.pad(stored, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=-128)
    want = np.max([padded[:, :, k : k + 128] for k in range(3)], axis=0)
    for mod in (plain, moved):
        ours = Compiled(_LOWER(mod))(x)
        np.testing.assert_array_equal(ours[0], want)
        np.testing.assert_array_equal(ours[1], np.maximum(x, 5))


def test_integers_that_nothing_else_reads_stay() -> None:
    plain = _network(shared=False)
    assert with_later_requantize(plain) is plain
