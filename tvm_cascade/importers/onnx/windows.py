"""Converters for ONNX window operators absent from Relax's importer: MaxPool with indices, and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.importers.onnx.resize import text
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.integer.untyped import te, tirx
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of

Attributes = dict[str, Any]


def pool_with_places(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert MaxPool with its second output, each maximum's index in the flattened input: the first among equals in
    its window, a NaN first. With `storage_order` 1 columns come one after another.
    """
    x, shape = inputs[0], shape_of(inputs[0])
    kernel, rank = [int(k) for k in attrs["kernel_shape"]], len(shape) - 2
    if not 1 <= rank <= 3:
        raise NotImplementedError(f"windows of {rank} axes")
    strides, dilations = ([int(v) for v in attrs.get(name, (1,) * rank)] for name in ("strides", "dilations"))
    pads = [int(p) for p in attrs.get("pads", (0,) * (2 * rank))]
    pool = getattr(relax.op.nn, f"max_pool{rank}d")
    valid = text(attrs, "auto_pad", "NOTSET") == "VALID"
    pads = [0] * (2 * rank) if valid else pads
    values = bb.normalize(pool(x, kernel, strides, pads, dilations, bool(attrs.get("ceil_mode", 0))))
    plane, last = prod(shape[2:]), tirx.const(2**31 - 1, "int32")

    def places(data: Any, maxima: Any) -> Any:
        steps = [te.reduce_axis((0, k)) for k in kernel]

        def first(*i: Any) -> Any:
            at = [o.astype("int32") * s - p + t.astype("int32") * d
                  for o, s, p, t, d in zip(i[2:], strides, pads[:rank], steps, dilations, strict=True)]  # fmt: skip
            inside = tirx.all(*(tirx.all(a >= 0, a < n) for a, n in zip(at, shape[2:], strict=True)))
            held = [tirx.min(tirx.max(a, tirx.const(0, "int32")), tirx.const(n - 1, "int32"))
                    for a, n in zip(at, shape[2:], strict=True)]  # fmt: skip
            element = data(*i[:2], *held)
            found = element.equal(maxima(*i))
            found = tirx.any(found, tirx.isnan(element)) if str(element.ty.dtype).startswith("float") else found
            place: Any = tirx.const(0, "int32")
            for a, n in zip(held, shape[2:], strict=True):
                place = place * n + a
            return te.min(tirx.Select(tirx.all(inside, found), place, last), axis=steps)

        def flat(*i: Any) -> Any:
            place, lane = inner(*i), i[0].astype("int32") * shape[1] + i[1].astype("int32")
            if int(attrs.get("storage_order", 0)):
                rest, turned, size = place, tirx.const(0, "int32"), plane
                for n in reversed(shape[2:]):
                    size //= n
                    turned, rest = turned + tirx.floormod(rest, n) * size, tirx.floordiv(rest, n)
                place = turned
            return (lane * plane + place).astype("int64")

        inner = te.compute(shape_of(values), first, name="window_places")
        return te.compute(shape_of(values), flat, name="pool_places")

    return relax.Tuple([values, bb.emit_te(places, x, values, primfunc_name_hint="pool_places")])


def roi_align(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert RoiAlign of averages, off by half a pixel of scaled boxes; ONNX takes maxima before interpolating, Relax after."""
    x, boxes, images = inputs
    if attrs.get("mode") == b"max":
        raise NotImplementedError("mode max: export it with mode avg")
    otherwise = "half_pixel" if attrs["tvm_custom"]["opset"] >= 16 else "output_half_pixel"
    half, scale = (
        text(attrs, "coordinate_transformation_mode", otherwise) == "half_pixel",
        float(attrs.get("spatial_scale", 1.0)),
    )
    dtype = str(boxes.ty.dtype)
    if half:
        boxes = bb.normalize(relax.op.subtract(boxes, constant(np.asarray(0.5 / scale, dtype))))
    lines = bb.normalize(relax.op.astype(bb.normalize(relax.op.expand_dims(images, 1)), dtype))
    size = (int(attrs.get("output_height", 1)), int(attrs.get("output_width", 1)))
    boxes, ratio = bb.normalize(relax.op.concat([lines, boxes], 1)), int(attrs.get("sampling_ratio", 0))
    return relax.op.vision.roi_align(x, boxes, size, scale, ratio, half, "NCHW", "avg")


def columns_to_image(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert Col2Im (PyTorch's `fold`): each image element sums its overlapping column elements."""
    x, (size, kernel) = inputs[0], (constant_of(v) for v in inputs[1:3])
    if size is None or kernel is None:
        raise NotImplementedError("image_shape or block_shape that the network computes: make it a constant")
    size, kernel, rank = [int(d) for d in size], [int(d) for d in kernel], len(size)
    batch, rows, columns = shape_of(x)
    strides, dilations = ([int(v) for v in attrs.get(name, (1,) * rank)] for name in ("strides", "dilations"))
    pads = [int(p) for p in attrs.get("pads", (0,) * (2 * rank))]
    blocks = [
        (n + before + after - d * (k - 1) - 1) // s + 1
        for n, before, after, d, k, s in zip(size, pads[:rank], pads[rank:], dilations, kernel, strides, strict=True)
    ]
    if prod(blocks) != columns or rows % prod(kernel):
        raise ValueError(f"columns of shape {list(shape_of(x))} for blocks {blocks} of {kernel}")

    def image(data: Any) -> Any:
        steps = [te.reduce_axis((0, k)) for k in kernel]

        def total(*i: Any) -> Any:
            row, column, inside = i[1].astype("int32"), tirx.const(0, "int32"), tirx.const(True, "bool")
            for o, t, before, d, k, s, n in zip(i[2:], steps, pads, dilations, kernel, strides, blocks, strict=False):
                at = o.astype("int32") + before - t.astype("int32") * d
                block = tirx.floordiv(at, s)
                inside = tirx.all(inside, at >= 0, block < n, tirx.floormod(at, s).equal(0))
                block = tirx.min(tirx.max(block, tirx.const(0, "int32")), tirx.const(n - 1, "int32"))
                row, column = row * k + t.astype("int32"), column * n + block
            return te.sum(tirx.Select(inside, data(i[0], row, column), tirx.const(0, data.dtype)), axis=steps)

        return te.compute((batch, rows // prod(kernel), *size), total, name="columns_to_image")

    return bb.emit_te(image, x, primfunc_name_hint="columns_to_image")


def written_lines(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert TensorScatter: write each batch's update into the cache along an axis, with wraparound."""
    cache, update = inputs[0], inputs[1]
    shape, axis = shape_of(cache), int(attrs.get("axis", -2)) % len(shape_of(cache))
    extent, new, wraps = shape[axis], shape_of(update)[axis], text(attrs, "mode", "linear") == "circular"
    starts = inputs[2] if inputs[2] is not None else relax.const(np.zeros(shape[0], "int32"), "int32")

    def written(held: Any, data: Any, begin: Any) -> Any:
        def value(*i: Any) -> Any:
            step = i[axis].astype("int32") - begin[i[0]].astype("int32")
            step = tirx.floormod(step, extent) if wraps else step
            inside = tirx.all(step >= 0, step < new)
            return tirx.if_then_else(inside, data(*i[:axis], step, *i[axis + 1 :]), held(*i))

        return te.compute(shape, value, name="tensor_scatter")

    return bb.emit_te(written, cache, update, starts, primfunc_name_hint="tensor_scatter")
