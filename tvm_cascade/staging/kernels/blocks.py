"""What the CPU schedules ask of a kernel's blocks and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.tirx import IterVar

Schedule = Any  # s_tir.Schedule, whose stubs type every primitive by its widest form


def inner_blocks(sch: Schedule) -> list[Any]:
    """The blocks of a kernel, in the order in which they run."""
    return sch.get_child_blocks(sch.get_sblock("root"))


def iter_kinds(sch: Schedule, block: Any) -> list[bool]:
    """Per axis of the block, whether it is a reduction."""
    return [v.iter_type == IterVar.CommReduce for v in sch.get(block).iter_vars]


def is_reduction(sch: Schedule, block: Any) -> bool:
    """Whether the block has an axis of reduction."""
    return any(iter_kinds(sch, block))


def reductions(sch: Schedule) -> list[Any]:
    """The blocks with an axis of reduction."""
    return [b for b in inner_blocks(sch) if is_reduction(sch, b)]


def name_of(sch: Schedule, block: Any) -> str:
    """The block's name, which is unique in its kernel."""
    return sch.get(block).name_hint


def extent(sch: Schedule, loop: Any) -> int:
    """The number of steps of a loop."""
    return int(sch.get(loop).extent)


def share(sch: Schedule, loops: Sequence[Any], parallel: bool) -> None:
    """Fuse loops that follow each other, and with `parallel` share their steps among threads."""
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    if parallel:
        sch.parallel(fused)


def named(sch: Schedule, name: str) -> Any:
    """The block of a name, with or without the prefix of TVM's own operators."""
    return next(b for b in inner_blocks(sch) if name_of(sch, b).removeprefix("T_") == name)


def producer(sch: Schedule, block: Any, operand: int) -> Any:
    """The block that computes an operand of another one; None for a parameter."""
    source = sch.get(block).reads[operand].source
    return next((b for b in sch.get_producers(block) if sch.get(b).writes[0].source.same_as(source)), None)


def last_behind(sch: Schedule, acc: Any) -> Any:
    """The block that writes the result: the last one, or one that copies what the reduction `acc` computes there."""
    last = inner_blocks(sch)[-1]
    return sch.cache_write(acc, 0, "global") if name_of(sch, last) == name_of(sch, acc) else last


def consumer_in_order(sch: Schedule, second: Any, last: Any) -> list[Any] | None:
    """The loops of the last block in the order of the axes of the product `second`; None where it does not read its elements
    one by one."""
    product = sch.get(second).writes[0].source
    region = next((r.region for r in sch.get(last).reads if r.source.same_as(product)), ())
    axes = [v.var for v in sch.get(last).iter_vars]
    loops = sch.get_loops(last)
    found = [loops[k] for r in region for k, v in enumerate(axes) if v.same_as(r.min)]
    return found if len(found) == len(loops) == len(region) else None


def default_pixels(extent: int, most: int) -> int:
    """Pixels of an accumulator tile, of at most `most`: a row that fits, else more than half of them, so that the tiles of a
    row hold as few pixels as possible behind its end."""
    return extent if extent <= most else min(range(most // 2 + 1, most + 1), key=lambda d: (-(-extent // d) * d, -d))


def inline_around(sch: Schedule, anchor: Any) -> Any:
    """Inline all blocks but `anchor`, its padding and the last one, which is returned.

    None where the kernel has reductions other than `anchor`, or no blocks.
    """
    if len(reductions(sch)) != (0 if anchor is None else 1):
        return None
    blocks = inner_blocks(sch)
    if not blocks:  # loops alone, as of `te.extern`
        return None
    mark = None if anchor is None else name_of(sch, anchor)
    for block in blocks[:-1]:
        if name_of(sch, block) != mark and not is_pad(sch, block, mark):
            sch.compute_inline(block)
    return inner_blocks(sch)[-1]


def is_pad(sch: Schedule, block: Any, mark: str | None) -> bool:
    """Whether a block copies its input with a border for the reduction of that name."""
    return mark is not None and "pad" in name_of(sch, block) and "pool" not in name_of(sch, block)


def hold(sch: Schedule, blocks: Any, pixels: Any, lanes: Any) -> None:
    """Make a tile of registers of three loops."""
    sch.unroll(blocks)
    sch.unroll(pixels)
    sch.vectorize(lanes)
