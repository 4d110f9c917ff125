"""Converters for TFLite operators that move values, if Relax's importer refuses them, is wrong or too slow."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.network import CONVOLUTIONS, Network, Operator, converts, zero_point_of
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.importers.tflite.slices import slices
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import Value, relax


@converts("ARG_MAX", "ARG_MIN")
def _arg(net: Network, op: Operator) -> Value:
    """Casts the indices: Relax gives int64, TFLite the type that both the output and the attribute declare."""
    x, axis = net.get_input_tensors(op)
    largest, made = net.get_op_code_str(op) == "ARG_MAX", net.get_output_tensors(op)[0].tensor.Type()
    if net.options(op, tflite.ArgMaxOptions if largest else tflite.ArgMinOptions).OutputType() != made:
        raise UnsupportedForm("an output of another type than the attribute output_type says")
    declared = net.get_tensor_type_str(made)
    operator = relax.op.argmax if largest else relax.op.argmin
    found = operator(net.get_tensor_expr(x), axis=net.ints(axis)[0], keepdims=False)
    return found if declared == "int64" else relax.op.astype(found, declared)


@converts("CAST")
def _cast(net: Network, op: Operator) -> Value:
    """Cast to the output's type, like TFLite: attributes are ignored, and wrong in some files."""
    source, made = net.get_input_tensors(op)[0], net.get_output_tensors(op)[0]
    return relax.op.astype(net.get_tensor_expr(source), net.get_tensor_type_str(made.tensor.Type()))


@converts("GATHER")
def _gather(net: Network, op: Operator) -> Value:
    """Convert a gather; flatten batch dimensions into the gathered axis and offset each batch's indices. (The importer
    checks constant indices in Python, one by one for every output element.)
    """
    data, indices = net.get_input_tensors(op)
    options = net.options(op, tflite.GatherOptions)
    shape, given = net.shape(data), net.shape(indices)
    axis, count = options.Axis() % len(shape), options.BatchDims() % max(len(given), 1)
    if not count:
        places = net.places(indices, shape[axis])
        return relax.op.take(net.get_tensor_expr(data), places, axis=axis, mode="fast")
    if axis != count:
        raise UnsupportedForm("GATHER with batch dimensions along another axis than the next")
    batches, extent = prod(shape[:count]), shape[count]
    flat = net.bb.emit(relax.op.reshape(net.get_tensor_expr(data), [batches * extent, *shape[count + 1 :]]))
    start = (np.arange(batches, dtype="int32") * extent).reshape(*shape[:count], *([1] * (len(given) - count)))
    places = net.places(indices, extent)
    if net.has_expr(indices.tensor_idx):
        places = net.bb.emit(relax.op.add(places, relax.const(start, "int32")))
    else:
        places = relax.const(places.value.numpy() + start, "int32")
    return relax.op.take(flat, places, axis=0, mode="fast")


@converts("GATHER_ND")
def _gather_nd(net: Network, op: Operator) -> Value:
    """Convert indices into several axes to indices into one flattened axis. Clamp computed indices to their axes first:
    the reference refuses indices outside.
    """
    data, indices = net.get_input_tensors(op)
    shape, extent = net.shape(data), net.shape(indices)[-1]
    extents = shape[:extent]
    places = net.places(indices, np.array(extents))
    strides = [prod(extents[k + 1 :]) for k in range(extent)]
    if net.has_expr(indices.tensor_idx):
        last = relax.const(np.array(extents, "int32") - 1, "int32")
        held = relax.op.minimum(relax.op.maximum(net.bb.emit(places), relax.const(0, "int32")), last)
        steps = relax.const(np.array(strides, "int32"), "int32")
        flat_places = net.bb.emit(relax.op.sum(relax.op.multiply(held, steps), axis=-1))
    else:
        table = np.moveaxis(places.value.numpy(), -1, 0)
        flat_places = relax.const(np.ravel_multi_index(table, extents).astype("int32"), "int32")
    flat = relax.op.reshape(net.get_tensor_expr(data), [prod(extents), *shape[len(extents) :]])
    return relax.op.take(net.bb.emit(flat), flat_places, axis=0, mode="fast")


