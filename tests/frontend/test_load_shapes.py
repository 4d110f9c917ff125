"""Files that compute shapes, because their converter was given no batch size or no sizes at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter

_LOWER: Any = LowerQuantized()


def _ints(w: ModelWriter, *values: int) -> int:
    return w.constant(np.array(values, "int32"))


def _extent(w: ModelWriter, shape: int, axis: int) -> int:
    """One extent, as TensorFlow's converter takes it out of a shape."""
    made = w.tensor((), "int32")
    index = [_ints(w, v) for v in (axis, axis + 1, 1)]
    w.operator("STRIDED_SLICE", [shape, *index], [made], "StridedSliceOptions", shrinkAxisMask=1)
    return made


def _packed(w: ModelWriter, values: list[int]) -> int:
    made = w.tensor((len(values),), "int32")
    w.operator("PACK", values, [made], "PackOptions", valuesCount=len(values), axis=0)
    return made


def _flattening(dtype: str) -> bytes:
    """A flatten whose batch is open, written as a shape, a slice of it and a pack."""
    w = ModelWriter()
    q = {} if dtype == "float32" else {"scale": 0.1, "zero_point": 3}
    x = w.activation((1, 2, 3, 4), dtype, **q, name="x", signature=(-1, 2, 3, 4))
    shape = w.tensor((4,), "int32")
    w.operator("SHAPE", [x], [shape], "ShapeOptions", outType=2)
    wanted = _packed(w, [_extent(w, shape, 0), w.constant(np.array(24, "int32"))])
    y = w.tensor((1, 24), dtype, **q, signature=(-1, 24))
    w.operator("RESHAPE", [x, wanted], [y], "ReshapeOptions", newShape=[])
    w.outputs = [y]
    return w.finish()


def _growing(dtype: str) -> bytes:
    """A transposed convolution of twice its input's size, whatever that is; the file declares 1 for what it leaves open."""
    w, rng = ModelWriter(), np.random.default_rng(0)
    open_shape = (-1, -1, -1, 3)
    q = {} if dtype == "float32" else {"scale": 0.1, "zero_point": 3}
    x = w.activation((1, 1, 1, 3), dtype, **q, name="x", signature=open_shape)
    shape = w.tensor((4,), "int32")
    w.operator("SHAPE", [x], [shape], "ShapeOptions", outType=2)
    two, extents = w.constant(np.array(2, "int32")), []
    for axis in (1, 2):
        extents.append(w.tensor((), "int32"))
        w.operator("MUL", [_extent(w, shape, axis), two], [extents[-1]], "MulOptions")
    wanted = _packed(w, [_extent(w, shape, 0), *extents, w.constant(np.array(2, "int32"))])
    if dtype == "float32":
        kernel = w.constant(rng.random((2, 3, 3, 3)).astype("float32"))
    else:
        kernel = w.constant(rng.integers(-127, 128, (2, 3, 3, 3)).astype("int8"), 0.01)
    y = w.tensor((1, 1, 1, 2), dtype, **({} if not q else {"scale": 0.2, "zero_point": 0}), signature=(-1, -1, -1, 2))
    w.operator(
        "TRANSPOSE_CONV", [wanted, kernel, x], [y], "TransposeConvOptions", version=2, strideH=2, strideW=2, padding=0
    )
    w.outputs = [y]
    return w.finish()


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_flatten_of_an_open_batch(tmp_path: Path, dtype: str, batch: int) -> None:
    (tmp_path / "m.tflite").write_bytes(_flattening(dtype))
    mod = load(tmp_path / "m.tflite", {"x": (batch, 2, 3, 4)} if batch > 1 else None)
    assert io_spec(mod).inputs[0].shape == (batch, 2, 3, 4) and io_spec(mod).outputs[0].shape == (batch, 24)
    lowered = _LOWER(mod)
    assert dtype == "float32" or not float_remains(lowered)
    x = np.arange(24 * batch).reshape(batch, 2, 3, 4).astype(dtype)
    np.testing.assert_array_equal(Compiled(lowered)(x)[0], x.reshape(batch, 24))


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_sizes_that_the_file_leaves_open(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(_growing(dtype))
    shape = (1, 5, 4, 3)
    mod = load(path, {"x": shape})
    assert io_spec(mod).outputs[0].shape == (1, 10, 8, 2)
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, shape).astype("int8") if dtype == "int8" else rng.random(shape, "float32")
    reference = Reference(path.read_bytes(), shapes=[shape])
    (ours,), (theirs,) = Compiled(_LOWER(mod))(x), reference.run([x])
    if dtype == "int8":
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        LoadError, match=r"\[-1, -1, -1, 3\] has sizes that the file leaves open: .* --input-shape x=1,64,64,3"
    ):
        load(path)
    with pytest.raises(UsageError, match="convert the model again"):
        load(path, {"x": (1, 5, 4, 9)})


def test_from_open_sizes_to_a_checked_run(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(_growing("int8"))
    tvm_cascade.compile(path, target="host", output=tmp_path / "fw", input_shapes={"x": (1, 6, 5, 3)})
    done = tvm_cascade.run(tmp_path / "fw", check=path)
    assert done.ok and done.match and next(iter(done.outputs.values())).shape == (1, 12, 10, 2)


def test_a_shape_may_be_an_output(tmp_path: Path) -> None:
    w = ModelWriter()
    x = w.activation((1, 2, 3), "float32", name="x", signature=(-1, 2, 3))
    shape, y = w.tensor((3,), "int32"), w.tensor((1, 2, 3), "float32", signature=(-1, 2, 3))
    w.operator("SHAPE", [x], [shape], "ShapeOptions", outType=2)
    w.operator("RELU", [x], [y])
    (tmp_path / "m.tflite").write_bytes(w.finish())
    made = Compiled(load(tmp_path / "m.tflite", {"x": (4, 2, 3)}))(-np.ones((4, 2, 3), "float32"))
    np.testing.assert_array_equal(made[0], [4, 2, 3])
    assert not made[1].any()


def test_constants_of_computed_shapes(tmp_path: Path) -> None:
    """What a fill makes, and a broadcast: of the extents that were given, not of those that the file declares."""
    w = ModelWriter()
    x = w.activation((1, 4), "float32", name="x", signature=(-1, 4))
    shape, filled = w.tensor((2,), "int32"), w.tensor((1, 4), "float32", signature=(-1, 4))
    wide, y = (w.tensor((1, 4), "float32", signature=(-1, 4)) for _ in range(2))
    w.operator("SHAPE", [x], [shape], "ShapeOptions", outType=2)
    w.operator("FILL", [shape, w.constant(np.array(2, "float32"))], [filled], "FillOptions")
    row = w.constant(np.array([[1, 2, 3, 4]], "float32"))
    w.operator("BROADCAST_TO", [row, shape], [wide], "BroadcastToOptions", version=2)
    w.operator("ADD", [filled, wide], [y], "AddOptions")
    total = w.tensor((4,), "float32")
    w.operator("SUM", [y, _ints(w, 0)], [total], "ReducerOptions", keepDims=False)
    negative = w.tensor((2,), "int32")
    w.operator("SUB", [shape, _ints(w, 5, 1)], [negative], "SubOptions", fusedActivationFunction=1)
    w.outputs = [total, negative]
    (tmp_path / "m.tflite").write_bytes(w.finish())
    made = Compiled(load(tmp_path / "m.tflite", {"x": (3, 4)}))(np.zeros((3, 4), "float32"))
    np.testing.assert_array_equal(made[0], [9, 12, 15, 18])
    np.testing.assert_array_equal(made[1], [0, 3])
