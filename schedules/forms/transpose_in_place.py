"""An NCHW tensor becomes NHWC in the very bytes that it lies in, with one row of every plane as scratch.

Two passes, each over all bytes once. First whole rows change places: row (c, h) of the planes goes to place h * C + c.
The permutation of C * H rows falls into cycles, known at compile time; a table in flash lists the moves, each cycle
through one spare row. Then the C rows of every image row lie together, and are interleaved through scratch.
"""

# TVM's nodes get their fields and operators at run time, where no type checker sees them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import PrimFunc, SeqStmt

from tvm_cascade.graph import ITEM_BYTES, KernelFootprints
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.rows import RowSteps
from tvm_cascade.schedules.kernels.kernel import Param, Role, RowKernel
from tvm_cascade.schedules.rules.emit import Builder, Value, i32
from tvm_cascade.schedules.tir import dtype_of, ir, leaf_blocks, outputs_of, shape_of, stores

_UNROLL = 4  # elements a pass
_NO_TRANSPOSE = "it is no transpose from NCHW to NHWC"


@dataclass(frozen=True, slots=True)
class Planes:
    """The tensor that is turned: `count` planes of `height` rows of `width` elements."""

    count: int
    height: int
    width: int
    dtype: str

    @property
    def scratch_bytes(self) -> int:
        return self.count * self.width * ITEM_BYTES[self.dtype]


class TransposeInPlace(KernelForm):
    """Transposes from NCHW to NHWC."""

    way = Way.IN_PLACE

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        planes = None if site.constants else planes_of(site.func)
        if planes is None:
            return _NO_TRANSPOSE
        return replace(known, in_place_workspace_bytes=planes.scratch_bytes)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        planes = planes_of(site.func)
        return _NO_TRANSPOSE if planes is None else RowSteps((transpose_kernel(planes),))


FORM = TransposeInPlace()


def planes_of(func: PrimFunc) -> Planes | None:
    """The planes that `func` turns from NCHW to NHWC; None where it does anything else."""
    outputs, blocks = outputs_of(func), leaf_blocks(func)
    if len(func.params) != 2 or len(outputs) != 1 or len(blocks) != 1:
        return None
    shape, made = shape_of(func.params[0]), stores(blocks[0].block.body)[0]
    if not isinstance(made.value, ir.TensorLoad) or not made.value.source.same_as(func.params[0]):
        return None
    if len(shape) != 4 or shape[0] != 1 or dtype_of(func.params[0]) != dtype_of(outputs[0]):
        return None
    n, h, w, c = made.indices
    turned = all(a.same_as(b) for a, b in zip(made.value.indices, (n, c, h, w), strict=True))
    plain = turned and all(isinstance(i, tirx.Var) for i in (h, w, c)) and min(shape[1:]) > 1
    return Planes(*shape[1:], dtype_of(outputs[0])) if plain else None


def row_moves(planes: int, height: int) -> np.ndarray:
    """The moves (to, from) of rows, in order; the number of rows stands for the spare one."""
    spare = planes * height
    moves: list[tuple[int, int]] = []
    done = [False] * spare
    for start in range(spare):
        place, source = start, start % planes * height + start // planes
        if done[start] or source == start:
            continue
        moves.append((spare, start))
        while source != start:
            moves.append((place, source))
            done[place] = True
            place, source = source, source % planes * height + source // planes
        moves.append((place, spare))
        done[place] = True
    return np.array(moves, np.uint16 if spare < 1 << 16 else np.uint32)


def transpose_kernel(planes: Planes) -> RowKernel:
    """The kernel of the whole operator; it is given its output alone, which lies where its input does."""
    moves = row_moves(planes.count, planes.height)
    count, height, width, dtype = planes.count, planes.height, planes.width, planes.dtype
    k = Builder()
    table, scratch, out = (
        tirx.Var(n, PointerType(PrimType(d))) for n, d in (("moves", str(moves.dtype)), ("scratch", "int8"), ("out", dtype))
    )  # fmt: skip
    to_from, image = k.view(table, str(moves.dtype), "rows"), k.view(out, dtype, "image")
    spare, last = k.view(scratch, dtype, "spare"), count * height

    def copy(to: Value, start: Value, source: Value, begin: Value, elements: int) -> None:
        step = max(u for u in range(1, _UNROLL + 1) if elements % u == 0)
        with k.loop(elements // step, "i") as i:
            for u in range(step):
                k.store(to, start + i * step + u, source[begin + i * step + u])

    with k.loop(len(moves), "m") as m:
        to = k.let(to_from[m * 2].astype("int32"), "to")
        source = k.let(to_from[m * 2 + 1].astype("int32"), "source")
        with k.when(tirx.EQ(to, i32(last))):
            copy(spare, i32(0), image, source * width, width)
        with k.when(tirx.EQ(source, i32(last))):
            copy(image, to * width, spare, i32(0), width)
        with k.when(tirx.all(to < last, source < last)):
            copy(image, to * width, image, source * width, width)
    with k.loop(height, "h") as h:
        first = k.let(h * (count * width), "first")
        copy(spare, i32(0), image, first, count * width)
        with k.loop(width, "w") as w, k.loop(count, "c") as c:
            k.store(image, first + w * count + c, spare[c * width + w])
    params = (Param(Role.CONSTANT, 0, str(moves.dtype)), Param(Role.SCRATCH, 0, "int8"), Param(Role.OUTPUT, 0, dtype))
    body = SeqStmt([*k.statements(), tirx.Return(i32(0))])
    attrs = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": "over"})
    func = PrimFunc([table, scratch, out], body, PrimType("int32"), attrs=attrs)
    return RowKernel(func, (moves,), planes.scratch_bytes, params, whole=True)