@converts("SCATTER_ND")
def _scatter_nd(net: Network, op: Operator) -> Value:
    """Gather every element from the updates, followed by a zero row for places without an index."""
    indices, updates, _ = net.get_input_tensors(op)
    output = net.get_output_tensors(op)[0]
    if output.qnn_params:
        raise UnsupportedForm("SCATTER_ND of quantized numbers: their zeros are stored zeros")
    at = np.asarray(net.get_tensor_value(indices)).reshape(-1, net.shape(indices)[-1])
    shape = net.ints(net.get_input_tensors(op)[2])
    extents, rest = shape[: at.shape[1]], shape[at.shape[1] :]
    if ((at < 0) | (at >= np.array(extents))).any():
        raise InvalidForm(f"an index lies outside of the shape {shape}")
    places, count = np.asarray(np.ravel_multi_index(tuple(at.T), tuple(extents))), len(at)
    if len(np.unique(places)) < count:
        raise UnsupportedForm("its indices name a place twice, where the updates are added")
    source = np.full(prod(extents), count, "int32")
    source[places] = np.arange(count)
    rows = net.bb.emit(relax.op.reshape(net.get_tensor_expr(updates), [count, *rest]))
    zeros = relax.const(np.zeros((1, *rest)), str(rows.ty.dtype))
    known = net.bb.emit(relax.op.concat([rows, zeros], 0))
    made = net.bb.emit(relax.op.take(known, relax.const(source, "int32"), axis=0, mode="fast"))
    return relax.op.reshape(made, shape)


@converts("MIRROR_PAD")
def _mirror_pad(net: Network, op: Operator) -> Value:
    """Convert the symmetric mode, which repeats the edge and which the importer refuses, to one gather per axis."""
    data, widths = net.get_input_tensors(op)
    pads = net.ints(widths)
    value = net.get_tensor_expr(data)
    reflects = net.options(op, tflite.MirrorPadOptions).Mode() == tflite.MirrorPadMode.REFLECT
    for extent, *both in zip(net.shape(data), pads[::2], pads[1::2], strict=True):
        if not 0 <= min(both) <= max(both) <= extent - reflects:
            raise InvalidForm(f"pads {both} of an axis of {extent}")
    if reflects:
        return relax.op.nn.pad(value, pad_width=pads, pad_mode="reflect")
    for axis, (extent, before, after) in enumerate(zip(net.shape(data), pads[::2], pads[1::2], strict=True)):
        if before or after:
            places = np.pad(np.arange(extent), (before, after), mode="symmetric").astype("int32")
            value = net.bb.emit(relax.op.take(value, relax.const(places, "int32"), axis=axis, mode="fast"))
    return value


@converts("PACK")
def _pack(net: Network, op: Operator) -> Value:
    """Concatenate reshaped inputs; the importer counts a negative axis from the wrong rank."""
    inputs = net.get_input_tensors(op)
    shape = net.shape(inputs[0])
    axis = net.options(op, tflite.PackOptions).Axis() % (len(shape) + 1)
    unit = [*shape[:axis], 1, *shape[axis:]]
    parts = [net.bb.emit(relax.op.reshape(net.get_tensor_expr(t), unit)) for t in inputs]
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis)


@converts("SELECT")
def _select(net: Network, op: Operator) -> Value:
    """Choose along the first axis by a one-axis condition; the importer chooses along the last."""
    condition, *values = net.get_input_tensors(op)
    chosen, rank = net.get_tensor_expr(condition), len(net.shape(values[0]))
    if len(net.shape(condition)) == 1 < rank:
        chosen = net.bb.emit(relax.op.reshape(chosen, [*net.shape(condition), *[1] * (rank - 1)]))
    return relax.op.where(chosen, *(net.get_tensor_expr(v) for v in values))


@converts("STRIDED_SLICE")
def _strided_slice(net: Network, op: Operator) -> Value:
    """Slice like TFLite's kernels: ends may count from begins, and a begin mask also holds for shrunk axes, against the
    importer.
    """
    data, *limits = net.get_input_tensors(op)
    taken = slices(net.options(op, tflite.StridedSliceOptions), net.shape(data), *map(net.ints, limits))
    value, axes = net.get_tensor_expr(data), [k for k, s in enumerate(taken.axes) if not s.whole]
    if axes:
        begin, end, strides = (
            [getattr(taken.axes[k], name) for k in axes] for name in ("begin", "relax_end", "stride")
        )
        value = relax.op.strided_slice(value, axes=axes, begin=begin, end=end, strides=strides)
    left = [s.extent for s in taken.axes]
    return value if axes and taken.shape == left else relax.op.reshape(net.bb.emit(value), taken.shape)


