"""Lists in loops, in the form of TFLite's converter: tensors with a single row replaced in every step.

A step cuts the rows before and after its own out of the list (SLICE) and joins them around the new row (CONCATENATION),
or uses DYNAMIC_UPDATE_SLICE. An unrolled loop would copy the list in every step, and slices at either end are empty. So
such tensors are not emitted, but kept as parts, stretches of rows, until another operator reads the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.kept import Part
from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import Network, Operator, converts
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.passes.main_rewriting import Value, relax


@converts("CONCATENATION")
def _concatenation(net: Network, op: Operator) -> Value | None:
    """Convert a concatenation; in a loop a concatenation of rows becomes a list."""
    tensors, output = net.get_input_tensors(op), net.get_output_tensors(op)[0]
    options = net.options(op, tflite.ConcatenationOptions)
    if not any(t.tensor_idx in net.parts for t in tensors):
        return net.convert_concatenation(op)
    rank = max(len(net.shape(t)) for t in tensors)
    if options.Axis() not in (0, -rank) or options.FusedActivationFunction() or _rescales(net, tensors, output):
        return net.convert_concatenation(op)
    net.parts[output.tensor_idx] = tuple(p for t in tensors for p in _rows(net, t))
    return None


@converts("SLICE")
def _slice(net: Network, op: Operator) -> Value | None:
    """Convert a slice; in a loop a slice of whole rows becomes a list, possibly empty."""
    data, *operands = net.get_input_tensors(op)
    if not net.nested or any(net.has_expr(t.tensor_idx) for t in operands):
        return net.convert_slice(op)
    (begin, size), shape = (net.ints(t) for t in operands), net.shape(data)
    if not shape or len(begin) != len(shape) or any(begin[1:]):
        return net.convert_slice(op)
    if any(s not in (-1, d) for s, d in zip(size[1:], shape[1:], strict=True)):
        return net.convert_slice(op)
    end = shape[0] if size[0] < 0 else begin[0] + size[0]
    if not 0 <= begin[0] <= end <= shape[0]:
        raise InvalidForm(f"rows {begin[0]} to {end} of {shape[0]}")
    net.parts[net.get_output_tensors(op)[0].tensor_idx] = tuple(_cut(net, _rows(net, data), begin[0], end))
    return None


@converts("DYNAMIC_UPDATE_SLICE")
def _update(net: Network, op: Operator) -> Value | None:
    """Replace whole list rows at a position known at compile time."""
    data, update, place = net.get_input_tensors(op)
    if net.has_expr(place.tensor_idx):
        raise UnsupportedForm("an update at a computed place")
    shape, given = net.shape(data), net.shape(update)
    if not shape or len(given) != len(shape) or given[1:] != shape[1:] or given[0] > shape[0]:
        raise UnsupportedForm("an update of other than whole rows")
    begin = min(max(net.ints(place)[0], 0), shape[0] - given[0])
    rows, new = _rows(net, data), _rows(net, update)
    before, after = _cut(net, rows, 0, begin), _cut(net, rows, begin + given[0], shape[0])
    net.parts[net.get_output_tensors(op)[0].tensor_idx] = (*before, *new, *after)
    return None


def _rescales(net: Network, tensors: Sequence[Any], output: Any) -> bool:
    """Return True if a concatenation of stored values may have to rescale an operand."""
    kinds = {
        (float(q["scale"].value.numpy().reshape(-1)[0]), int(q["zero_point"].value.numpy().reshape(-1)[0]))
        for q in (t.qnn_params for t in (*tensors, output))
        if q is not None
    }
    return len(kinds) > 1


def _rows(net: Network, tensor: Any) -> tuple[Part, ...]:
    """Return any tensor's parts: a tensor without a list is its only part."""
    parts = net.parts.get(tensor.tensor_idx)
    if parts is not None:
        return parts
    if net.has_expr(tensor.tensor_idx):
        value = net.get_expr(tensor.tensor_idx)
        return (Part(int(value.ty.shape.values[0]), value),)
    data = np.asarray(net.get_tensor_value(tensor))
    return (Part(len(data), data),)


def _cut(net: Network, parts: Sequence[Part], begin: int, end: int) -> Iterator[Part]:
    """Yield the rows from `begin` to `end`."""
    at = 0
    for part in parts:
        first, last = max(begin - at, 0), min(end - at, part.rows)
        if first < last:
            value = part.cut(first, last)
            emitted = isinstance(value, (np.ndarray, relax.Var)) or value is part.value
            yield Part(last - first, value if emitted else net.bb.emit(value))
        at += part.rows
