"""Merge explicit zero pads into the convolutions behind, through views, transposes and quantization.

    before: a = nn.pad(x, rows or columns, 0)      after: b = reshape(x)
            b = reshape(a)                                 c = nn.conv2d(b, w, padding = ... + widths)
            c = nn.conv2d(b, w)

A converter writes causal padding in front of the view that makes a map of a signal, PyTorch's quantizer between a
dequantize and a quantize. Exact: a padded element adds 0 to every sum. Pads stay if another operator reads them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.expressions import number_of
from tvm_cascade.passes.islands.stored import Stored
from tvm_cascade.passes.main_rewriting import (
    Rewriting,
    Value,
    bindings_of,
    constant_of,
    name_of,
    relax,
    shape_of,
    window_of,
)
from tvm_cascade.passes.relax_functions import substitute

_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_VIEWS = ("reshape", "squeeze", "expand_dims", "flatten")
_BETWEEN = (*_VIEWS, "permute_dims", "quantize", "dequantize", "nn.relu", "clip")

Widths = Mapping[int, tuple[int, int]]  # elements before and after, by padded axis


def with_folded_pads(mod: Any) -> Any:
    """Return `mod` with the pads of `main` in the padding of convolutions; `mod` itself if there is none to merge."""
    bindings = bindings_of(mod["main"])
    if not any(name_of(b.value) == "nn.pad" for b in bindings):
        return mod
    folding = _Folding(mod)
    return with_folded_pads(folding.run()) if folding.padding else mod  # again, for pads of pads


class _Folding(Rewriting):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.readers: dict[Value, list[Value]] = {}
        for binding in bindings_of(self.main):
            for var in relax.analysis.free_vars(binding.value):
                self.readers.setdefault(var, []).append(binding.var)
        self.returned = set(relax.analysis.free_vars(self.main.body.body))
        self.unpadded: set[Value] = set()  # pads that go, and the values between them and convolutions
        self.padding: dict[Value, Widths] = {}  # of convolutions, by axis of their input
        for binding in bindings_of(self.main):
            if name_of(binding.value) == "nn.pad" and (widths := _widths(binding.value)):
                between, found = set[Value](), dict[Value, Widths]()
                if self._reaches(binding.var, widths, float(binding.value.attrs.pad_value), between, found):
                    self.unpadded |= between
                    self.padding |= found

    def _reaches(
        self, var: Value, widths: Widths, value: float, between: set[Value], found: dict[Value, Widths]
    ) -> bool:
        """Test that a value, padded with `value`, is read by convolutions alone, which `found` gets."""
        between.add(var)
        readers = [] if var in self.returned else self.readers.get(var, [])
        return bool(readers) and all(self._takes(reader, var, widths, value, between, found) for reader in readers)

    def _takes(
        self, reader: Value, var: Value, widths: Widths, value: float, between: set[Value], found: dict[Value, Widths]
    ) -> bool:
        call = self.definitions[reader]
        if name_of(call) in _CONVOLUTIONS:
            found[reader] = widths
            return call.args[0].same_as(var) and value == 0 and set(widths) <= {*_spatial(call)}
        if isinstance(call, relax.Var):
            return self._reaches(reader, widths, value, between, found)
        if name_of(call) not in _BETWEEN or not call.args[0].same_as(var):
            return False
        moved, then = _moved(call, shape_of(var), shape_of(reader), widths), _after(call, value)
        return moved is not None and then is not None and self._reaches(reader, moved, then, between, found)

    def _bind(self, var: Value, value: Value) -> None:
        if var in self.padding:
            new = self.bb.emit(_padded(substitute(value, self.renamed), self.padding[var]))
        elif var in self.unpadded and isinstance(value, relax.Call):
            new = self._without(value)
        else:
            new = self.bb.emit(substitute(value, self.renamed))
        self.renamed[var] = new

    def _without(self, call: Value) -> Value:
        """Return a pad's operand, or the value of a call on the operand without its pad."""
        source = substitute(call.args[0], self.renamed)
        if name_of(call) == "nn.pad":
            return source
        read, written = Stored.read_by(self._definition(source)), Stored.written_by(call)
        if read is not None and written is not None and _same_numbers(read, written):
            return read.tensor
        if name_of(call) not in _VIEWS:
            return self.bb.emit(relax.Call(call.op, [source, *call.args[1:]], call.attrs))
        old, shape = shape_of(call.args[0]), list(shape_of(call))
        for axis, extent in enumerate(shape_of(source)):
            at = _axis_of(axis, old, shape_of(call))
            if at is not None and extent != old[axis]:
                shape[at] = extent
        made = self._definition(source)
        if name_of(made) == "reshape" and shape_of(made.args[0]) == tuple(shape):
            return made.args[0]
        return self.bb.emit(relax.op.reshape(source, shape))