@converts("SPLIT")
def _split(net: Network, op: Operator) -> Value:
    """Split; a single part is the input itself (the importer binds a tuple in place of a tensor)."""
    axis, data = net.get_input_tensors(op)
    parts, at = net.options(op, tflite.SplitOptions).NumSplits(), net.ints(axis)[0]
    if parts != op.OutputsLength() or net.shape(data)[at] % parts:
        raise InvalidForm(f"num_splits {parts} of {net.shape(data)}, axis {at}")
    value = net.get_tensor_expr(data)
    return value if parts == 1 else relax.op.split(value, parts, axis=at)


@converts("UNPACK")
def _unpack(net: Network, op: Operator) -> Value:
    """Checks the number of parts, by which the importer loops, against the axis and the outputs."""
    (data,) = net.get_input_tensors(op)
    options = net.options(op, tflite.UnpackOptions)
    shape, parts, axis = net.shape(data), options.Num(), options.Axis()
    if not -len(shape) <= axis < len(shape) or not parts == shape[axis] == op.OutputsLength():
        raise InvalidForm(f"num {parts} of {shape}, axis {axis}, for {op.OutputsLength()} outputs")
    return net.convert_unpack(op)


@converts("SPLIT_V")
def _split_v(net: Network, op: Operator) -> Value | list[Value | None]:
    """Split by sizes; a size of -1 is the rest of the axis. Empty parts are left out, and nobody may read them."""
    data, sizes, axis = net.get_input_tensors(op)
    shape, at = net.shape(data), net.ints(axis)[0]
    extents = net.ints(sizes)
    known = sum(e for e in extents if e >= 0)
    extents = [shape[at] - known if e < 0 else e for e in extents]
    if min(extents) < 0 or sum(extents) != shape[at] or len(extents) != op.OutputsLength():
        raise InvalidForm(f"size_splits {extents[:8]} of an axis of {shape[at]}")
    value, outputs = net.get_tensor_expr(data), net.get_output_tensors(op)
    kept = [k for k, extent in enumerate(extents) if extent or _is_read(net, outputs[k])]
    ends = [int(e) for e in np.cumsum([extents[k] for k in kept])[:-1]]
    if len(kept) == len(outputs):
        return value if not ends else relax.op.split(value, ends, axis=at)
    parts = net.bb.emit(relax.op.split(value, ends, axis=at)) if ends else None
    made = [value if parts is None else relax.TupleGetItem(parts, place) for place in range(len(kept))]
    return [made[kept.index(k)] if k in kept else None for k in range(len(outputs))]


def _is_read(net: Network, tensor: stock.TensorWrapper) -> bool:
    """Return True if an operator reads a tensor, or the subgraph returns it."""
    graph = net.subgraph
    lists = [graph.OutputsAsNumpy(), *(graph.Operators(i).InputsAsNumpy() for i in range(graph.OperatorsLength()))]
    return any(tensor.tensor_idx in indices for indices in lists)


@converts("SQUEEZE")
def _squeeze(net: Network, op: Operator) -> Value:
    """Remove axes; without a list, all axes of extent 1 (the importer removes none)."""
    data = net.get_input_tensors(op)[0]
    shape = net.shape(data)
    options = net.options(op, tflite.SqueezeOptions) if op.BuiltinOptions() is not None else None
    named = options is not None and options.SqueezeDimsLength() > 0
    axes = {int(a) % len(shape) for a in options.SqueezeDimsAsNumpy()} if options and named else None
    kept = [e for d, e in enumerate(shape) if (e != 1 if axes is None else d not in axes)]
    return relax.op.reshape(net.get_tensor_expr(data), kept)


