"""Converters of TFLite operators that move values, where Relax's importer refuses them, is wrong or too slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite.model import tflite
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm
from tvm_cascade.importers.tflite.slices import slices
from tvm_cascade.importers.values import Value, relax

Operator: TypeAlias = Any  # of the file


CONVERTERS: dict[str, str] = {}  # TFLite's name of an operator -> the method that converts it


def converts(*operators: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Decorator that registers a method as the converter of operators, by TFLite's names."""

    def mark(method: Callable[..., Value]) -> Callable[..., Value]:
        CONVERTERS.update(dict.fromkeys(operators, method.__name__))
        return method

    return mark


def scale_of(tensor: Any) -> np.float32:
    """The scale of a quantized tensor; raises `OpNotImplemented` where it has one for every channel."""
    scales = tensor.qnn_params["scale"].value.numpy()
    if scales.size != 1:
        raise UnsupportedForm("an activation with a scale for every channel")
    return np.float32(scales.reshape(-1)[0])


def zero_point_of(tensor: Any) -> int:
    """The zero point of a quantized tensor."""
    return int(tensor.qnn_params["zero_point"].value.numpy().reshape(-1)[0])


CONVOLUTIONS = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}


class MoveConverters(stock.OperatorConverter):
    """Converters of operators that move values, and helpers of all converters."""

    def options(self, op: Operator, kind: type) -> Any:
        """The operator's table of options."""
        options = kind()
        table = op.BuiltinOptions()
        if table is None:
            raise InvalidForm(f"{kind.__name__} are missing")
        options.Init(table.Bytes, table.Pos)
        return options

    def _shape(self, tensor: stock.TensorWrapper) -> list[int]:
        return stock.to_int_list(self.get_tensor_shape(tensor))

    def _ints(self, tensor: stock.TensorWrapper) -> list[int]:
        """The elements of a constant integer operand, flattened; raises `OpNotImplemented` if it is computed."""
        if self.has_expr(tensor.tensor_idx):
            raise UnsupportedForm("an operand that must be constant is computed")
        return [int(v) for v in self.get_tensor_value(tensor).reshape(-1)]

    def _real(self, tensor: stock.TensorWrapper) -> Value:
        """A tensor as real numbers: dequantized if it is quantized."""
        value = self.get_tensor_expr(tensor)
        return self.dequantize(value, tensor) if tensor.qnn_params else value

    def _stored(self, value: Value, op: Operator) -> Value:
        """Real numbers in the form of the operator's output: quantized if it is."""
        output = self.get_output_tensors(op)[0]
        return self.quantize(value, output) if output.qnn_params else value

    @converts("ARG_MAX", "ARG_MIN")
    def _arg(self, op: Operator) -> Value:
        """Casts the indices: Relax gives int64, TFLite the type that both the output and the attribute declare."""
        x, axis = self.get_input_tensors(op)
        largest, made = self.get_op_code_str(op) == "ARG_MAX", self.get_output_tensors(op)[0].tensor.Type()
        if self.options(op, tflite.ArgMaxOptions if largest else tflite.ArgMinOptions).OutputType() != made:
            raise UnsupportedForm("an output of another type than the attribute output_type says")
        declared = self.get_tensor_type_str(made)
        operator = relax.op.argmax if largest else relax.op.argmin
        found = operator(self.get_tensor_expr(x), axis=self._ints(axis)[0], keepdims=False)
        return found if declared == "int64" else relax.op.astype(found, declared)

    @converts("CAST")
    def _cast(self, op: Operator) -> Value:
        """To the type of the output, as TFLite casts: it reads no attribute, and some files have them wrong."""
        source, made = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        return relax.op.astype(self.get_tensor_expr(source), self.get_tensor_type_str(made.tensor.Type()))

    @converts("GATHER")
    def _gather(self, op: Operator) -> Value:
        """With batch dimensions, batches are flattened into the gathered axis and each batch's indices offset into it.
        (The importer checks constant indices in Python, one by one for every output element.)"""
        data, indices = self.get_input_tensors(op)
        options = self.options(op, tflite.GatherOptions)
        shape, given = self._shape(data), self._shape(indices)
        axis, count = options.Axis() % len(shape), options.BatchDims() % max(len(given), 1)
        if not count:
            places = self._places(indices, shape[axis])
            return relax.op.take(self.get_tensor_expr(data), places, axis=axis, mode="fast")
        if axis != count:
            raise UnsupportedForm("GATHER with batch dimensions along another axis than the next")
        batches, extent = prod(shape[:count]), shape[count]
        flat = self.bb.emit(relax.op.reshape(self.get_tensor_expr(data), [batches * extent, *shape[count + 1 :]]))
        start = (np.arange(batches, dtype="int32") * extent).reshape(*shape[:count], *([1] * (len(given) - count)))
        places = self._places(indices, extent)
        if self.has_expr(indices.tensor_idx):
            places = self.bb.emit(relax.op.add(places, relax.const(start, "int32")))
        else:
            places = relax.const(places.value.numpy() + start, "int32")
        return relax.op.take(flat, places, axis=0, mode="fast")

    @converts("GATHER_ND")
    def _gather_nd(self, op: Operator) -> Value:
        """Indices of several axes become indices into one axis, to which these are flattened. Computed ones are held within
        their axes first: the reference refuses to run with others."""
        data, indices = self.get_input_tensors(op)
        shape, extent = self._shape(data), self._shape(indices)[-1]
        extents = shape[:extent]
        places = self._places(indices, np.array(extents))
        strides = [prod(extents[k + 1 :]) for k in range(extent)]
        if self.has_expr(indices.tensor_idx):
            last = relax.const(np.array(extents, "int32") - 1, "int32")
            held = relax.op.minimum(relax.op.maximum(self.bb.emit(places), relax.const(0, "int32")), last)
            steps = relax.const(np.array(strides, "int32"), "int32")
            flat_places = self.bb.emit(relax.op.sum(relax.op.multiply(held, steps), axis=-1))
        else:
            table = np.moveaxis(places.value.numpy(), -1, 0)
            flat_places = relax.const(np.ravel_multi_index(table, extents).astype("int32"), "int32")
        flat = relax.op.reshape(self.get_tensor_expr(data), [prod(extents), *shape[len(extents) :]])
        return relax.op.take(self.bb.emit(flat), flat_places, axis=0, mode="fast")

    def _places(self, indices: stock.TensorWrapper, extent: int | np.ndarray) -> Value:
        """Indices as int32; constant ones are checked against `extent`."""
        if self.has_expr(indices.tensor_idx):
            return relax.op.astype(self.get_expr(indices.tensor_idx), "int32")
        table = np.asarray(self.get_tensor_value(indices))
        if table.size and not (np.all(table >= 0) and np.all(table < extent)):
            raise InvalidForm("indices lie outside of the tensor")
        return relax.const(table.astype("int32"), "int32")

    @converts("MIRROR_PAD")
    def _mirror_pad(self, op: Operator) -> Value:
        """The symmetric mode, which repeats the edge and which the importer refuses, becomes a gather for each axis."""
        data, widths = self.get_input_tensors(op)
        pads = self._ints(widths)
        value = self.get_tensor_expr(data)
        reflects = self.options(op, tflite.MirrorPadOptions).Mode() == tflite.MirrorPadMode.REFLECT
        for extent, *both in zip(self._shape(data), pads[::2], pads[1::2], strict=True):
            if not 0 <= min(both) <= max(both) <= extent - reflects:
                raise InvalidForm(f"pads {both} of an axis of {extent}")
        if reflects:
            return relax.op.nn.pad(value, pad_width=pads, pad_mode="reflect")
        for axis, (extent, before, after) in enumerate(zip(self._shape(data), pads[::2], pads[1::2], strict=True)):
            if before or after:
                places = np.pad(np.arange(extent), (before, after), mode="symmetric").astype("int32")
                value = self.bb.emit(relax.op.take(value, relax.const(places, "int32"), axis=axis, mode="fast"))
        return value

    @converts("PACK")
    def _pack(self, op: Operator) -> Value:
        """A concatenation of reshaped inputs; the importer counts a negative axis from the wrong rank."""
        inputs = self.get_input_tensors(op)
        shape = self._shape(inputs[0])
        axis = self.options(op, tflite.PackOptions).Axis() % (len(shape) + 1)
        unit = [*shape[:axis], 1, *shape[axis:]]
        parts = [self.bb.emit(relax.op.reshape(self.get_tensor_expr(t), unit)) for t in inputs]
        return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis)

    @converts("SELECT")
    def _select(self, op: Operator) -> Value:
        """A condition of one axis chooses along the first axis; the importer takes it for one along the last."""
        condition, *values = self.get_input_tensors(op)
        chosen, rank = self.get_tensor_expr(condition), len(self._shape(values[0]))
        if len(self._shape(condition)) == 1 < rank:
            chosen = self.bb.emit(relax.op.reshape(chosen, [*self._shape(condition), *[1] * (rank - 1)]))
        return relax.op.where(chosen, *(self.get_tensor_expr(v) for v in values))

    @converts("STRIDED_SLICE")
    def _strided_slice(self, op: Operator) -> Value:
        """A slice as TFLite's kernels take it: ends may count from begins, and a begin mask holds for shrunk axes too, which
        the importer does otherwise."""
        data, *limits = self.get_input_tensors(op)
        taken = slices(self.options(op, tflite.StridedSliceOptions), self._shape(data), *map(self._ints, limits))
        value, axes = self.get_tensor_expr(data), [k for k, s in enumerate(taken.axes) if not s.whole]
        if axes:
            begin, end, strides = (
                [getattr(taken.axes[k], name) for k in axes] for name in ("begin", "relax_end", "stride")
            )
            value = relax.op.strided_slice(value, axes=axes, begin=begin, end=end, strides=strides)
        left = [s.extent for s in taken.axes]
        return value if axes and taken.shape == left else relax.op.reshape(self.bb.emit(value), taken.shape)

    @converts("SPLIT")
    def _split(self, op: Operator) -> Value:
        """A split into one part is its input (the importer binds a tuple where a tensor is expected)."""
        axis, data = self.get_input_tensors(op)
        parts, at = self.options(op, tflite.SplitOptions).NumSplits(), self._ints(axis)[0]
        if parts != op.OutputsLength() or self._shape(data)[at] % parts:
            raise InvalidForm(f"num_splits {parts} of {self._shape(data)}, axis {at}")
        value = self.get_tensor_expr(data)
        return value if parts == 1 else relax.op.split(value, parts, axis=at)

    @converts("UNPACK")
    def _unpack(self, op: Operator) -> Value:
        """Checks the number of parts, by which the importer loops, against the axis and the outputs."""
        (data,) = self.get_input_tensors(op)
        options = self.options(op, tflite.UnpackOptions)
        shape, parts, axis = self._shape(data), options.Num(), options.Axis()
        if not -len(shape) <= axis < len(shape) or not parts == shape[axis] == op.OutputsLength():
            raise InvalidForm(f"num {parts} of {shape}, axis {axis}, for {op.OutputsLength()} outputs")
        return self.convert_unpack(op)

    @converts("SPLIT_V")
    def _split_v(self, op: Operator) -> Value | list[Value | None]:
        """One size may be -1: the rest of the axis. Parts of no elements are left out, which nobody may read."""
        data, sizes, axis = self.get_input_tensors(op)
        shape, at = self._shape(data), self._ints(axis)[0]
        extents = self._ints(sizes)
        known = sum(e for e in extents if e >= 0)
        extents = [shape[at] - known if e < 0 else e for e in extents]
        if min(extents) < 0 or sum(extents) != shape[at] or len(extents) != op.OutputsLength():
            raise InvalidForm(f"size_splits {extents[:8]} of an axis of {shape[at]}")
        value, outputs = self.get_tensor_expr(data), self.get_output_tensors(op)
        kept = [k for k, extent in enumerate(extents) if extent or self._is_read(outputs[k])]
        ends = [int(e) for e in np.cumsum([extents[k] for k in kept])[:-1]]
        if len(kept) == len(outputs):
            return value if not ends else relax.op.split(value, ends, axis=at)
        parts = self.bb.emit(relax.op.split(value, ends, axis=at)) if ends else None
        made = [value if parts is None else relax.TupleGetItem(parts, place) for place in range(len(kept))]
        return [made[kept.index(k)] if k in kept else None for k in range(len(outputs))]

    def _is_read(self, tensor: stock.TensorWrapper) -> bool:
        """Return True if an operator reads a tensor, or the subgraph returns it."""
        graph = self.subgraph
        lists = [graph.OutputsAsNumpy(), *(graph.Operators(i).InputsAsNumpy() for i in range(graph.OperatorsLength()))]
        return any(tensor.tensor_idx in indices for indices in lists)

    @converts("SQUEEZE")
    def _squeeze(self, op: Operator) -> Value:
        """Without axes, all of extent 1 are removed; the importer removes none."""
        data = self.get_input_tensors(op)[0]
        shape = self._shape(data)
        options = self.options(op, tflite.SqueezeOptions) if op.BuiltinOptions() is not None else None
        named = options is not None and options.SqueezeDimsLength() > 0
        axes = {int(a) % len(shape) for a in options.SqueezeDimsAsNumpy()} if options and named else None
        kept = [e for d, e in enumerate(shape) if (e != 1 if axes is None else d not in axes)]
        return relax.op.reshape(self.get_tensor_expr(data), kept)

    @converts("RESHAPE")
    def _reshape(self, op: Operator) -> Value:
        """The new shape is the second input, else the attribute new_shape. Where that is computed or there is none, it is the
        shape that the file gives to the output, if that has as many elements."""
        data, *operands = self.get_input_tensors(op)
        options = self.options(op, tflite.ReshapeOptions) if op.BuiltinOptions() is not None else None
        count, wanted = prod(self._shape(data)), None
        if operands and operands[0].tensor_idx >= 0:
            wanted = None if self.has_expr(operands[0].tensor_idx) else self._ints(operands[0])
        elif options is not None and options.NewShapeLength():
            wanted = [int(d) for d in options.NewShapeAsNumpy()]
        if wanted is None:
            declared = self.get_output_tensors(op)[0].tensor
            wanted = [int(d) for d in declared.ShapeAsNumpy()]
            if prod(wanted) != count:
                computed = "its shape (input 1) is computed" if operands else "it has no shape"
                raise UnsupportedForm(f"{computed}, and the output's, {wanted}, is not one of {count} elements")
        return relax.op.reshape(self.get_tensor_expr(data), wanted)

    @converts("EXPAND_DIMS")
    def _expand_dims(self, op: Operator) -> Value:
        """A reshape, because the importer calls Relax's `expand_dims` with one argument too many."""
        data, axis = self.get_input_tensors(op)
        shape = self._shape(data)
        at = self._ints(axis)[0] % (len(shape) + 1)
        return relax.op.reshape(self.get_tensor_expr(data), [*shape[:at], 1, *shape[at:]])

    @converts("SPACE_TO_BATCH_ND")
    def _space_to_batch(self, op: Operator) -> Value:
        """Pad, then views and a transpose: the importer calls a packed function that no target but the host has."""
        data, block, widths = self.get_input_tensors(op)
        output = self.get_output_tensors(op)[0]
        blocks, pads = self._ints(block), self._ints(widths)
        fill = float(zero_point_of(output)) if output.qnn_params else 0.0
        n, *spatial = self._shape(data)
        rest = spatial[len(blocks) :]
        value = self.get_tensor_expr(data)
        if any(pads):
            value = self.bb.emit(relax.op.nn.pad(value, pad_width=[0, 0, *pads, *([0, 0] * len(rest))], pad_value=fill))
        inner = [d + pads[2 * i] + pads[2 * i + 1] for i, d in enumerate(spatial[: len(blocks)])]
        split = [v for d, b in zip(inner, blocks, strict=True) for v in (d // b, b)]
        count = len(blocks)
        order = [*(2 + 2 * i for i in range(count)), 0, *(1 + 2 * i for i in range(count))]
        order += range(1 + 2 * count, 1 + 2 * count + len(rest))
        value = self._rearranged(value, [n, *split, *rest], order)
        return relax.op.reshape(
            value, [n * int(np.prod(blocks)), *(d // b for d, b in zip(inner, blocks, strict=True)), *rest]
        )

    @converts("BATCH_TO_SPACE_ND")
    def _batch_to_space(self, op: Operator) -> Value:
        """BATCH_TO_SPACE_ND as reshapes, a transpose and a crop; at the end of a dilated convolution, that convolution."""
        folded = self._dilated(op)
        if folded is not None:
            return folded
        data, block, crop = self.get_input_tensors(op)
        blocks, crops = self._ints(block), self._ints(crop)
        n, *spatial = self._shape(data)
        count, rest = len(blocks), spatial[len(blocks) :]
        batch = n // int(np.prod(blocks))
        order = [count, *(v for i in range(count) for v in (count + 1 + i, i))]
        order += range(2 * count + 1, 2 * count + 1 + len(rest))
        value = self._rearranged(self.get_tensor_expr(data), [*blocks, batch, *spatial], order)
        inner = [d * b for d, b in zip(spatial[:count], blocks, strict=True)]
        value = relax.op.reshape(value, [batch, *inner, *rest])
        if not any(crops):
            return value
        axes = list(range(1, count + 1))
        ends = [d - e for d, e in zip(inner, crops[1::2], strict=True)]
        return relax.op.strided_slice(self.bb.emit(value), axes=axes, begin=crops[::2], end=ends)

    def _rearranged(self, value: Value, shape: Sequence[int], order: Sequence[int]) -> Value:
        split = self.bb.emit(relax.op.reshape(value, list(shape)))
        return self.bb.emit(relax.op.permute_dims(split, list(order)))

    def _dilated(self, op: Operator) -> Value | None:
        """SPACE_TO_BATCH_ND, a convolution and the BATCH_TO_SPACE_ND `op` as one dilated convolution; None if not that.

        Both are the same sums: pixel `o` of the result reads the padded input at `o + crop`, a block apart. So the
        convolution takes the blocks for its dilation and the pads, less the crops, for its padding; no map is rearranged.
        """
        data, block, crop = self.get_input_tensors(op)
        convolution = self._producer(data)
        if convolution is None or not self._is_plain(convolution):
            return None
        spread = self._producer(self.get_input_tensors(convolution)[0])
        if spread is None or self.get_op_code_str(spread) != "SPACE_TO_BATCH_ND":
            return None
        source, own_block, pad = self.get_input_tensors(spread)
        blocks, crops, pads = self._ints(block), self._ints(crop), self._ints(pad)
        if len(blocks) != 2 or self._ints(own_block) != blocks or len(self._shape(source)) != 4:
            return None
        top, bottom, left, right = (p - c for p, c in zip(pads, crops, strict=True))
        if min(top, bottom, left, right) < 0:
            return None
        return self._dilate(
            self.get_tensor_expr(data), self.get_tensor_expr(source), blocks, [top, left, bottom, right]
        )

    def _producer(self, tensor: stock.TensorWrapper) -> Operator | None:
        for i in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(i)
            if tensor.tensor_idx in op.OutputsAsNumpy():
                return op
        return None

    def _is_plain(self, op: Operator) -> bool:
        """A convolution without stride, dilation or padding of its own."""
        kind = CONVOLUTIONS.get(self.get_op_code_str(op))
        if kind is None:
            return False
        options = self.options(op, getattr(tflite, kind))
        steps = (options.StrideH(), options.StrideW(), options.DilationHFactor(), options.DilationWFactor())
        return options.Padding() == tflite.Padding.VALID and steps == (1, 1, 1, 1)

    def _dilate(self, value: Value, source: Value, blocks: list[int], padding: list[int]) -> Value | None:
        """`value`, computed by a convolution and what follows it element by element, on `source` instead."""
        call = self.bb.lookup_binding(value) if isinstance(value, relax.Var) else value
        if not isinstance(call, relax.Call):
            return None
        if call.op.name != "relax.nn.conv2d":
            inner = self._dilate(call.args[0], source, blocks, padding)
            return None if inner is None else relax.Call(call.op, [inner, *call.args[1:]], call.attrs)
        data, attrs = call.args[0], call.attrs
        stored = self.bb.lookup_binding(data) if isinstance(data, relax.Var) else data
        if isinstance(stored, relax.Call) and stored.op.name == "relax.dequantize":
            source = relax.op.dequantize(source, stored.args[1], stored.args[2], axis=int(stored.attrs.axis))
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
