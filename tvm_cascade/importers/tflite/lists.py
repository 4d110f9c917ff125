"""Lists of tensors inside of loops, as TFLite's converter writes them: tensors of which every step replaces a row.

A step cuts the rows before and after its own out of the list (SLICE) and joins them with the new one (CONCATENATION), or
writes it by DYNAMIC_UPDATE_SLICE. An unrolled loop would copy the list at every step, and slices before the first row and
behind the last are empty. So such tensors are not emitted but kept as parts, which are stretches of rows, until something
else reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_cascade.importers.tflite.hybrid import HybridConverters
from tvm_cascade.importers.tflite.moves import Operator, Value, converts, relax, tflite
from tvm_cascade.importers.tflite.site import InvalidForm, UnsupportedForm


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of a list: a constant, or a value whose first axis they are."""

    rows: int
    value: np.ndarray | Value

    def cut(self, begin: int, end: int) -> np.ndarray | Value:
        """Its rows from `begin` to `end`."""
        if end - begin == self.rows:
            return self.value
        if isinstance(self.value, np.ndarray):
            return self.value[begin:end]
        return relax.op.strided_slice(self.value, axes=[0], begin=[begin], end=[end])

    def expression(self) -> Value:
        """It as a value of Relax."""
        constant = isinstance(self.value, np.ndarray)
        return relax.const(np.ascontiguousarray(self.value), str(self.value.dtype)) if constant else self.value


class ListConverters(HybridConverters):
    """Converters of the operators on lists; `parts` has those of the tensors that are not emitted, by tensor index."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.parts: dict[int, tuple[Part, ...]] = {}

    def get_expr(self, input_tensor_idx: int) -> Value:
        """The value of a tensor; that of a list is emitted."""
        parts = self.parts.pop(input_tensor_idx, None)
        if parts is not None:
            if not parts:
                raise UnsupportedForm("a list without elements")
            (wrapper,) = self.get_tensors([input_tensor_idx])
            values = [p.expression() for p in parts]
            self._bind(wrapper, values[0] if len(values) == 1 else relax.op.concat(values, 0))
        return super().get_expr(input_tensor_idx)

    def has_expr(self, input_tensor_idx: int) -> bool:
        """Whether a tensor is computed."""
        return input_tensor_idx in self.parts or super().has_expr(input_tensor_idx)

    def get_tensor_shape(self, tensor_wrapper: Any) -> Any:
        """The shape of a tensor; of a list, from its parts."""
        parts = self.parts.get(tensor_wrapper.tensor_idx)
        if parts is None:
            return super().get_tensor_shape(tensor_wrapper)
        if not parts:
            return np.array([0, *self._declared(tensor_wrapper)[1:]], "int64")
        first = parts[0].value
        row = first.shape[1:] if isinstance(first, np.ndarray) else [int(d) for d in first.ty.shape.values[1:]]
        return np.array([sum(p.rows for p in parts), *row], "int64")

    def _bind(self, wrapper: Any, value: Value) -> None:
        raise NotImplementedError

    @converts("CONCATENATION")
    def _concatenation(self, op: Operator) -> Value | None:
        """A concatenation; in a loop one of rows becomes a list."""
        tensors, output = self.get_input_tensors(op), self.get_output_tensors(op)[0]
        options = self.options(op, tflite.ConcatenationOptions)
        if not any(t.tensor_idx in self.parts for t in tensors):
            return self.convert_concatenation(op)
        rank = max(len(self._shape(t)) for t in tensors)
        if options.Axis() not in (0, -rank) or options.FusedActivationFunction() or self._rescales(tensors, output):
            return self.convert_concatenation(op)
        self.parts[output.tensor_idx] = tuple(p for t in tensors for p in self._rows(t))
        return None

    @converts("SLICE")
    def _slice(self, op: Operator) -> Value | None:
        """A slice; in a loop one of whole rows becomes a list, which may be empty."""
        data, *operands = self.get_input_tensors(op)
        if not self.nested or any(self.has_expr(t.tensor_idx) for t in operands):
            return self.convert_slice(op)
        (begin, size), shape = (self._ints(t) for t in operands), self._shape(data)
        if not shape or len(begin) != len(shape) or any(begin[1:]):
            return self.convert_slice(op)
        if any(s not in (-1, d) for s, d in zip(size[1:], shape[1:], strict=True)):
            return self.convert_slice(op)
        end = shape[0] if size[0] < 0 else begin[0] + size[0]
        if not 0 <= begin[0] <= end <= shape[0]:
            raise InvalidForm(f"rows {begin[0]} to {end} of {shape[0]}")
        self.parts[self.get_output_tensors(op)[0].tensor_idx] = tuple(self._cut(self._rows(data), begin[0], end))
        return None

    @converts("DYNAMIC_UPDATE_SLICE")
    def _update(self, op: Operator) -> Value | None:
        """Whole rows of a list replaced, at a place that is known when the network is compiled."""
        data, update, place = self.get_input_tensors(op)
        if self.has_expr(place.tensor_idx):
            raise UnsupportedForm("an update at a computed place")
        shape, given = self._shape(data), self._shape(update)
        if not shape or len(given) != len(shape) or given[1:] != shape[1:] or given[0] > shape[0]:
            raise UnsupportedForm("an update of other than whole rows")
        begin = min(max(self._ints(place)[0], 0), shape[0] - given[0])
        rows, new = self._rows(data), self._rows(update)
        before, after = self._cut(rows, 0, begin), self._cut(rows, begin + given[0], shape[0])
        self.parts[self.get_output_tensors(op)[0].tensor_idx] = (*before, *new, *after)
        return None

    def _rescales(self, tensors: Sequence[Any], output: Any) -> bool:
        """Whether a concatenation of stored values may have to rescale one."""
        kinds = {
            (float(q["scale"].value.numpy().reshape(-1)[0]), int(q["zero_point"].value.numpy().reshape(-1)[0]))
            for q in (t.qnn_params for t in (*tensors, output))
            if q is not None
        }
        return len(kinds) > 1

    def _rows(self, tensor: Any) -> tuple[Part, ...]:
        """The parts of any tensor: of one that is no list, itself."""
        parts = self.parts.get(tensor.tensor_idx)
        if parts is not None:
            return parts
        if self.has_expr(tensor.tensor_idx):
            value = self.get_expr(tensor.tensor_idx)
            return (Part(int(value.ty.shape.values[0]), value),)
        data = np.asarray(self.get_tensor_value(tensor))
        return (Part(len(data), data),)

    def _cut(self, parts: Sequence[Part], begin: int, end: int) -> Iterator[Part]:
        """The rows from `begin` to `end`."""
        at = 0
        for part in parts:
            first, last = max(begin - at, 0), min(end - at, part.rows)
            if first < last:
                value = part.cut(first, last)
                emitted = isinstance(value, (np.ndarray, relax.Var)) or value is part.value
                yield Part(last - first, value if emitted else self.bb.emit(value))
            at += part.rows
