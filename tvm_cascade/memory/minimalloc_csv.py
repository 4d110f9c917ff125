"""minimalloc's CSV: `id,lower,upper,size` in, `id,lower,upper,size,offset` out; lifetimes half-open, ids any text."""

from __future__ import annotations

import csv
from pathlib import Path

from tvm_cascade.errors import LoadError
from tvm_cascade.memory.allocate import AllocateOptions, allocate
from tvm_cascade.memory.problem import Allocation, Buffer, Problem
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file
from tvm_cascade.request import AllocateRequest
from tvm_cascade.schema.searches import Layout
from tvm_cascade.search_monitor import SearchMonitor, above

_COLUMNS = ("id", "lower", "upper", "size")


def read(path: str | Path, capacity: int | None = None) -> Problem:
    """Read the problem in the CSV file `path`, in google/minimalloc's format.

    Columns `alignment` and `offset` are optional; an empty offset leaves the buffer unpinned. Buffers are numbered by
    row, and ids in the file become names.

    Raises
    ------
    LoadError
        A row is wrong; the message names it.
    """
    try:
        with readable(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            fields = reader.fieldnames or ()
    except OSError as e:
        raise LoadError(path, e.strerror or str(e)) from e
    except (UnicodeDecodeError, csv.Error) as e:
        raise LoadError(path, f"not readable as CSV ({e})") from e
    if missing := [c for c in _COLUMNS if c not in fields]:
        raise LoadError(path, f"lacks the column {', '.join(missing)}; the first line must name {', '.join(_COLUMNS)}")
    buffers = tuple(_buffer(path, i, row) for i, row in enumerate(rows))
    first: dict[str, int] = {}
    for i, buffer in enumerate(buffers):
        if first.setdefault(buffer.name, i) != i:
            raise LoadError(path, f"line {i + 2}: id {buffer.name} is that of line {first[buffer.name] + 2} too")
    return Problem(buffers, capacity)


def _buffer(path: str | Path, i: int, row: dict[str, str | None]) -> Buffer:
    if None in row:
        raise LoadError(path, f"line {i + 2}: more fields than columns")
    try:
        lower, upper, size = (int(row[c] or "") for c in _COLUMNS[1:])
        alignment = int(row.get("alignment") or 1)
        offset = int(text) if (text := row.get("offset")) else None
    except ValueError as e:
        raise LoadError(path, f"line {i + 2}: lower, upper and size must be whole numbers") from e
    if size < 0 or lower >= upper:
        raise LoadError(
            path,
            f"line {i + 2}: a size of {size} and a life from {lower} to {upper}; sizes are at least 0, lives not empty",
        )
    return Buffer(i, size, lower, upper, alignment, offset, row["id"] or str(i))


def write(path: str | Path, problem: Problem, allocation: Allocation) -> None:
    """Write a problem and the buffers' offsets as CSV, in the order of `Problem.buffers`."""
    with whole_file(path) as partial, partial.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*_COLUMNS, "offset"))
        for b, offset in zip(problem.buffers, allocation.offsets, strict=True):
            out.writerow((b.name, b.lower, b.upper, b.size, offset))


def run(path: str | Path, request: AllocateRequest | None = None, out: str | Path | None = None) -> Layout:
    """Run the command `tvm-cascade allocate`; return `peak_bytes`, `bound_bytes`, `optimal`, `gap_percent`, `limited`
    and `seconds`.

    With a capacity the search may take far longer, and stops at the first fitting layout.
    """
    asked = request or AllocateRequest()
    assert not isinstance(asked.capacity, str)
    problem = read(path, asked.capacity)
    effort = AllocateOptions(nodes=400_000 if asked.capacity is None else 4_000_000)
    with SearchMonitor(asked.time_limit) as limit:
        allocation = allocate(problem, options=effort)
    if out is not None:
        write(out, problem, allocation)
    return {
        "peak_bytes": allocation.peak,
        "bound_bytes": allocation.bound,
        "optimal": allocation.optimal,
        "gap_percent": round(above(allocation.peak, allocation.bound), 2),
        "limited": limit.limited,
        "seconds": round(allocation.seconds, 3),
    }
