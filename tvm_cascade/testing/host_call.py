"""Calling single row kernels in this process, through TVM's LLVM back end: for tests and for looking at one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import tvm

from tvm_cascade.graph import Window
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import reads_pixels
from tvm_cascade.schedules.tir import ir, tirx
from tvm_cascade.testing.quick_build import linked, quick_build

GARBAGE = 77  # what storages hold where nothing was written
Values = dict[tuple[Role, int], np.ndarray | int]


class HostKernel:
    """A compiled row kernel: `call(args)` takes one array per pointer parameter and one int per scalar."""

    def __init__(self, kernel: RowKernel, extra: Sequence[Param] = (), func: Any | None = None) -> None:
        self.params = (*kernel.params, *extra)
        self._lib = _compiled(func or kernel.func, tuple(p.dtype if p.is_pointer else None for p in self.params))

    def __call__(self, *args: np.ndarray | int) -> None:
        """Run the kernel once; arrays are changed in place, flattened views of contiguous arrays will do."""
        tensors: list[Any] = [tvm.runtime.tensor(a.reshape(-1)) if isinstance(a, np.ndarray) else a for a in args]
        self._lib["call"](*tensors)
        for given, used in zip(args, tensors, strict=True):
            if isinstance(given, np.ndarray) and given.size:
                given[...] = used.numpy().reshape(given.shape)


@lru_cache(maxsize=16)
def _compiled(func: Any, pointers: tuple[str | None, ...]) -> Any:
    """A module whose `call` takes tensors for pointers and hands them to `func`; None is an int."""
    inner = ir.GlobalVar("kernel")
    outer: list[Any] = []
    args: list[Any] = []
    for k, dtype in enumerate(pointers):
        if dtype is None:
            outer.append(tirx.Var(f"s{k}", "int32"))
            args.append(outer[-1])
        else:
            outer.append(tirx.decl_buffer((tirx.Var(f"n{k}", "int64"),), dtype, f"b{k}"))
            args.append(tirx.address_of(outer[-1][0]))
    wrapper = tirx.PrimFunc(outer, tirx.Evaluate(ir.Call(inner, args, ret_ty="int32")))
    wrapper = wrapper.with_attr("global_symbol", "call")
    mod = tvm.IRModule({inner: func.without_attr("global_symbol"), ir.GlobalVar("call"): wrapper})
    return linked(quick_build(mod).mod)


def least_height(window: Window, rows: int, out_rows: int) -> int:
    """Slots of the smallest ring that holds the rows of any one window."""
    return max(1, *(len(window.rows(y, rows)) for y in range(out_rows)))


def run_rows(
    kernel: RowKernel,
    access: RowAccess,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    spare: int = 0,
    macs: np.ndarray | None = None,
    func: Any | None = None,
) -> None:
    """Compute `outputs` by calling the kernel for every row, with each input in a ring.

    Rings have their least height plus `spare`, at most the whole tensor. Every call sees garbage in all slots but those
    of the rows that the window names, so a kernel that reads another row gives itself away. With `macs` (one int64) the
    kernel is run as `func`, which counts into it.
    """
    extra = (Param(Role.CONSTANT, -1, "int64"),) if macs is not None else ()
    host = HostKernel(kernel, extra, func)
    axes = [None if kernel.whole else a for a in access.output_axes]
    out_rows = 1 if axes[0] is None else outputs[0].shape[axes[0]]
    for y in range(out_rows):
        values: Values = {(Role.Y, 0): y, (Role.SCRATCH, 0): np.full(kernel.scratch_bytes, GARBAGE, "int8")}
        values |= {(Role.CONSTANT, i): c for i, c in enumerate(kernel.constants)}
        if macs is not None:
            values[Role.CONSTANT, -1] = macs
        for i, x in enumerate(inputs):
            values |= _input_values(i, x, access, kernel.whole, y, out_rows, spare)
        written: list[np.ndarray] = []
        for i, (o, axis) in enumerate(zip(outputs, axes, strict=True)):
            row = np.full(o.shape if axis is None else np.delete(o.shape, axis), GARBAGE, o.dtype)
            values[Role.OUTPUT, i] = row
            values[Role.OUTPUT_PLANE, i] = 1 if axis is None else prod(o.shape[axis + 1 :])
            written.append(row)
        host(*(values[p.role, p.index] for p in host.params))
        for o, axis, row in zip(outputs, axes, written, strict=True):
            (o if axis is None else np.moveaxis(o, axis, 0)[y])[...] = row


def _input_values(i: int, x: np.ndarray, access: RowAccess, whole: bool, y: int, out_rows: int, spare: int) -> Values:
    """Arguments of one input: a ring with the rows of its window in it, or the tensor itself where it is read whole."""
    window, axis = access.windows[i], access.input_axes[i]
    rows = 1 if axis is None else x.shape[axis]
    inner, planes = (1, 1) if axis is None else (prod(x.shape[axis + 1 :]), prod(x.shape[:axis]))
    if whole or axis is None or window is None or window.stride == 0:
        held, slot = x, 0
        strides = (rows * inner, inner)
    else:
        height = min(rows, least_height(window, rows, out_rows) + spare)
        moved = np.moveaxis(x, axis, 0)
        held, slot = np.full((height, *moved.shape[1:]), GARBAGE, x.dtype), window.first(y) % height
        for r in window.rows(y, rows):
            held[r % height] = moved[r]
        rows, strides = height, (inner, inner * planes)
    return {
        (Role.INPUT, i): held,
        (Role.SLOT, i): slot,
        (Role.SLOTS, i): rows,
        (Role.PLANE, i): strides[0],
        (Role.ROW_STRIDE, i): strides[1],
    }


def run_pixels(
    kernel: RowKernel,
    access: RowAccess,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    chunk: int,
    spare: int = 0,
) -> None:
    """Compute `outputs` by calling a pixel kernel for runs of `chunk` columns, with every input in a pixel ring.

    Rings have their least number of slots plus `spare`, and hold garbage wherever the call may not read. The output
    goes through a ring of `chunk + spare` slots. Inputs without contiguous pixels are in rings of rows.
    """
    host = HostKernel(kernel)
    rows, columns = (outputs[0].shape[a + k] for a in access.output_axes[:1] if a is not None for k in (0, 1))
    chunk = chunk if any(c is not None for c in access.columns) else columns
    calls = [(y, x, min(x + chunk, columns)) for y in range(rows) for x in range(0, columns, chunk)]
    axes = zip(inputs, access.input_axes, access.windows, strict=True)
    by_pixels = {i for i, (x, axis, window) in enumerate(axes) if reads_pixels(x.shape, axis, window)}
    rings = [_least_pixels(access, i, x, calls) + spare if i in by_pixels else 0 for i, x in enumerate(inputs)]
    for y, x0, x1 in calls:
        values: Values = {(Role.Y, 0): y, (Role.BEGIN, 0): x0, (Role.END, 0): x1}
        values[Role.SCRATCH, 0] = np.full(kernel.scratch_bytes, GARBAGE, "int8")
        values |= {(Role.CONSTANT, i): c for i, c in enumerate(kernel.constants)}
        for i, x in enumerate(inputs):
            if i in by_pixels:
                values |= _pixel_input(access, i, x, rings[i], (y, x0, x1))
            else:
                values |= _input_values(i, x, access, False, y, rows, spare)
        pixels = [_pixel_output(values, i, o, a, (y, x0), chunk + spare) for i, (o, a) in _outputs(outputs, access)]
        host(*(values[p.role, p.index] for p in host.params))
        start = y * columns + x0
        for (i, (o, axis)), ring in zip(_outputs(outputs, access), pixels, strict=True):
            if (Role.OUTPUT_SLOT, i) in values and prod(o.shape[:axis]) == 1:
                picked = [p % len(ring) for p in range(start, start + x1 - x0)]
                _pixels_of(o, axis)[start : start + x1 - x0] = ring[picked]
            else:
                np.moveaxis(o, axis, 0)[y] = ring


def _pixel_output(values: Values, i: int, output: np.ndarray, axis: int, at: tuple[int, int], slots: int) -> np.ndarray:
    """Storage for what one call writes: a pixel ring, or one row where pixels are not contiguous."""
    y, x0 = at
    row = np.full(np.delete(output.shape, axis), GARBAGE, output.dtype)
    values[Role.OUTPUT, i], values[Role.OUTPUT_PLANE, i] = row, prod(output.shape[axis + 1 :])
    if prod(output.shape[:axis]) != 1:
        return row
    ring = np.full((slots, *_pixels_of(output, axis).shape[1:]), GARBAGE, output.dtype)
    values[Role.OUTPUT, i], values[Role.OUTPUT_SLOTS, i] = ring, slots
    values[Role.OUTPUT_SLOT, i] = (y * output.shape[axis + 1] + x0) % slots
    return ring


def _outputs(outputs: Sequence[np.ndarray], access: RowAccess) -> list[tuple[int, tuple[np.ndarray, int]]]:
    return [(i, (o, a)) for i, (o, a) in enumerate(zip(outputs, access.output_axes, strict=True)) if a is not None]


def _pixels_of(x: np.ndarray, axis: int) -> np.ndarray:
    """A view of a tensor as its row-major stream of pixels."""
    return x.reshape(x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _covered(access: RowAccess, i: int, x: np.ndarray, call: tuple[int, int, int]) -> list[tuple[int, int]]:
    """Ranges of pixels that one call may read of input i, one for each row of its window."""
    (y, x0, x1), axis, window = call, access.input_axes[i], access.windows[i]
    assert axis is not None and window is not None
    height, width, across = x.shape[axis], x.shape[axis + 1], access.columns[i]
    left, right = 0, width
    if across is not None and across.stride:
        left, right = across.rows(x0, width).start, across.rows(x1 - 1, width).stop
    return [(r * width + left, r * width + right) for r in window.rows(y, height)]


def _least_pixels(access: RowAccess, i: int, x: np.ndarray, calls: Sequence[tuple[int, int, int]]) -> int:
    spans = [_covered(access, i, x, call) for call in calls]
    return max(1, *(s[-1][1] - s[0][0] for s in spans if s))


def _pixel_input(access: RowAccess, i: int, x: np.ndarray, slots: int, call: tuple[int, int, int]) -> Values:
    axis, window = access.input_axes[i], access.windows[i]
    assert axis is not None and window is not None
    stream = _pixels_of(x, axis)
    ring = np.full((slots, *stream.shape[1:]), GARBAGE, x.dtype)
    for start, stop in _covered(access, i, x, call):
        for p in range(start, stop):
            ring[p % slots] = stream[p]
    (y, x0, _), across, width = call, access.columns[i], x.shape[axis + 1]
    left = 0 if across is None or across.stride == 0 else max(across.first(x0), 0)
    slot = (max(window.first(y), 0) * width + left) % slots
    return {(Role.INPUT, i): ring, (Role.SLOT, i): slot, (Role.SLOTS, i): slots}
