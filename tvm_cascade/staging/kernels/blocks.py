"""Questions of the CPU schedules about a kernel's blocks and loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import IterVar
from tvm.tirx.analysis import undefined_vars

from tvm_cascade.schedules.tir import replace, substitute, sym

STEPS = 4  # of a reduction that are unrolled
MOST_STEPS = 8  # of a product, whose tiles have fewer addresses
_MANY = 16  # pieces of work that may differ by one
Schedule = Any  # s_tir.Schedule, whose stubs type every primitive by its widest form


def inner_blocks(sch: Schedule) -> list[Any]:
    """Return the blocks inside the root block of a kernel's schedule, in execution order."""
    return sch.get_child_blocks(sch.get_sblock("root"))


def iter_kinds(sch: Schedule, block: Any) -> list[bool]:
    """Return a bool per block axis: True for reduction axes."""
    return [v.iter_type == IterVar.CommReduce for v in sch.get(block).iter_vars]


def is_reduction(sch: Schedule, block: Any) -> bool:
    """Test whether the block has an axis of reduction."""
    return any(iter_kinds(sch, block))


def reductions(sch: Schedule) -> list[Any]:
    """List the kernel's blocks with a reduction axis, in execution order."""
    return [b for b in inner_blocks(sch) if is_reduction(sch, b)]


def name_of(sch: Schedule, block: Any) -> str:
    """Return the block's name, unique in the kernel."""
    return sch.get(block).name_hint


def extent(sch: Schedule, loop: Any) -> int:
    """Return a loop's step count."""
    return int(sch.get(loop).extent)


def share(sch: Schedule, loops: Sequence[Any], parallel: bool) -> None:
    """Fuse consecutive loops, and with `parallel` split the steps among threads."""
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    if parallel:
        sch.parallel(fused)


def is_uneven(count: int) -> bool:
    """Test whether threads get different numbers of a few pieces of work, so that each is better shared."""
    return count < _MANY and count & (count - 1) != 0


def split_steps(sch: Schedule, depth: Any, most: int = STEPS) -> list[Any]:
    """Split the loop of a reduction into an outer loop and up to `most` steps, a divisor of its extent."""
    return sch.split(depth, [None, next(n for n in range(most, 0, -1) if extent(sch, depth) % n == 0)])


def partial_reductions(sch: Schedule, acc: Any, lanes: int) -> Any:
    """Cut a reduction along contiguous values in two, over vectors and over a vector's lanes; return the first block.

    Returns None if the values are no whole vectors, or are not read in order. To be called before the block moves.
    """
    kinds, held, loops = iter_kinds(sch, acc), sch.get(acc), sch.get_loops(acc)
    count = kinds.count(True)
    if len(kinds) != len(loops) or not all(kinds[-count:]) or not _reads_in_order(held, count):
        return None
    along = [extent(sch, loop) for loop in loops[-count:]]
    if prod(along) % lanes or prod(along) == lanes:
        return None
    depth = sch.fuse(*loops[-count:]) if count > 1 else loops[-1]
    _, lane = sch.split(depth, [None, lanes])
    return sch.rfactor(lane, len(kinds) - count)


def _reads_in_order(block: Any, count: int) -> bool:
    """Test whether a block's last `count` axes are the last axes, in order, of the tensors it reads, the first and all others
    that have these axes.
    """
    axes = [v.var for v in block.iter_vars[-count:]]

    def ends(region: Sequence[Any]) -> bool:
        return len(region) >= count and all(at.min.same_as(v) for at, v in zip(region[-count:], axes, strict=True))

    def is_free(region: Sequence[Any]) -> bool:
        return not any(undefined.same_as(v) for at in region for undefined in undefined_vars(at.min) for v in axes)

    regions = [r.region for r in block.reads]
    return bool(regions) and ends(regions[0]) and all(ends(r) or is_free(r) for r in regions)


def named(sch: Schedule, name: str) -> Any:
    """Find the block called `name`, with or without the prefix `T_` of TVM's own operators."""
    return next(b for b in inner_blocks(sch) if name_of(sch, b).removeprefix("T_") == name)


def producer(sch: Schedule, block: Any, operand: int) -> Any:
    """Find the block that computes the tensor a block reads as number `operand`; None for a parameter of the kernel."""
    source = sch.get(block).reads[operand].source
    return next((b for b in sch.get_producers(block) if sch.get(b).writes[0].source.same_as(source)), None)


