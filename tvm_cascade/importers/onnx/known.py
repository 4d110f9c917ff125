"""Converters for ONNX operators whose result or source places follow from shapes and constants, or with unsupported
forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of

ALIGNED = frozenset(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"))
Attributes = dict[str, Any]
Converter = Callable[[Any, Sequence[Value], Attributes], Value | None]


def aligned(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Return an `ALIGNED` operator's second operand before opset 7: its first axis matches the first operand's `axis`.
    Without that attribute, the last axes match, as in all later opsets.
    """
    (shape, given), axis = (shape_of(v) for v in inputs[:2]), int(attrs.get("axis", -1))
    behind = len(shape) - axis - len(given)
    if axis < 0 or prod(given) == 1 or behind == 0:
        return inputs[1]
    if behind < 0 or tuple(given) != tuple(shape[axis : axis + len(given)]):
        raise ValueError(f"a second operand of shape {list(given)} at axis {axis} of one of shape {list(shape)}")
    return bb.normalize(relax.op.reshape(inputs[1], (*given, *[1] * behind)))


def optional_has_element(_bb: Any, inputs: Sequence[Value], _attrs: Attributes) -> Value | None:
    """Convert OptionalHasElement without an input: false."""
    return None if inputs and inputs[0] is not None else relax.const(False, "bool")


def sequence_length(_bb: Any, inputs: Sequence[Value], _attrs: Attributes) -> Value:
    """Convert SequenceLength, for a sequence with a fixed number of tensors."""
    fields = getattr(inputs[0].ty, "fields", None)
    if fields is None:
        raise NotImplementedError("a sequence whose length the network computes")
    return relax.const(len(fields), "int64")


def eye_like(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert EyeLike: ones on a diagonal, with the type `dtype`; the importer allows only the input's type."""
    dtype = (
        np.dtype(helper.tensor_dtype_to_np_dtype(attrs["dtype"])).name if "dtype" in attrs else str(inputs[0].ty.dtype)
    )
    return constant(np.eye(*shape_of(inputs[0]), k=int(attrs.get("k", 0)), dtype=dtype))


def compress(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert Compress with a constant condition to a gather at the true places."""
    condition = constant_of(inputs[1])
    if condition is None:
        raise NotImplementedError("a condition that the network computes: make it a constant")
    places = relax.const(np.flatnonzero(condition), "int32")
    axis = int(attrs["axis"]) % len(shape_of(inputs[0])) if "axis" in attrs else 0
    x = inputs[0] if "axis" in attrs else bb.normalize(relax.op.reshape(inputs[0], (-1,)))
    if condition.size > shape_of(x)[axis]:
        raise NotImplementedError(f"a condition of {condition.size} elements, where there are {shape_of(x)[axis]}")
    return relax.op.take(x, places, axis)


def dropout(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert Dropout to its input; nothing is masked, and the second output says so. In training mode only with ratio
    0.
    """
    mode = np.array(False) if inputs[2] is None else constant_of(inputs[2])
    training = mode is None or bool(mode.any())
    ratio = constant_of(inputs[1]) if inputs[1] is not None else np.float32(0.5)
    if training and (ratio is None or ratio.any()):
        raise NotImplementedError("training_mode, in which results are drawn by chance: export it for inference")
    kept = relax.const(np.ones(shape_of(inputs[0]), "bool"), "bool")
    return relax.Tuple([inputs[0], kept]) if int(attrs["tvm_custom"]["num_outputs"]) > 1 else inputs[0]


def shape_constant(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert Shape for a known shape to a constant, possibly a network output."""
    dims = getattr(getattr(inputs[0].ty, "shape", None), "values", None)
    if dims is None or not all(hasattr(d, "value") for d in dims):
        return None
    return constant(np.array(shape_of(inputs[0])[attrs.get("start", 0) : attrs.get("end")], "int64"))


def slice_by_attributes(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert Slice before opset 10, with bounds as attributes; the importer knows only input bounds."""
    if "starts" not in attrs:
        return None
    shape = shape_of(inputs[0])
    axes = [int(a) % len(shape) for a in attrs.get("axes", range(len(attrs["starts"])))]
    bounds = [slice(b, e).indices(shape[a])[:2] for b, e, a in zip(attrs["starts"], attrs["ends"], axes, strict=True)]
    begin, end = zip(*bounds, strict=True)
    return relax.op.strided_slice(inputs[0], axes=axes, begin=list(begin), end=list(end))


def reverse_sequence(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert ReverseSequence with constant lengths to a single gather over all steps and batches in a single axis."""
    x, lengths = inputs[0], constant_of(inputs[1])
    if lengths is None:
        raise NotImplementedError("sequence_lens that the network computes: make them a constant")
    time, batch = int(attrs.get("time_axis", 0)), int(attrs.get("batch_axis", 1))
    shape = shape_of(x)
    if lengths.size != shape[batch] or lengths.min() < 0 or lengths.max() > shape[time]:
        raise NotImplementedError(
            f"sequence_lens {lengths.tolist()} of {shape[batch]} sequences of {shape[time]} steps"
        )
    step, length = np.arange(shape[time])[None], lengths.reshape(-1, 1)
    places = np.where(step < length, length - 1 - step, step)  # of each batch
    places = places + np.arange(shape[batch])[:, None] * shape[time]
    places = places if batch < time else places.T
    if batch > time:
        x = bb.normalize(relax.op.permute_dims(x, [1, 0, *range(2, len(shape))]))
    flat = bb.normalize(relax.op.reshape(x, (shape[0] * shape[1], *shape[2:])))
    taken = bb.normalize(relax.op.take(flat, relax.const(places.reshape(-1), "int32"), 0))
    return relax.op.reshape(taken, shape)


def space_to_depth(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value | None:
    """Convert SpaceToDepth with blocks last among the channels, a mode since opset 28 ignored by the importer."""
    if attrs.get("mode", b"DCR") == b"DCR":
        return None
    size, (batch, channels, rows, columns) = int(attrs["blocksize"]), shape_of(inputs[0])
    rows, columns = rows // size, columns // size
    blocks = bb.normalize(relax.op.reshape(inputs[0], (batch, channels, rows, size, columns, size)))
    moved = bb.normalize(relax.op.permute_dims(blocks, [0, 1, 3, 5, 2, 4]))
    return relax.op.reshape(moved, (batch, channels * size * size, rows, columns))


def refused(found: Callable[[Sequence[Value], Attributes], str]) -> Converter:
    """Return a converter that leaves an operator to the importer unless `found` names an unsupported form."""

    def convert(_bb: Any, inputs: Sequence[Value], attrs: Attributes) -> None:
        if what := found(inputs, attrs):
            raise NotImplementedError(what)

    return convert


def computed_size(inputs: Sequence[Value], _attrs: Attributes) -> str:
    """Refuse a MaxUnpool with a third input."""
    computed = inputs[2] is not None and constant_of(inputs[2]) is None
    return "output_shape that the network computes: make it a constant" if computed else ""
