"""The simulation of a segment in the compiled library: passes its tables to C and reads the result."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int64, c_void_p
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_cascade.cascading.simulate import Demand, Write


def most_held(library: ctypes.CDLL, demand: Demand, writes: Sequence[Write]) -> tuple[int, ...]:
    """Compute the same as `most_held_in_python`, in C."""
    most = _numbers([1] * len(writes))
    _simulate(library, demand, writes, most, None)
    return tuple(most)


def demanded(library: ctypes.CDLL, demand: Demand) -> tuple[int, ...]:
    """Compute the same as `demanded_in_python`, in C."""
    trace = (c_int64 * sum(count for count, _ in demand[0]))()
    _simulate(library, demand, (), _numbers(()), trace)
    return tuple(trace)


def _simulate(
    library: ctypes.CDLL,
    demand: Demand,
    writes: Sequence[Write],
    most: ctypes.Array[c_int64],
    trace: ctypes.Array[c_int64] | None,
) -> None:
    """Run the steps of a segment; `most` and `trace` get the result."""
    members, sinks = demand
    feeds, readers = [makers for _, makers in members], [among for _, _, among in writes]
    answer = library.tvm_cascade_simulate(
        c_int64(len(members)), _numbers([count for count, _ in members]), *_ragged(feeds),
        c_int64(len(sinks)), _numbers(sinks),
        c_int64(len(writes)), _numbers([o for o, _, _ in writes]), _texts([made for _, made, _ in writes]), *_ragged(readers),
        most, trace,
    )  # fmt: skip
    if answer < 0:
        raise MemoryError("simulating a segment ran out of memory")


def _ragged(
    rows: Sequence[Sequence[tuple[int, bytes]]],
) -> tuple[ctypes.Array[c_int64], ctypes.Array[c_int64], c_void_p]:
    """Return rows with different lengths, flattened: the index of each row's first entry, then members and their
    tables.
    """
    flat = [entry for row in rows for entry in row]
    return (
        _numbers([*accumulate(map(len, rows), initial=0)]),
        _numbers([o for o, _ in flat]),
        _texts([t for _, t in flat]),
    )


def _numbers(values: Sequence[int]) -> ctypes.Array[c_int64]:
    return (c_int64 * len(values))(*values)


def _texts(tables: Sequence[bytes]) -> c_void_p:
    """Return pointers to int64 tables, which lie in their owners' bytes."""
    return ctypes.cast((c_char_p * len(tables))(*tables), c_void_p)
