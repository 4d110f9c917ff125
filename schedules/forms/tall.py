"""Kernels of several output rows a call, which run through their weights once.

Where weights lie in a flash that is slower than the core, a layer costs what it reads from there: a kernel of one row
streams all weights of its layer once for every row, and for every block of pixels in it. One of several rows takes a
block of output channels at a time over all pixels. What it makes, and what it reads, must lie in memory together,
neither over the other. Where windows are single pixels the rows are one long row: fewer blocks are cut short.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.tirx import Evaluate, PrimFunc

from tvm_cascade.graph import Graph, Op
from tvm_cascade.schedules.driver.places import i32
from tvm_cascade.schedules.forms.patch import is_nhwc, is_single, sliding_windows
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.rules.quantized import integers
from tvm_cascade.schedules.rules.select import Core, first_rule
from tvm_cascade.schedules.rules.variants import shape_key


def tall_kernel(
    graph: Graph, op: Op, func: PrimFunc, constants: Sequence[np.ndarray], core: Core, rows: int
) -> RowKernel | None:
    """The kernel of an operator for steps of `rows` rows, a divisor of all; None where no performance schedule makes it.

    None makes convolutions in groups, nor through LLVM windows of several pixels: it moves loads of all column groups in
    front of the loops over them, and spills.
    """
    pairs = sliding_windows(op) if len(op.windows) == len(op.columns) == len(op.inputs) == 1 else None
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    if pairs is None or op.kind != "conv2d" or not all(is_nhwc(t) for t in tensors) or tensors[-1].rows % rows:
        return None
    if integers(func, "groups", (1,))[0] != 1:
        return None
    flat = is_single(pairs[0][0]) and is_single(pairs[0][1])
    if not flat and core.backend != "c":
        return None
    shapes = [_long(t.shape, rows) if flat else t.shape for t in tensors]
    shapes[1:1] = [tuple(c.shape) for c in constants]
    types = [tensors[0].dtype, *(str(c.dtype) for c in constants), tensors[-1].dtype]
    params = [tirx.decl_buffer(s, d, f"p{k}") for k, (s, d) in enumerate(zip(shapes, types, strict=True))]
    attrs = {k: v for k, v in func.attrs.items() if k != "global_symbol"}
    attrs |= {"step_rows": 1 if flat else rows, "joined_rows": rows if flat else 1}
    step = PrimFunc(params, Evaluate(i32(0))).with_attr(attrs)
    chosen = core.choice(shape_key(func, constants))
    if chosen is not None:  # what was counted for one row
        core = replace(core, choices=(*core.choices, (shape_key(step, constants), chosen)))
    kernel = first_rule(step, constants, core)
    return None if kernel is None or kernel.rows != (1 if flat else rows) else replace(kernel, rows=rows)


def _long(shape: Sequence[int], rows: int) -> tuple[int, ...]:
    """NHWC, `rows` rows joined into one."""
    return (shape[0], shape[1] // rows, shape[2] * rows, shape[3])
