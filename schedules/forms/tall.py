"""Kernels of several output rows a call, which run through their weights once.

Where weights lie in a flash that is slower than the core, a layer costs what it reads from there: a kernel of one row
streams all weights of its layer once for every row, and for every block of pixels in it. One of several rows takes a
block of output channels at a time over all pixels. What it makes, and what it reads, must lie in memory together,
neither over the other. Where windows are single pixels the rows are one long row: fewer blocks are cut short.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Graph, Op
from tvm_cascade.schedules.forms.patch import is_nhwc, is_single, sliding_windows
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec, TensorType
from tvm_cascade.schedules.rules.select import first_rule
from tvm_cascade.schedules.rules.variants import shape_key


def tall_kernel(graph: Graph, op: Op, spec: OperatorSpec, core: KernelTarget, rows: int) -> RowKernel | None:
    """The kernel of an operator for steps of `rows` rows, a divisor of all; None where no performance schedule makes it.

    None makes convolutions in groups, nor through LLVM windows of several pixels: it moves loads of all column groups in
    front of the loops over them, and spills.
    """
    pairs = sliding_windows(op) if len(op.windows) == len(op.columns) == len(op.inputs) == 1 else None
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    if pairs is None or op.kind != "conv2d" or not all(is_nhwc(t) for t in tensors) or tensors[-1].rows % rows:
        return None
    if spec.attributes.groups not in (None, 1):
        return None
    flat = is_single(pairs[0][0]) and is_single(pairs[0][1])
    if not flat and core.backend != "c":
        return None
    step = _joined(spec, rows) if flat else replace(spec, tile_rows=rows)
    chosen = core.choice(shape_key(spec))
    if chosen is not None:  # what was counted for one row
        core = replace(core, choices=(*core.choices, (shape_key(step), chosen)))
    kernel = first_rule(step, core)
    return None if kernel is None or kernel.rows != (1 if flat else rows) else replace(kernel, rows=rows)


def _joined(spec: OperatorSpec, rows: int) -> OperatorSpec:
    """The operator with `rows` rows of NHWC tensors as one row."""
    inputs, output = tuple(_long(t, rows) for t in spec.inputs), _long(spec.output, rows)
    return replace(spec, inputs=inputs, output=output, tile_rows=1, joined_rows=rows)


def _long(tensor: TensorType, rows: int) -> TensorType:
    batch, height, width, channels = tensor.shape
    return replace(tensor, shape=(batch, height // rows, width * rows, channels))
