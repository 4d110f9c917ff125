"""Constants that operators make of constants: moved in numpy, computed by TVM, each kind of function compiled once.

Relax's own FoldConstant compiles every call; networks that reshape every bias make hundreds of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from tvm_cascade.schedules.driver.instrument import evaluate
from tvm_cascade.schedules.tir import PrimFunc, dtype_of, ir, leaf_blocks, outputs_of, shape_of, stores, tvm_ffi


class Folder:
    """Runs PrimFuncs on constants; equal functions are compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[int, list[tuple[PrimFunc, Any]]] = {}

    def fold(self, func: PrimFunc, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The outputs of `func`, whose parameters are the arrays and then the outputs."""
        moved = _moved(func, arrays)
        if moved is not None:
            return (moved,)
        made = [tvm.runtime.tensor(np.zeros(shape_of(o), dtype_of(o))) for o in outputs_of(func)]
        self._run(func)(*(tvm.runtime.tensor(np.array(a, order="C")) for a in arrays), *made)
        return tuple(m.numpy() for m in made)

    def _run(self, func: PrimFunc) -> Any:
        plain = func.with_attr("global_symbol", "fold")
        key = tvm_ffi.structural_hash(plain)
        for other, run in self._compiled.get(key, ()):
            if tvm_ffi.structural_equal(other, plain):
                return run
        run = tvm.compile(tvm.IRModule({"fold": plain}), target=tvm.target.Target("llvm"))["fold"]
        self._compiled.setdefault(key, []).append((plain, run))
        return run


def _moved(func: PrimFunc, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The output of a function that only moves elements of one array; None for others."""
    blocks, outputs = leaf_blocks(func), outputs_of(func)
    if len(blocks) != 1 or len(outputs) != 1 or blocks[0].block.init is not None:
        return None
    block, written = blocks[0].block, stores(blocks[0].block.body)
    value = written[0].value
    if len(written) != 1 or not isinstance(value, ir.TensorLoad):
        return None
    source = dict(zip(func.params, arrays, strict=False)).get(value.source)
    axes = [int(v.dom.extent) for v in block.iter_vars]
    in_order = all(i.same_as(v.var) for i, v in zip(written[0].indices, block.iter_vars, strict=False))
    if source is None or not in_order or tuple(axes) != shape_of(outputs[0]):
        return None
    grid = np.ogrid[tuple(slice(0, e) for e in axes)]
    env = {v.var: axis for v, axis in zip(block.iter_vars, grid, strict=True)}
    try:
        picked = source[tuple(evaluate(i, env) for i in value.indices)]
    except ValueError:
        return None
    return np.array(np.broadcast_to(picked, axes), order="C")
