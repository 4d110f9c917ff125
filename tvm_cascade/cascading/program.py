"""Traces as loops: a cascade repeats itself row after row and pixel after pixel, and so may the code that drives it.

A trace of 100,000 steps becomes a few hundred numbers: adjacent repeats of a block become a loop, short blocks first,
until nothing repeats any more. Equal loops are one object, so that what repeats may itself contain loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Item = "int | Loop"

LONGEST = 256  # items of a block that is looked for


@dataclass(frozen=True, slots=True)
class Loop:
    """`body`, `count` times over."""

    count: int
    body: tuple[int | Loop, ...]


def compress(trace: Sequence[int], longest: int = LONGEST) -> tuple[int | Loop, ...]:
    """A program whose `expand` is `trace`."""
    names: dict[int | Loop, int] = {}
    items: list[int | Loop] = []

    def name(item: int | Loop) -> int:
        if item not in names:
            names[item] = len(items)
            items.append(item)
        return names[item]

    tokens = np.array([name(o) for o in trace], np.int64)
    period = 1
    while period <= min(longest, len(tokens) // 2):
        before = len(tokens)
        tokens = _fold(tokens, period, lambda count, block: name(Loop(count, tuple(items[t] for t in block))))
        period = 1 if len(tokens) < before else period + 1
    return tuple(items[t] for t in tokens)


def _fold(tokens: NDArray[np.int64], period: int, loop) -> NDArray[np.int64]:
    """`tokens` with every run of at least two equal blocks of `period` tokens replaced by a loop."""
    same = tokens[period:] == tokens[:-period]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    folded: list[NDArray[np.int64]] = []
    at = 0
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        start = max(int(start), at)
        count = (int(stop) - start) // period + 1
        if count < 2 or (period == 1 and count < 3):
            continue
        folded.extend((tokens[at:start], np.array([loop(count, tokens[start : start + period])], np.int64)))
        at = start + count * period
    return np.concatenate([*folded, tokens[at:]]) if folded else tokens


def expand(program: Sequence[int | Loop]) -> Iterator[int]:
    """The trace of a program."""
    for item in program:
        if isinstance(item, Loop):
            for _ in range(item.count):
                yield from expand(item.body)
        else:
            yield item


def size(program: Sequence[int | Loop]) -> int:
    """Numbers that a table of the program holds: one for each call, two more for each loop."""
    return sum(2 + size(item.body) if isinstance(item, Loop) else 1 for item in program)
