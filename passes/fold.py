"""Constant folding of PrimFunc calls: pure data movement in numpy, the rest compiled by TVM, equal functions once.

Relax's own FoldConstant compiles every call, which takes long for networks that reshape hundreds of biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from tvm_cascade.passes.relax_functions import ByStructure
from tvm_cascade.passes.views import grid_of
from tvm_cascade.schedules.tir import PrimFunc, dtype_of, ir, leaf_blocks, outputs_of, shape_of, stores
from tvm_cascade.schedules.tir.macs import evaluate


class Folder:
    """Evaluates PrimFuncs on constant arrays; structurally equal functions are compiled once."""

    def __init__(self) -> None:
        self._compiled = ByStructure[Any]()

    def fold(self, func: PrimFunc, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Compute the outputs of `func` on `arrays`; the parameters are the inputs followed by the outputs."""
        moved = _moved(func, arrays)
        if moved is not None:
            return (moved,)
        made = [tvm.runtime.tensor(np.zeros(shape_of(o), dtype_of(o))) for o in outputs_of(func)]
        run = self._compiled.get(func.with_attr("global_symbol", "fold"), lambda: _compiled(func))
        run(*(tvm.runtime.tensor(np.array(a, order="C")) for a in arrays), *made)
        return tuple(m.numpy() for m in made)


def _compiled(func: PrimFunc) -> Any:
    mod = tvm.IRModule({"fold": func.with_attr("global_symbol", "fold")})
    return tvm.compile(mod, target=tvm.target.Target("llvm"))["fold"]


def _moved(func: PrimFunc, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Compute a function that only copies elements from a single array, by numpy indexing; None for all others."""
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
    env = grid_of(block)
    try:
        picked = source[tuple(evaluate(i, env) for i in value.indices)]
    except ValueError:
        return None
    return np.array(np.broadcast_to(picked, axes), order="C")