def last_behind(sch: Schedule, acc: Any) -> Any:
    """Find the block that writes the result: the last block, or a new copying block if the reduction `acc` is last."""
    last = inner_blocks(sch)[-1]
    return sch.cache_write(acc, 0, "global") if name_of(sch, last) == name_of(sch, acc) else last


def consumer_in_order(sch: Schedule, second: Any, last: Any) -> list[Any] | None:
    """List the loops of the block `last` in the axis order of the product `second`; None unless `last` reads single
    elements.
    """
    product = sch.get(second).writes[0].source
    region = next((r.region for r in sch.get(last).reads if r.source.same_as(product)), ())
    axes = [v.var for v in sch.get(last).iter_vars]
    loops = sch.get_loops(last)
    found = [loops[k] for r in region for k, v in enumerate(axes) if v.same_as(r.min)]
    return found if len(found) == len(loops) == len(region) else None


def default_pixels(extent: int, most: int) -> int:
    """Choose the pixels of an accumulator tile, at most `most`: a whole row if possible, else more than half of `most`.

    The chosen width leaves the fewest unused pixels behind the end of a row.
    """
    return extent if extent <= most else min(range(most // 2 + 1, most + 1), key=lambda d: (-(-extent // d) * d, -d))


def inline_around(sch: Schedule, anchor: Any, kept: Sequence[str] = ()) -> Any:
    """Inline all blocks but `anchor`, the blocks called `kept`, the padding and the last block, which is returned.

    Returns None for a kernel with reductions other than `anchor`, or without blocks.
    """
    if len(reductions(sch)) != (0 if anchor is None else 1):
        return None
    blocks = inner_blocks(sch)
    if not blocks:  # loops alone, as of `te.extern`
        return None
    mark = None if anchor is None else name_of(sch, anchor)
    for block in blocks[:-1]:
        if name_of(sch, block) not in (mark, *kept) and not is_pad(sch, block, mark):
            sch.compute_inline(block)
    return inner_blocks(sch)[-1]


def is_pad(sch: Schedule, block: Any, mark: str | None) -> bool:
    """Test whether a block pads the input of the reduction called `mark` with a border."""
    return mark is not None and "pad" in name_of(sch, block) and "pool" not in name_of(sch, block)


def hold(sch: Schedule, blocks: Any, pixels: Any, lanes: Any) -> None:
    """Make a register tile from three loops."""
    sch.unroll(blocks)
    sch.unroll(pixels)
    sch.vectorize(lanes)


def up_to_the_last(sch: Schedule) -> Schedule:
    """End an inner loop at the last column or pixel, in place of a condition in each step, with which no compiler vectorizes
    the loop.
    """
    func, analyzer = sch.mod["main"], sym.Analyzer()

    def bounded(loop: Any) -> Any:
        realize = loop.body
        if not isinstance(realize, s_tir.SBlockRealize) or loop.kind != tirx.ForKind.SERIAL:
            return loop
        rest: list[Any] = []
        end: Any = loop.extent
        for condition in _conditions(realize.predicate):
            first = substitute(condition, {loop.loop_var: tirx.const(0, loop.loop_var.ty.dtype)})
            moves = isinstance(condition, tirx.LT) and analyzer.can_prove_equal(condition.a - first.a, loop.loop_var)
            if moves and analyzer.can_prove_equal(condition.b, first.b):
                end = tirx.min(end, analyzer.simplify(first.b - first.a))
            else:
                rest.append(condition)
        if end is loop.extent:
            return loop
        predicate = tirx.all(*rest) if rest else tirx.const(True, "bool")
        body = s_tir.SBlockRealize(realize.iter_values, predicate, realize.block)
        return tirx.For(loop.loop_var, loop.min, end, loop.kind, body)

    return s_tir.Schedule(func.with_body(replace(func.body, tirx.For, bounded)))


def _conditions(predicate: Any) -> list[Any]:
    """Return the conditions that a predicate joins by `and`."""
    return (
        [one for side in (predicate.a, predicate.b) for one in _conditions(side)] if _joins(predicate) else [predicate]
    )


def _joins(predicate: Any) -> bool:
    return isinstance(predicate, tirx.And)
