"""Cuts, tile heights and memories with the fewest cycles: dynamic programming over an execution order's cut positions.

The state of a cut is the memory of every tensor live across the cut. A segment adds the operators' cycles and, for
every accessed byte, the cycles of the byte's memory (`Price`). Two things are relaxed: a memory has to hold live bytes,
not a layout, and a segment's many inner blocks may be split between memories, filled in by accessed bytes per byte,
most first, which is the optimum under that relaxation. So the least total is a lower bound on all plans with these
segment forms; the layouts with the least totals are worth placing (`memory.pools`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from tvm_cascade.cascading.assemble import Layout
from tvm_cascade.cascading.interleaving import Interleaving
from tvm_cascade.cascading.layout_search import Search
from tvm_cascade.cascading.timed_form import SAME, Block, Form, most_shared, ordered
from tvm_cascade.graph import Tile
from tvm_cascade.machine import Ram
from tvm_cascade.search_monitor import monitor

_FEW = 24  # operators of a network whose segments are tried in all steps of several rows
_FEW_BY_PIXELS = 100  # operators of a network whose segments are tried in steps of pixels too
_TILE_ROWS = (8, 6, 4, 3, 2)  # rows of a step that are tried, beside one and the whole map
_TILE_ROWS_OF_MANY = (4, 2)  # where there are more operators
_LONGEST_BY_ROWS = 8  # operators of a segment that is tried in steps of several rows
_STATES = 96  # of a cut that are followed
_FEWEST_STATES = 6  # where segments are so many that more would take too long
_EFFORT = 300_000  # segments behind states, with all memories of what they leave, that are looked at
_KEPT = 8  # layouts of a state
_CHOICES = 243  # of memories for tensors that a segment makes: all of five in three memories
_ALIKE = 1e-5  # of layouts whose cycles differ by no more than this part of them one is kept
_DIVIDED = 6  # blocks of a segment beyond which some of them may lie in parts
_MADE = 5  # most tensors that a segment leaves

Asked = tuple[int, int, Interleaving]


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a segment: arithmetic cycles, and bytes read and written by block."""

    cycles: float
    accessed: dict[str, float]  # "tensor 3" by root; "state", "scratch", "accumulator 5" of the segment


@dataclass(frozen=True, slots=True)
class TimedLayouts:
    """Layouts with the fewest cycles, their cycles if memories hold just live bytes, and a bound on every plan
    searched.
    """

    layouts: tuple[Layout, ...]
    cycles: tuple[float, ...]  # by layout: no placement of it takes fewer
    bound: float  # cycles


def _fewest(known: Mapping[int, float], more: Mapping[int, float]) -> dict[int, float]:
    """Return the paths with the fewest cycles; among nearly equal paths a single path."""
    kept: dict[int, float] = {}
    for path, cycles in sorted((*known.items(), *more.items()), key=lambda e: (e[1], e[0])):
        if path not in kept and all(cycles - c > _ALIKE * cycles for c in kept.values()):
            kept[path] = cycles
        if len(kept) == _KEPT:
            break
    return kept


class _Paths:
    """Segments that follow one another from the first cut on, by number; 0 is the empty path."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, Form | None]] = [(0, None)]
        self._numbers: dict[tuple[int, int], int] = {}

    def behind(self, path: int, form: Form) -> int:
        """Add a segment to the path and return the new path's number."""
        number = self._numbers.setdefault((path, id(form)), len(self._ends))
        if number == len(self._ends):
            self._ends.append((path, form))
        return number

    def layout(self, path: int) -> Layout:
        """Convert a path to a layout."""
        found: list[Form] = []
        while (form := self._ends[path][1]) is not None:
            found.insert(0, form)
            path = self._ends[path][0]
        return Layout((0, *(f.j for f in found)), tuple(f.interleaving for f in found))


