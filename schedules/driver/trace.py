"""Compression of traces: repeated step sequences become nested loops over tables, on two levels.

A cascade settles into a pattern: the same steps for every pixel in a row, the same rows for most of a map. The trace is
split greedily into runs of equal blocks, the sequence of these runs into runs again, and the driver replays

    for outer in blocks: repeat: for inner in runs[outer]: repeat: for step in steps[inner]: run it

from three tables in flash. A trace without repetitions is stored step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_LONGEST_PERIOD = 96  # items of a block at most: steps on the inner level, runs on the outer


@dataclass(frozen=True, slots=True)
class Loop:
    """`items[start : start + length]` of the level below, `count` times."""

    start: int
    length: int
    count: int


@dataclass(frozen=True, slots=True)
class Program:
    """A compressed trace: each loop in `blocks` repeats a range of `runs`, and each run repeats a range of `steps`."""

    steps: tuple[int, ...]  # numbers of operators
    runs: tuple[Loop, ...]  # over steps
    blocks: tuple[Loop, ...]  # over runs


def compress(trace: Sequence[int]) -> Program:
    """Compress a trace; equal blocks are stored once."""
    return _compressed(tuple(trace))


@lru_cache(maxsize=128)  # plans that are compared have most segments in common
def _compressed(trace: tuple[int, ...]) -> Program:
    steps, runs = _packed(np.asarray(trace, np.int64))
    names: dict[Loop, int] = {}
    table, blocks = _packed(np.array([names.setdefault(r, len(names)) for r in runs], np.int64))
    distinct = list(names)
    return Program(tuple(steps), tuple(distinct[k] for k in table), tuple(blocks))


def _packed(symbols: np.ndarray) -> tuple[list[int], list[Loop]]:
    """Split `symbols` into repeated blocks: a table of the distinct blocks, and `symbols` as loops over the table."""
    table: list[int] = []
    placed: dict[tuple[int, ...], int] = {}
    loops: list[Loop] = []
    for loop in tandem_runs(symbols):
        content = tuple(int(v) for v in symbols[loop.start : loop.start + loop.length])
        if content not in placed:
            placed[content] = len(table)
            table += content
        loops.append(Loop(placed[content], loop.length, loop.count))
    return table, loops


def tandem_runs(symbols: np.ndarray) -> list[Loop]:
    """Split `symbols` greedily into loops over ranges, in order: the block with the largest total of repetitions comes
    next.
    """
    n = len(symbols)
    covered, period, place = np.ones(n, np.int64), np.ones(n, np.int64), np.arange(n)
    for p in range(1, min(_LONGEST_PERIOD, n // 2) + 1):
        same = symbols[p:] == symbols[:-p]
        stops = np.append(np.nonzero(~same)[0], len(same))
        lengths = np.diff(stops, prepend=-1)
        if lengths.max() <= p:
            continue  # nothing is repeated
        run = np.repeat(stops, lengths)[: len(same)] - place[: len(same)]  # up to the next stop
        cover = np.where(run >= p, (run // p + 1) * p, 0)
        better = cover > covered[: len(cover)]
        covered[: len(cover)][better] = cover[better]
        period[: len(cover)][better] = p
    loops: list[Loop] = []
    i = 0
    while i < n:
        if covered[i] > period[i]:
            loops.append(Loop(i, int(period[i]), int(covered[i] // period[i])))
            i += int(covered[i])
        elif loops and loops[-1].count == 1 and loops[-1].length < _LONGEST_PERIOD:
            last = loops.pop()
            loops.append(Loop(last.start, last.length + 1, 1))
            i += 1
        else:
            loops.append(Loop(i, 1, 1))
            i += 1
    return loops
