"""Layout inference: the row axis of every tensor (NHWC or NCHW), from operators' layouts and access patterns.

An operator with a layout in the function votes for that layout: the patterns of single-row maps, such as a sliding
window's frame, do not tell. Tensors out of such votes' reach are decided if access patterns distinguish height from
channels: windows slide along spatial axes, contractions run over channels, global pools run over both spatial axes.
Votes propagate through operators without a vote (element-wise operators, layout transposes: the input's row axis maps
to the output axis that reads it). Rank-4 tensors that no vote reaches follow the majority, NHWC in a tie; tensors with
another rank above 2 take axis 1. A tensor touched by views alone takes the first axis longer than 1: a signal with a
single channel is the same bytes as `[1, 1, T]` and as `[1, T, 1]`. Tensors of rank 2 and below have no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from tvm_cascade.passes.intervals import Strided
from tvm_cascade.passes.windows import AccessPattern
from tvm_cascade.schedules.tir import shape_of

NHWC_ROWS, NCHW_ROWS = 1, 2
_ROWS = {"NHWC": NHWC_ROWS, "NCHW": NCHW_ROWS}


@dataclass(frozen=True)
class Use:
    """An operator's input and output tensors, by index, and the access pattern."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    pattern: AccessPattern


@dataclass(frozen=True)
class _Link:
    """How slices along an output's axes depend on an input's axes; both are tensors, or positions in a pattern.

    `local[b][a]`: a slice along output axis b reads only a part of input axis a. `slides[b][a]`: in addition, that part
    moves from one slice to the next, and spans several elements or moves by more than one: a sliding window.
    """

    input: int
    output: int
    local: tuple[tuple[bool, ...], ...]
    slides: tuple[tuple[bool, ...], ...]
    layout: str = ""  # as the operator says it

    def forward(self, axis: int) -> int | None:
        return next((b for b, row in enumerate(self.local) if axis < len(row) and row[axis]), None)

    def backward(self, axis: int) -> int | None:
        return next((a for a, here in enumerate(self.local[axis]) if here), None)


_known = WeakKeyDictionary[AccessPattern, list[_Link]]()  # patterns that candidates of a network share


def row_axes(shapes: Sequence[tuple[int, ...]], uses: Sequence[Use]) -> tuple[int | None, ...]:
    """Infer every tensor's row axis; None for tensors with rank 2 and below."""
    links = [link for use in uses for link in _links(use)]
    found: dict[int, int] = {}
    votes = [_vote(shapes[link.input], link) for link in links]
    default = NCHW_ROWS if votes.count(NCHW_ROWS) > votes.count(NHWC_ROWS) else NHWC_ROWS
    for said in (True, False):
        for link, vote in zip(links, votes, strict=True):
            if vote is None or (said and not link.layout):
                continue
            found.setdefault(link.input, vote)
            target = link.forward(vote)
            if len(shapes[link.output]) == 4:
                found.setdefault(link.output, vote if target is None else target)
        while any([_spread(link, shapes, found) for link in (*links, *reversed(links))]):
            pass
    touched = {t for use in uses for t in (*use.inputs, *use.outputs)}
    plain = (
        _first_long(s) if t not in touched else default if len(s) == 4 else NHWC_ROWS for t, s in enumerate(shapes)
    )
    return tuple(
        found.get(t, axis) if len(s) > 2 else None for t, (s, axis) in enumerate(zip(shapes, plain, strict=True))
    )


def _first_long(shape: tuple[int, ...]) -> int:
    """Return the first axis longer than 1, from axis 1 on; axis 1 if none is, or for several samples."""
    long = (axis for axis, extent in enumerate(shape) if axis and extent > 1)
    return next(long, NHWC_ROWS) if shape[:1] == (1,) else NHWC_ROWS


def _spread(link: _Link, shapes: Sequence[tuple[int, ...]], found: dict[int, int]) -> bool:
    """Push a known row axis across an operator, into `found`; return True if an axis was added."""
    ranks = len(shapes[link.input]), len(shapes[link.output])
    if min(ranks) < 3 or (link.input in found) == (link.output in found):
        return False
    known, unknown, follow = link.input, link.output, link.forward
    if link.output in found:
        known, unknown, follow = unknown, known, link.backward
    axis = follow(found[known])
    if axis is None and ranks[0] != ranks[1]:
        return False
    found[unknown] = found[known] if axis is None else axis
    return True


def _links(use: Use) -> list[_Link]:
    """Return the links between an operator's tensors."""
    links = _known.get(use.pattern)
    if links is None:
        links = _known[use.pattern] = _links_of(use.pattern)
    return [replace(link, input=use.inputs[link.input], output=use.outputs[link.output]) for link in links]


def _links_of(pattern: AccessPattern) -> list[_Link]:
    """Return the links between a pattern's inputs and outputs, by position."""
    made: list[_Link] = []
    for output, target in enumerate(pattern.outputs):
        shape = shape_of(target)
        if len(shape) < 3:
            continue
        probes = [  # demand of the first two slices along each output axis: with groups, both lie in one group
            tuple(pattern.demand({target: {b: Strided(y, y, 0)}}, [target]) for y in (0, min(1, extent - 1)))
            for b, extent in enumerate(shape)
        ]
        everything = pattern.demand({}, [target])
        for tensor, source in enumerate(pattern.inputs):
            if source not in everything:
                continue
            full = [p.hi - p.lo + 1 for p in everything[source]]
            local, slides = [], []
            for one, other in probes:
                if source not in one or source not in other:
                    break
                pairs = list(zip(one[source], other[source], full, strict=True))
                here = [p.hi - p.lo + 1 < d for p, _, d in pairs]
                local.append(tuple(here))
                moved = [q.lo - p.lo for p, q, _ in pairs]
                slides.append(tuple(h and m > (p.hi == p.lo) for h, m, (p, *_) in zip(here, moved, pairs, strict=True)))
            else:
                made.append(_Link(tensor, output, tuple(local), tuple(slides), pattern.layout))
    return made


def _vote(shape: tuple[int, ...], link: _Link) -> int | None:
    """Return a rank-4 input's row axis as implied by an operator; None if nothing decides between NHWC and NCHW."""
    if len(shape) != 4 or len(link.local) != 4:
        return None
    if link.layout in _ROWS:
        return _ROWS[link.layout]
    local = [any(row[a] for row in link.local) for a in range(4)]
    slides = [any(row[a] for row in link.slides) for a in range(4)]
    read_whole = [shape[a] > 1 and not local[a] for a in range(4)]
    nhwc = slides[1] + (read_whole[3] and (local[1] or local[2])) + (read_whole[1] and read_whole[2] and local[3])
    nchw = slides[3] + (read_whole[1] and (local[2] or local[3])) + (read_whole[2] and read_whole[3] and local[1])
    if nhwc == nchw:
        return None
    return NHWC_ROWS if nhwc > nchw else NCHW_ROWS