@converts("RESHAPE")
def _reshape(net: Network, op: Operator) -> Value:
    """Reshape to the second input, else to the attribute new_shape; if computed or absent, to the output's declared
    shape, provided the element counts agree.
    """
    data, *operands = net.get_input_tensors(op)
    options = net.options(op, tflite.ReshapeOptions) if op.BuiltinOptions() is not None else None
    count, wanted = prod(net.shape(data)), None
    if operands and operands[0].tensor_idx >= 0:
        wanted = net.known_shape(operands[0], "shape (input 1)")
    elif options is not None and options.NewShapeLength():
        wanted = [int(d) for d in options.NewShapeAsNumpy()]
    if wanted is None:
        declared = net.get_output_tensors(op)[0].tensor
        wanted = [int(d) for d in declared.ShapeAsNumpy()]
        if prod(wanted) != count:
            computed = "its shape (input 1) is computed" if operands else "it has no shape"
            raise UnsupportedForm(f"{computed}, and the output's, {wanted}, is not one of {count} elements")
    return relax.op.reshape(net.get_tensor_expr(data), [*wanted, 2] if net.is_complex(data) else wanted)


@converts("EXPAND_DIMS")
def _expand_dims(net: Network, op: Operator) -> Value:
    """Convert to a reshape, because the importer calls Relax's `expand_dims` with a single argument too many."""
    data, axis = net.get_input_tensors(op)
    shape = net.shape(data)
    at = net.ints(axis)[0] % (len(shape) + 1)
    return relax.op.reshape(net.get_tensor_expr(data), [*shape[:at], 1, *shape[at:]])