class TimedCuts:
    """The search for a single order."""

    def __init__(
        self,
        search: Search,
        memories: Sequence[Ram],
        most: int | None,
        priced: Callable[[Search, Sequence[Asked]], Sequence[Price]],
    ) -> None:
        """Parameters
        ----------
        memories : Ram
            In any order.
        most : int, optional
            Bytes of all memories together.
        priced : Callable
            The prices of segments of a search.
        """
        self.search, self.costs, self.priced = search, search.costs, priced
        memories = sorted(memories, key=lambda ram: ram.cycles_per_byte)
        self.cost = [ram.cycles_per_byte for ram in memories]
        self.room = [inf if ram.capacity is None else ram.capacity for ram in memories]
        self.most = min(sum(self.room), inf if most is None else most)
        self._known: dict[tuple[tuple[Block, ...], tuple[float, ...]], float] = {}  # by blocks and free bytes
        self.dropped = inf  # the least total that what is not followed may come to
        self._ceiling = inf

    def best(self, count: int, ceiling: float) -> TimedLayouts:
        """Return at most `count` layouts that may take fewer than `ceiling` cycles, the best first.

        Raises `SearchStopped` if a limit strikes first.
        """
        self._ceiling, forms = ceiling, self._forms(ceiling)
        ahead, paths = _Ahead(self, forms), _Paths()
        # by cut and state, the fewest cycles of some paths that lead there
        states: list[dict[tuple[int, ...], dict[int, float]]] = [{} for _ in range(self.search.size + 1)]
        for state in product(range(len(self.cost)), repeat=len(self.costs.across[0])):
            states[0][state] = {0: 0.0}
        work = [sum(len(self.cost) ** len(form.made) for form in own) for own in forms]
        effort, rest = _EFFORT, sum(work)
        for i in range(self.search.size):
            monitor().check()
            followed = self._followed(i, states[i], ahead, effort // rest if rest else _STATES)
            effort, rest = effort - len(followed) * work[i], rest - work[i]
            for state, known in followed:
                spent = min(known.values())
                for form in forms[i]:
                    for after, added in self._steps(form, state, spent, ahead):
                        least = added + ahead.least(form.j, after)
                        below = {paths.behind(p, form): c + added for p, c in known.items() if c + least < ceiling}
                        if below:
                            states[form.j][after] = _fewest(states[form.j].get(after, {}), below)
            states[i].clear()
        totals: dict[int, float] = {}
        for known in states[-1].values():
            totals |= {path: min(cycles, totals.get(path, inf)) for path, cycles in known.items()}
        ends = sorted(totals, key=lambda p: (totals[p], p))[:count]
        bound = min([*totals.values(), self.dropped, ceiling])
        return TimedLayouts(tuple(paths.layout(end) for end in ends), tuple(totals[end] for end in ends), bound)

    def _forms(self, ceiling: float) -> list[list[Form]]:
        """List, by position, the forms of segments starting there that plans below `ceiling` may have."""
        asked: list[Asked] = []
        for i in range(self.search.size):
            monitor().check()
            for j in range(i + 1, self.search.size + 1):
                asked += [(i, j, c) for c in self._interleavings(i, j) if self._fits(i, j, c)]
        made = [self._form(s, p) for s, p in zip(asked, self.priced(self.search, asked), strict=True)]
        n = self.search.size
        least = [self.least(form) for form in made]
        until, after = [0.0] + [inf] * n, [inf] * n + [0.0]
        for form, cycles in zip(made, least, strict=True):
            until[form.j] = min(until[form.j], until[form.i] + cycles)
        for form, cycles in zip(reversed(made), reversed(least), strict=True):
            after[form.i] = min(after[form.i], after[form.j] + cycles)
        kept: list[list[Form]] = [[] for _ in range(n)]
        for form, cycles in zip(made, least, strict=True):
            alike = (f for f in kept[form.i] if f.j == form.j)
            if until[form.i] + cycles + after[form.j] < ceiling and not any(form.worse(f) for f in alike):
                kept[form.i].append(form)
        return kept

    def least(self, form: Form) -> float:
        """Compute a lower bound on a segment's cycles, for any placement."""
        blocks, shared = form.everything()
        return form.cycles + self._in_parts(blocks, [self.room[0] + shared, *self.room[1:]])

    def _interleavings(self, i: int, j: int) -> Iterator[Interleaving]:
        """Yield the search's interleavings, and steps of several rows."""
        if not self.search.possible(i, j) or len(self.costs.across[j]) > _MADE + len(self.costs.across[i]):
            return
        small = self.search.size <= _FEW
        by_pixels = self.search.size <= _FEW_BY_PIXELS
        yield from self.search.interleavings(i, j) if by_pixels else (next(self.search.interleavings(i, j)),)
        graph = self.costs.tables.graph
        working = [graph.ops[o] for o in self.costs.members(i, j) if o >= 0]
        if not any(op.kernels.multi_row for op in working) or len(working) > _LONGEST_BY_ROWS:
            return
        rows = {graph.tensors[op.outputs[0]].rows for op in working}
        for count in dict.fromkeys((max(rows), *(_TILE_ROWS if small else _TILE_ROWS_OF_MANY))):
            if count > 1 and not any(n % min(count, n) for n in rows):
                yield Interleaving(Tile(count))

    def _fits(self, i: int, j: int, interleaving: Interleaving) -> bool:
        return self.costs.exact_apart(i, j, interleaving) - self.costs.most_shared(i, j) <= self.most

    def _form(self, segment: Asked, price: Price) -> Form:
        """Return a priced segment as blocks."""
        i, j, interleaving = segment
        costs, accessed = self.costs, price.accessed
        before, behind = costs.across[i], costs.across[j]
        held = {t: costs.bytes_held(i, j, t, n, interleaving) for t, n in costs.held(i, j, interleaving).items()}
        pairs = costs.pairs(i, j, interleaving)
        same = {p.writer for p in pairs if p.exact}
        made = [t for t in held if costs.last[t] >= j]
        shared = {(p.reader, p.writer): min(p.size, max(p.reach, 0)) for p in pairs if not p.exact}
        apart = [p for p in pairs if not p.exact]
        ends = [(before.index(p.reader), shared[p.reader, p.writer], max(p.reach, 0), p.writer) for p in apart]
        sizes = [costs.tables.tensor_bytes[t] for t in before]
        most = most_shared(sizes, (pair[:3] for pair in ends))
        inner = most_shared(sizes, (pair[:3] for pair in ends if pair[3] not in made))
        alone = [(f"tensor {t}", held[t]) for t in held if costs.last[t] < j]
        alone += [
            ("state", costs.state_bytes(i, j, interleaving.tile)),
            ("scratch", costs.scratch_bytes(i, j, interleaving)),
        ]
        for o in costs.accumulating(i, j):
            alone += [(f"accumulator {o}", costs.tables.graph.ops[o].kernels.accumulator_bytes)]
        carried = [(t in held, made.index(t) if t in held else before.index(t)) for t in behind]
        over = [(before.index(r), made.index(w), n) for (r, w), n in shared.items() if w in made and n]
        over += [(before.index(p.reader), made.index(p.writer), SAME) for p in pairs if p.exact and p.writer in made]
        return Form(
            i,
            j,
            interleaving,
            price.cycles,
            tuple((size, accessed.get(f"tensor {t}", 0.0)) for size, t in zip(sizes, before, strict=True)),
            tuple((0 if t in same else held[t], accessed.get(f"tensor {t}", 0.0)) for t in made),
            tuple((size, accessed.get(name, 0.0)) for name, size in alone),
            tuple(carried),
            tuple(over),
            tuple((r, inner.get(r, 0), n) for r, n in sorted(most.items())),
        )

    def _followed(
        self, i: int, found: Mapping[tuple[int, ...], dict[int, float]], ahead: _Ahead, count: int
    ) -> list[tuple[tuple[int, ...], dict[int, float]]]:
        """Return the most promising states of a cut, `count` within the limits `_FEWEST_STATES` and `_STATES`."""
        count = max(_FEWEST_STATES, min(_STATES, count))
        totals = {s: min(known.values()) + ahead.least(i, s) for s, known in found.items() if known}
        order = sorted(totals, key=lambda s: (totals[s], s))
        if len(order) > count:
            self.dropped = min(self.dropped, totals[order[count]])
        return [(s, found[s]) for s in order[:count]]

    def _steps(
        self, form: Form, state: Sequence[int], spent: float, ahead: _Ahead
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        """Yield the states behind a segment that may stay below the ceiling after `spent` cycles, with the cycles
        added.
        """
        cost, room, below = self.cost, self.room, self._ceiling - spent
        base, taken = form.cycles, [0] * len(cost)
        for (size, accessed), m in zip(form.across, state, strict=True):
            base += accessed * cost[m]
            taken[m] += size
        fixed = {w: state[r] for r, w, shared in form.over if shared == SAME}
        inner, most = tuple(ordered(form.inner)), {r: n for r, _, n in form.shared}
        free = [a - b for a, b in zip(room, taken, strict=True)]
        for made in self._choices(form, fixed, free, spent + base + ahead.anywhere(form.j)):
            used, total = list(taken), base
            for (size, accessed), m in zip(form.made, made, strict=True):
                used[m] += size
                total += accessed * cost[m]
            saved: dict[int, int] = {}
            for r, w, shared in form.over:
                if shared != SAME and made[w] == state[r]:
                    saved[r] = saved.get(r, 0) + shared
            for r, shared in saved.items():
                used[state[r]] -= min(shared, most[r])
            free = [a - b for a, b in zip(room, used, strict=True)]
            if min(free) < 0:
                continue
            left = self.most - sum(used)
            for r, spare in form.spare(saved):
                free[state[r]] += spare
                left += spare
            after = tuple((made if new else state)[k] for new, k in form.carried)
            if total + self._in_parts(inner, free) + ahead.least(form.j, after) >= below:
                continue
            total += self._filled(inner, tuple(free), left)
            if total < inf:
                yield after, total

    def _choices(
        self, form: Form, fixed: Mapping[int, int], free: Sequence[float], beside: float
    ) -> Iterator[tuple[int, ...]]:
        """Yield the most promising memories, with room, for the tensors a segment makes; `fixed` are given.

        `beside`: fewest cycles of all other blocks.
        """
        cost, sizes = self.cost, [size for size, _ in form.made]  # bytes that each takes beside all that it may share
        for _, w, shared in form.over:
            sizes[w] -= 0 if shared == SAME else shared
        found: list[tuple[tuple[int, ...], list[float], float]] = [((), list(free), 0.0)]
        for k, (_, accessed) in enumerate(form.made):
            rest = beside + cost[0] * sum(n for _, n in form.made[k + 1 :])
            found = [
                ((*chosen, m), [f - sizes[k] * (n == m) for n, f in enumerate(left)], cycles + accessed * cost[m])
                for chosen, left, cycles in found
                for m in ((fixed[k],) if k in fixed else range(len(cost)))
                if sizes[k] <= left[m] and cycles + accessed * cost[m] + rest < self._ceiling
            ]
            if len(found) > _CHOICES:
                found.sort(key=lambda one: (one[2], one[0]))
                self.dropped = min(self.dropped, found[_CHOICES][2] + rest)
                del found[_CHOICES:]
        yield from (chosen for chosen, _, _ in found)

    def _filled(self, blocks: tuple[Block, ...], free: tuple[float, ...], left: float) -> float:
        """Compute the fewest cycles of blocks that live in a single segment; inf without room.

        `free`: bytes in each memory; `left`: bytes in all together.
        """
        if sum(b[0] for b in blocks) > left:
            return inf
        if (blocks, free) not in self._known:
            self._known[blocks, free] = self._fewest_in(blocks, free)
        return self._known[blocks, free]

    def _fewest_in(self, blocks: tuple[Block, ...], free: tuple[float, ...]) -> float:
        """Compute `_filled` for blocks that fit all memories together."""
        whole = self._in_parts(blocks, free)
        if len(blocks) > _DIVIDED or not blocks or whole == inf or sum(b[0] for b in blocks) <= free[0]:
            return whole
        (size, accessed), *others = blocks
        best = inf
        for m, room in enumerate(free):
            own, rest = self.cost[m] * accessed, tuple(r - size if k == m else r for k, r in enumerate(free))
            if size <= room and own + self._in_parts(others, rest) < best:
                best = min(best, own + self._filled(tuple(others), rest, inf))
        return best

    def _in_parts(self, blocks: Sequence[Block], free: Sequence[float]) -> float:
        """Compute a lower bound of `_filled`: a block may lie in several memories in parts."""
        total, m, room = 0.0, 0, free[0]
        for size, accessed in blocks:
            rest: float = size
            while rest:
                part = min(rest, room)
                total += self.cost[m] * accessed * part / size
                room -= part
                rest -= part
                if rest:
                    m += 1
                    if m == len(free):
                        return inf
                    room = free[m]
        return total


class _Ahead:
    """Lower bounds of the cycles from a cut on."""

    def __init__(self, cuts: TimedCuts, forms: Sequence[Sequence[Form]]) -> None:
        live, n, fast = cuts.costs.across, len(forms), cuts.cost[0]
        self._slower = [cost - fast for cost in cuts.cost]
        self._anywhere, self._fast = [inf] * n + [0.0], [inf] * n + [0.0]
        self._reads = [[inf] * len(own) for own in live]  # fewest bytes that are accessed of each tensor from there on
        self._reads[n] = [0.0] * len(live[n])
        for i in range(n - 1, -1, -1):
            for f in forms[i]:
                self._anywhere[i] = min(self._anywhere[i], cuts.least(f) + self._anywhere[f.j])
                self._fast[i] = min(self._fast[i], f.fast(fast) + self._fast[f.j])
                for k, t in enumerate(live[i]):
                    later = self._reads[f.j][live[f.j].index(t)] if t in live[f.j] else 0.0
                    self._reads[i][k] = min(self._reads[i][k], f.across[k][1] + later)

    def anywhere(self, cut: int) -> float:
        """Return the fewest cycles from a cut on, wherever the tensors live across lie."""
        return max(self._anywhere[cut], self._fast[cut])

    def least(self, cut: int, state: Sequence[int]) -> float:
        """Return the fewest cycles from a cut on, with the tensors live across in the memories `state`."""
        more = sum(n * self._slower[m] for m, n in zip(state, self._reads[cut], strict=True) if m)
        return max(self._anywhere[cut], self._fast[cut] + more)
