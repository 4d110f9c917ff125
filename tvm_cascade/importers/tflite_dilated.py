"""Dilated convolutions that a file spells as SPACE_TO_BATCH_ND, convolution, BATCH_TO_SPACE_ND, folded into one.

Both are the same sums: pixel `o` of the result reads the padded input at `o + crop`, a block apart. So the convolution
takes the blocks for its dilation and the pads, less the crops, for its padding; no map is rearranged.
"""

from __future__ import annotations

from tvm.relax.frontend.tflite import tflite_frontend as stock

from tvm_cascade.importers.tflite_functions import FunctionConverters
from tvm_cascade.importers.tflite_moves import Operator, Value, relax, tflite

_CONVOLUTIONS = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}


class DilatedConverters(FunctionConverters):
    """Replaces `BATCH_TO_SPACE_ND` where it ends a dilated convolution; what led there is dead code then."""

    def _batch_to_space(self, op: Operator) -> Value:
        folded = self._folded(op)
        return super()._batch_to_space(op) if folded is None else folded

    def _folded(self, op: Operator) -> Value | None:
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
            if tensor.tensor_idx in self._indices_or_empty(op.OutputsAsNumpy()):
                return op
        return None

    def _is_plain(self, op: Operator) -> bool:
        """A convolution without stride, dilation or padding of its own."""
        kind = _CONVOLUTIONS.get(self.get_op_code_str(op))
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