def _widths(pad: Value) -> Widths:
    """Return the widths of a constant pad by axis; empty for any other pad."""
    widths, attrs = [int(w) for w in pad.attrs.pad_width], pad.attrs
    if str(attrs.pad_mode) != "constant" or min(widths) < 0 or len(pad.args) > 1:
        return {}
    pairs = zip(widths[::2], widths[1::2], strict=True)
    return {axis: (before, after) for axis, (before, after) in enumerate(pairs) if before or after}


def _moved(call: Value, old: Sequence[int], new: Sequence[int], widths: Widths) -> Widths | None:
    """Return the widths by axis of a call's result; None if a view splits or merges a padded axis."""
    if name_of(call) == "permute_dims":
        order = [int(a) for a in call.attrs.axes or reversed(range(len(old)))]
        return {order.index(axis): both for axis, both in widths.items()}
    if name_of(call) not in _VIEWS:
        return widths
    moved = {at: both for axis, both in widths.items() if (at := _axis_of(axis, old, new)) is not None}
    return moved if len(moved) == len(widths) else None


def _axis_of(axis: int, old: Sequence[int], new: Sequence[int]) -> int | None:
    """Return the place of an axis longer than 1 in a view; None if the view splits or merges it."""
    runs = (k for k, extent in enumerate(new) if extent == old[axis] > 1 and prod(new[:k]) == prod(old[:axis]))
    return next(runs, None)


def _after(call: Value, value: float) -> float | None:
    """Return the value of a padded element behind a call; None if it differs by channel, or is not exact."""
    if name_of(call) == "nn.relu":
        return max(value, 0.0)
    if name_of(call) == "clip":
        low, high = (number_of(a) for a in call.args[1:3])
        return min(max(value, low), high)
    stored = Stored.read_by(call) or Stored.written_by(call)
    if stored is None:
        return value
    zeros = constant_of(stored.zero_point)
    if zeros is None or np.unique(zeros).size != 1:
        return None
    zero, ends = float(zeros.flat[0]), np.iinfo(str(call.ty.dtype)) if Stored.written_by(call) else None
    if ends is None:
        return 0.0 if value == zero else None
    return zero if value == 0 and ends.min <= zero <= ends.max else None


def _same_numbers(read: Stored, written: Stored) -> bool:
    """Test that integers made real and stored again stay the same."""
    return (
        written.numbers is not None
        and read.numbers == written.numbers
        and str(read.tensor.ty.dtype) == str(written.tensor.ty.dtype)
    )


def _padded(call: Value, widths: Widths) -> Value:
    """Return a convolution with additional padding."""
    attrs, axes = call.attrs, _spatial(call)
    given, rank = [int(p) for p in attrs.padding], len(axes)
    given = given * (2 * rank // len(given))  # one width for all sides, one by axis, or one by side
    both = [widths.get(axis, (0, 0)) for axis in axes]
    added = [before for before, _ in both] + [after for _, after in both]
    convolution = getattr(relax.op.nn, name_of(call).removeprefix("nn."))
    return convolution(
        *call.args[:2],
        padding=[p + a for p, a in zip(given, added, strict=True)],
        groups=int(attrs.groups),
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout) or None,
        out_dtype=str(attrs.out_dtype or "") or None,
        **window_of(attrs, "strides", "dilation"),
    )


def _spatial(call: Value) -> list[int]:
    """Return the axes of a convolution's input along which windows move, the outermost first."""
    layout = str(call.attrs.data_layout)
    return [layout.index(axis) for axis in "DHW" if axis in layout]
