"""Choosing among variants by counting: a database of counts, what to count next, and the choice for a network.

A count belongs to a shape (`variants.shape_key`), a core and a back end, and holds the instructions of one inference
and the bytes of code of one variant. The database is a text file: a line a shape, sorted, so that equal counts make
equal files. Candidates are ordered by the analytic model (`kernel_cost`), corrected by trees once enough was counted
(`schedules.tuning.tune_model`); the best few of each shape are counted. A network's choice minimises instructions plus
a price for each byte of code: none for `speed`, a high one for `size`, for `balanced` a low one or the least that meets
a budget of code (a multiple-choice knapsack, by its Lagrangian).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import LoadError
from tvm_cascade.publish import whole_file
from tvm_cascade.schedules.tuning.counting import Count, Counter, Task
from tvm_cascade.schedules.tuning.kernel_cost import KernelCost, kernel_cost
from tvm_cascade.schedules.tuning.tune_model import CountModel

SHIPPED = Path(__file__).parents[1] / "data" / "tuned.json"
KEPT = 4  # candidates of a shape that are counted once the trees can tell them apart
CODE_BUDGET = 40_000  # bytes of code, weights aside, that `balanced` stays below where it can
RUNTIME = 2_400  # of them: start-up code, memcpy and memset
# share of a network's instructions that a KiB of code has to save before it is spent
WORTH = {"speed": 0.0, "balanced": 0.002, "size": 0.05}
PER_CALL = 110  # of them, an operator: its part of the driver

Options = Mapping[str, Count]  # variant -> what it takes


class Database:
    """Counts by core and back end, shape and variant."""

    def __init__(self, rows: Iterable[tuple[str, str, Options]] = ()) -> None:
        """`rows` hold a core and back end, a shape, and counts by variant."""
        self._entries: dict[str, dict[str, dict[str, Count]]] = {}
        self._take(rows)

    def _take(self, rows: Iterable[tuple[str, str, Options]]) -> None:
        for name, shape, options in rows:
            self._entries.setdefault(name, {}).setdefault(shape, {}).update(options)

    def _rows(self) -> Iterator[tuple[str, str, Options]]:
        return ((name, shape, o) for name, shapes in self._entries.items() for shape, o in shapes.items())

    def options(self, target: KernelTarget, shape: str) -> Options:
        """What is known of a shape on a core, or else on a compatible one."""
        compatible = f"{target.core.compatible.get(target.backend)} {target.backend}"
        return self.counted(target, shape) or self._entries.get(compatible, {}).get(shape, {})

    def counted(self, target: KernelTarget, shape: str) -> Options:
        """What was counted of a shape on this very core."""
        return self._entries.get(device(target), {}).get(shape, {})

    def shapes(self, target: KernelTarget) -> Mapping[str, Options]:
        """Everything known of a core."""
        return self._entries.get(device(target), {})

    def add(self, target: KernelTarget, shape: str, variant: str, count: Count) -> None:
        self._take([(device(target), shape, {variant: count})])

    def merge(self, other: Database) -> None:
        """Takes over what `other` knows."""
        self._take(other._rows())

    def difference(self, other: Database) -> Database:
        """What this knows and `other` does not."""
        made = Database()
        for name, shape, options in self._rows():
            theirs = other._entries.get(name, {}).get(shape, {})
            if new := {v: c for v, c in options.items() if theirs.get(v) != c}:
                made._take([(name, shape, new)])
        return made

    @classmethod
    def load(cls, path: Path) -> Database:
        """Reads a file; raises `LoadError` for one that is no such database."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                (name, shape, {v: Count(int(n), int(b), int(a)) for v, (n, b, a) in options.items()})
                for name, shapes in data["counts"].items()
                for shape, options in shapes.items()
            )
        except OSError as error:
            raise LoadError(path, error.strerror or "cannot be read") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError(path, f"is no database of counts: {error}") from None

    def save(self, path: Path) -> None:
        """Writes a file, whole or not at all; raises `UsageError` where it cannot."""
        lines = []
        for name, shapes in sorted(self._entries.items()):
            rows = [f"   {json.dumps(s)}: {json.dumps(_row(shapes[s]), sort_keys=True)}" for s in sorted(shapes)]
            lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
        with whole_file(path) as partial:
            partial.write_text('{"counts": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def _row(options: Options) -> dict[str, list[int]]:
    return {v: [c.instructions, c.bytes, c.analytic] for v, c in options.items()}


def device(target: KernelTarget) -> str:
    """What counts belong to: core and back end."""
    return f"{target.name} {target.backend}"


@lru_cache(maxsize=1)
def shipped() -> Database:
    """The counts that come with the package; empty without the file."""
    return Database.load(SHIPPED) if SHIPPED.is_file() else Database()


def with_shipped(path: Path | None, must_exist: bool = True) -> Database:
    """The shipped counts and those of a file on top of them, in a new database; raises `LoadError`."""
    made = Database()
    made.merge(shipped())
    if path is not None and (must_exist or path.exists()):
        made.merge(Database.load(path))
    return made


@dataclass(frozen=True)
class Candidate:
    """A variant that can be counted."""

    variant: str
    task: Task

    @property
    def analytic(self) -> KernelCost:
        cost = kernel_cost(self.task.kernel.func)
        return KernelCost(cost.instructions * self.task.calls, cost.bytes)


@dataclass(frozen=True)
class Shape:
    """A shape of a network: how many operators have it, what is known of it, and how to make its candidates."""

    key: str
    uses: int
    candidates: Callable[[], list[Candidate]]  # distinct kernels, the usual one first


def tune(
    shapes: Sequence[Shape],
    target: KernelTarget,
    known: Database,
    counter: Counter,
    kept: int = KEPT,
) -> Database:
    """`known` with the counts of every shape that it lacked, in a new database.

    The usual variant of a shape is always counted, and so are the generic kernel and the smallest; of the others the
    `kept` that trees trained on earlier counts, or the analytic model, promise most of.
    """
    made = Database()
    made.merge(known)
    wanted = [s for s in shapes if not known.counted(target, s.key)]
    model = CountModel(known.shapes(target))
    rows: list[tuple[str, Candidate]] = []
    for shape in wanted:
        rows += [(shape.key, c) for c in _promising(shape, model, kept)]
    for (key, candidate), count in zip(rows, counter([c.task for _, c in rows]) if rows else [], strict=True):
        made.add(target, key, candidate.variant, replace(count, analytic=round(candidate.analytic.instructions)))
    return made


def _promising(shape: Shape, model: CountModel, kept: int) -> list[Candidate]:
    """The candidates of a shape that are worth counting, in their own order."""
    every = shape.candidates()
    costs = [c.analytic for c in every]
    guesses = model.predict(shape.key, [c.variant for c in every], costs)
    order = sorted(range(len(every)), key=lambda i: (guesses[i], i))
    smallest = min(range(len(every)), key=lambda i: (costs[i].bytes, i), default=0)
    counted = {0, len(every) - 1, smallest, *order[:kept]}
    return [c for i, c in enumerate(every) if i in counted]


def choose(known: Mapping[str, Options], uses: Mapping[str, int], optimise: str, budget: int) -> dict[str, str]:
    """The variant of every shape in `known`; code of all together at most `budget` bytes for `balanced`, if that is possible.

    Ties go to the variant whose name comes first.
    """
    fastest = sum(min(c.instructions for c in o.values()) * uses[s] for s, o in known.items())
    low = high = fastest * WORTH[optimise] / 1024
    if optimise != "balanced":
        budget = sum(max(c.bytes for c in o.values()) for o in known.values())
    chosen = {s: _best(o, uses[s], low) for s, o in known.items()}
    price = low + 1.0
    while code_of(known, chosen) > budget and price < 1e9:
        low, high, price = high, price, price * 4
        chosen = {s: _best(o, uses[s], high) for s, o in known.items()}
    for _ in range(24):  # the least price of a byte, in instructions, at which the code fits
        middle = (low + high) / 2
        tried = {s: _best(o, uses[s], middle) for s, o in known.items()}
        if code_of(known, tried) > budget:
            low = middle
        else:
            high, chosen = middle, tried
        if high - low < 0.01:
            break
    return chosen


def code_of(known: Mapping[str, Options], chosen: Mapping[str, str]) -> int:
    """Bytes of code of the variants chosen."""
    return sum(known[s][v].bytes for s, v in chosen.items())


def _best(options: Options, uses: int, price: float) -> str:
    return min(options, key=lambda v: (options[v].instructions * uses + price * options[v].bytes, v))


def choices_for(
    shapes: Sequence[Shape], target: KernelTarget, known: Database, operators: int
) -> tuple[tuple[str, str], ...]:
    """The choice for a network of `operators` operators; shapes of which nothing is known keep the usual variant."""
    options = {s.key: known.options(target, s.key) for s in shapes if known.options(target, s.key)}
    if not options:
        return ()
    unknown = sum(_usual_bytes(s) for s in shapes if s.key not in options) if target.optimise == "balanced" else 0
    budget = CODE_BUDGET - RUNTIME - PER_CALL * operators - unknown
    return tuple(sorted(choose(options, {s.key: s.uses for s in shapes}, target.optimise, budget).items()))


def _usual_bytes(shape: Shape) -> int:
    every = shape.candidates()[:1]
    return round(every[0].analytic.bytes) if every else 0
