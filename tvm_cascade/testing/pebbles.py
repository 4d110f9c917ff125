"""The least memory of any schedule that makes each pixel once, by trying all: the oracle of `schedule_bound`."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import product

from tvm_cascade.graph import Graph, Op, Window

Pixel = tuple[int, int, int]  # tensor, row, column


def least_peak(graph: Graph) -> int:
    """Bytes. All windows must be known, and the pixels that are made few: every subset of them is tried."""
    made: list[Pixel] = [p for op in graph.ops for p in _pixels(graph, op.outputs[0])]
    number = {p: 1 << k for k, p in enumerate(made)}
    reads = {p: _read(graph, op, p) for op in graph.ops for p in _pixels(graph, op.outputs[0])}
    needs = [sum(number.get(q, 0) for q in reads[p]) for p in made]
    readers: dict[Pixel, int] = {p: 0 for t in graph.tensors for p in _pixels(graph, t.index)}
    for p, read in reads.items():
        for q in read:
            readers[q] |= number[p]
    size = {p: graph.tensors[p[0]].bytes // len(list(_pixels(graph, p[0]))) for p in readers}

    def alive(state: int) -> int:
        return sum(
            size[p]
            for p, by in readers.items()
            if (p not in number or state & number[p]) and (p[0] in graph.outputs or by & ~state)
        )

    every, best, heap = (1 << len(made)) - 1, {0: alive(0)}, [(alive(0), 0)]
    while True:
        peak, state = heappop(heap)
        if state == every:
            return peak
        if peak > best[state]:
            continue
        for k, need in enumerate(needs):
            after = state | 1 << k
            if after != state and need & ~state == 0:
                reached = max(peak, alive(after))
                if reached < best.get(after, reached + 1):
                    best[after] = reached
                    heappush(heap, (reached, after))


def _pixels(graph: Graph, tensor: int) -> list[Pixel]:
    t = graph.tensors[tensor]
    return [(tensor, y, x) for y, x in product(range(t.rows), range(t.columns))]


def _read(graph: Graph, op: Op, pixel: Pixel) -> list[Pixel]:
    """The pixels that a pixel of an operator's output reads."""
    _, y, x = pixel
    found: list[Pixel] = []
    for t, rows, columns in zip(op.inputs, op.windows, op.columns, strict=True):
        tensor = graph.tensors[t]
        found += [(t, *at) for at in product(_taps(rows, y, tensor.rows), _taps(columns, x, tensor.columns))]
    return found


def _taps(window: Window | None, y: int, size: int) -> list[int]:
    if window is None:
        return list(range(size))
    taps = (window.first(y) + k * window.dilation for k in range(window.extent))
    return [tap for tap in taps if 0 <= tap < size]