@converts("SPACE_TO_BATCH_ND")
def _space_to_batch(net: Network, op: Operator) -> Value:
    """Pad, then views and a transpose: the importer calls a packed function that no target but the host has."""
    data, block, widths = net.get_input_tensors(op)
    output = net.get_output_tensors(op)[0]
    blocks, pads = net.ints(block), net.ints(widths)
    fill = float(zero_point_of(output)) if output.qnn_params else 0.0
    n, *spatial = net.shape(data)
    rest = spatial[len(blocks) :]
    value = net.get_tensor_expr(data)
    if any(pads):
        value = net.bb.emit(relax.op.nn.pad(value, pad_width=[0, 0, *pads, *([0, 0] * len(rest))], pad_value=fill))
    inner = [d + pads[2 * i] + pads[2 * i + 1] for i, d in enumerate(spatial[: len(blocks)])]
    split = [v for d, b in zip(inner, blocks, strict=True) for v in (d // b, b)]
    count = len(blocks)
    order = [*(2 + 2 * i for i in range(count)), 0, *(1 + 2 * i for i in range(count))]
    order += range(1 + 2 * count, 1 + 2 * count + len(rest))
    value = _rearranged(net, value, [n, *split, *rest], order)
    return relax.op.reshape(
        value, [n * int(np.prod(blocks)), *(d // b for d, b in zip(inner, blocks, strict=True)), *rest]
    )


@converts("BATCH_TO_SPACE_ND")
def _batch_to_space(net: Network, op: Operator) -> Value:
    """Convert BATCH_TO_SPACE_ND to reshapes, a transpose and a crop; behind a dilated convolution, to that convolution."""
    folded = _dilated(net, op)
    if folded is not None:
        return folded
    data, block, crop = net.get_input_tensors(op)
    blocks, crops = net.ints(block), net.ints(crop)
    n, *spatial = net.shape(data)
    count, rest = len(blocks), spatial[len(blocks) :]
    batch = n // int(np.prod(blocks))
    order = [count, *(v for i in range(count) for v in (count + 1 + i, i))]
    order += range(2 * count + 1, 2 * count + 1 + len(rest))
    value = _rearranged(net, net.get_tensor_expr(data), [*blocks, batch, *spatial], order)
    inner = [d * b for d, b in zip(spatial[:count], blocks, strict=True)]
    value = relax.op.reshape(value, [batch, *inner, *rest])
    if not any(crops):
        return value
    axes = list(range(1, count + 1))
    ends = [d - e for d, e in zip(inner, crops[1::2], strict=True)]
    return relax.op.strided_slice(net.bb.emit(value), axes=axes, begin=crops[::2], end=ends)


def _rearranged(net: Network, value: Value, shape: Sequence[int], order: Sequence[int]) -> Value:
    split = net.bb.emit(relax.op.reshape(value, list(shape)))
    return net.bb.emit(relax.op.permute_dims(split, list(order)))


def _dilated(net: Network, op: Operator) -> Value | None:
    """Convert SPACE_TO_BATCH_ND, a convolution and the BATCH_TO_SPACE_ND `op` to one dilated convolution; None if the
    operators differ.

    Both compute equal sums: result pixel `o` reads the padded input at `o + crop`, a block apart. So the blocks become
    the dilation, and the pads minus crops the padding; no map is rearranged.
    """
    data, block, crop = net.get_input_tensors(op)
    convolution = _producer(net, data)
    signal = convolution is not None and net.get_op_code_str(convolution) == "RESHAPE"  # of Conv1D, in rank 3
    if signal and convolution is not None:
        data = net.get_input_tensors(convolution)[0]
        convolution = _producer(net, data)
    if convolution is None or not _is_plain(net, convolution):
        return None
    spread = _producer(net, net.get_input_tensors(convolution)[0])
    if signal and spread is not None and net.get_op_code_str(spread) == "RESHAPE":
        spread = _producer(net, net.get_input_tensors(spread)[0])
    if spread is None or net.get_op_code_str(spread) != "SPACE_TO_BATCH_ND":
        return None
    source, own_block, pad = net.get_input_tensors(spread)
    blocks, crops, pads = net.ints(block), net.ints(crop), net.ints(pad)
    if net.ints(own_block) != blocks or (len(blocks), len(net.shape(source))) != ((1, 3) if signal else (2, 4)):
        return None
    padding = [p - c for p, c in zip(pads, crops, strict=True)]
    if min(padding) < 0:
        return None
    expr, made = net.get_tensor_expr(source), net.get_tensor_expr(data)
    if not signal:
        top, bottom, left, right = padding
        return _dilate(net, made, expr, blocks, [top, left, bottom, right])
    n, width, channels = net.shape(source)
    read, rows = net.get_input_tensors(convolution)[0], net.shape(data)
    if net.shape(read)[1:2] + rows[1:2] != [1, 1] or net.shape(read)[3] != channels:
        return None
    row = net.bb.emit(relax.op.reshape(expr, [n, 1, width, channels]))
    value = _dilate(net, made, row, [1, *blocks], [0, padding[0], 0, padding[1]])
    return None if value is None else relax.op.reshape(net.bb.emit(value), net.shape(net.get_output_tensors(op)[0]))


def _producer(net: Network, tensor: stock.TensorWrapper) -> Operator | None:
    for i in range(net.subgraph.OperatorsLength()):
        op = net.subgraph.Operators(i)
        if tensor.tensor_idx in op.OutputsAsNumpy():
            return op
    return None


def _is_plain(net: Network, op: Operator) -> bool:
    """Return True for a convolution without stride, dilation or padding."""
    kind = CONVOLUTIONS.get(net.get_op_code_str(op))
    if kind is None:
        return False
    options = net.options(op, getattr(tflite, kind))
    steps = (options.StrideH(), options.StrideW(), options.DilationHFactor(), options.DilationWFactor())
    return options.Padding() == tflite.Padding.VALID and steps == (1, 1, 1, 1)


def _dilate(net: Network, value: Value, source: Value, blocks: list[int], padding: list[int]) -> Value | None:
    """Recompute `value`, a convolution with elementwise operators behind, on `source`."""
    call = net.bb.lookup_binding(value) if isinstance(value, relax.Var) else value
    if not isinstance(call, relax.Call):
        return None
    if call.op.name != "relax.nn.conv2d":
        inner = _dilate(net, call.args[0], source, blocks, padding)
        return None if inner is None else relax.Call(call.op, [inner, *call.args[1:]], call.attrs)
    data, attrs = call.args[0], call.attrs
    stored = Stored.read_by(net.bb.lookup_binding(data) if isinstance(data, relax.Var) else data)
    if stored is not None:
        source = stored.along(source, stored.axis).reals
    return relax.op.nn.conv2d(
        source,
        call.args[1],
        strides=[1, 1],
        padding=padding,
        dilation=blocks,
        groups=int(attrs.groups),
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
    )
