"""Local search for a smaller arena: first fit in a placement order that is changed a little at a time.

A change exchanges two buffers in the order, or moves a buffer to an earlier place. Half of the time it brings forward a
buffer that ends at the peak. A change is kept unless the arena grows, so the search walks along plateaus. First fit
under offset constraints finds arenas in this way that a truncated search over offsets does not reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int64, c_uint64, c_void_p

import numpy as np

from tvm_cascade import native
from tvm_cascade.memory.fit import Placer, top
from tvm_cascade.native.xorshift import Xorshift
from tvm_cascade.search_monitor import monitor

_POLLED = 100  # tries, less than a millisecond, between looks at the limit


def improve(placer: Placer, offsets: Sequence[int], goal: int, tries: int) -> tuple[int, ...]:
    """Search a better layout by `tries` changed orders; return one no larger than `offsets`, and end at a peak of
    `goal` bytes.

    A limit (`search_monitor`) ends the search early.
    """
    random, found = Xorshift(0), tuple(offsets)
    order = sorted(range(len(offsets)), key=lambda i: (offsets[i], i))
    for done in range(0, tries, _POLLED):
        if top(placer.problem, found) <= goal or monitor().over():
            break
        order, found = _improve(placer, order, found, goal, min(_POLLED, tries - done), random)
    return found


def _improve(
    placer: Placer, order: Sequence[int], offsets: tuple[int, ...], goal: int, tries: int, random: Xorshift
) -> tuple[list[int], tuple[int, ...]]:
    """Run `tries` changes of `order`, and return the placement order and the layout."""
    places, at, state = np.array(order, np.int64), np.array(offsets, np.int64), c_uint64(random.state)
    answer = native.library().tvm_cascade_improve_arena(
        c_int64(len(places)), c_void_p(places.ctypes.data), *placer.pointers, c_void_p(placer.tables[4].ctypes.data),
        c_int64(goal), c_int64(tries), byref(state), c_void_p(at.ctypes.data),
    )  # fmt: skip
    if answer < 0:
        raise MemoryError("the local search for an arena ran out of memory")
    random.state = state.value
    return places.tolist(), tuple(at.tolist())
