"""Tuning by instruction counts: a database of counts, the candidates to count, and the choice of variants for a
network.

A count holds an inference's instructions and a variant's code bytes, for a shape (`variants.shape_key`), a core and a
back end. The database is a text file with one sorted line per shape, so equal counts give equal files. Candidates are
ranked by the analytic model (`kernel_cost`), corrected by gradient-boosted trees once there are enough counts
(`schedules.tuning.tune_model`); the best few for each shape are counted. The choice for a network minimises
instructions plus a price for each byte of code: 0 for `speed`, a high price for `size`, for `balanced` a low price or
the least that meets a code budget (a multiple-choice knapsack, by Lagrangian relaxation).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import LoadError
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import whole_file
from tvm_cascade.schedules.tuning.counting import Count, Counter, Task
from tvm_cascade.schedules.tuning.kernel_cost import KernelCost, kernel_cost

if TYPE_CHECKING:
    from tvm_cascade.schedules.tuning.tune_model import CountModel

SHIPPED = Path(__file__).parents[1] / "data" / "tuned.json"
KEPT = 4  # best-ranked candidates of a shape that are counted
CODE_BUDGET = 40_000  # bytes of code, without weights, that `balanced` stays below where it can
RUNTIME = 2_400  # bytes of CODE_BUDGET for start-up code, memcpy and memset
# share of a network's instructions that a KiB of code must save to be worth it
WORTH = {"speed": 0.0, "balanced": 0.002, "size": 0.05}
PER_CALL = 110  # bytes of CODE_BUDGET per operator, for its part of the driver

Options = Mapping[str, Count]  # the count of every variant, by name


class Database:
    """Counts by core and back end, shape and variant."""

    def __init__(self, rows: Iterable[tuple[str, str, Options]] = ()) -> None:
        """Build a database from `rows`: core and back end (`device`), shape key, and counts by variant."""
        self._entries: dict[str, dict[str, dict[str, Count]]] = {}
        self._take(rows)

    def _take(self, rows: Iterable[tuple[str, str, Options]]) -> None:
        for name, shape, options in rows:
            self._entries.setdefault(name, {}).setdefault(shape, {}).update(options)

    def _rows(self) -> Iterator[tuple[str, str, Options]]:
        return ((name, shape, o) for name, shapes in self._entries.items() for shape, o in shapes.items())

    def options(self, target: KernelTarget, shape: str) -> Options:
        """Return a shape's counts on a core, or else on a compatible core; empty if both have none."""
        compatible = f"{target.core.compatible.get(target.backend)} {target.backend}"
        return self.counted(target, shape) or self._entries.get(compatible, {}).get(shape, {})

    def counted(self, target: KernelTarget, shape: str) -> Options:
        """Return a shape's counts on this very core and back end."""
        return self._entries.get(device(target), {}).get(shape, {})

    def shapes(self, target: KernelTarget) -> Mapping[str, Options]:
        """Return all counts on a core and back end, by shape."""
        return self._entries.get(device(target), {})

    def add(self, target: KernelTarget, shape: str, variant: str, count: Count) -> None:
        self._take([(device(target), shape, {variant: count})])

    def merge(self, other: Database) -> None:
        """Add the counts of `other`, which replace existing counts."""
        self._take(other._rows())

    def difference(self, other: Database) -> Database:
        """Return the counts missing or different in `other`."""
        extra = Database()
        for name, shape, options in self._rows():
            theirs = other._entries.get(name, {}).get(shape, {})
            if new := {v: c for v, c in options.items() if theirs.get(v) != c}:
                extra._take([(name, shape, new)])
        return extra

    @classmethod
    def load(cls, path: Path) -> Database:
        """Read a database from a file. Raises `LoadError` for an unreadable file or one without such a database."""
        try:
            data = json.loads(readable(path).read_text(encoding="utf-8"))
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
        """Write the database to a file, atomically. Raises `UsageError` if the file cannot be written."""
        lines = []
        for name, shapes in sorted(self._entries.items()):
            rows = [f"   {json.dumps(s)}: {json.dumps(_row(shapes[s]), sort_keys=True)}" for s in sorted(shapes)]
            lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
        with whole_file(path) as partial:
            partial.write_text('{"counts": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def _row(options: Options) -> dict[str, list[int]]:
    return {v: [c.instructions, c.bytes, c.analytic] for v, c in options.items()}


def device(target: KernelTarget) -> str:
    """Return the key for counts in the database: names of core and back end."""
    return f"{target.name} {target.backend}"


@lru_cache(maxsize=1)
def shipped() -> Database:
    """Load the counts shipped with the package; empty if the file is missing."""
    return Database.load(SHIPPED) if SHIPPED.is_file() else Database()


def with_shipped(path: Path | None, must_exist: bool = True) -> Database:
    """Load the shipped counts and a file's counts, which take precedence, into a new database. Raises `LoadError`."""
    database = Database()
    database.merge(shipped())
    if path is not None and (must_exist or path.exists()):
        database.merge(Database.load(path))
    return database


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
    """An operator shape in a network, and how to build the candidates."""

    key: str  # from `variants.shape_key`
    uses: int  # how many operators of the network have it
    candidates: Callable[[], Iterable[Candidate]]  # distinct kernels, the default first, the generic one last


def tune(
    shapes: Sequence[Shape],
    target: KernelTarget,
    known: Database,
    counter: Counter,
    finalists: int = KEPT,
) -> Database:
    """Count every shape missing in `known`, and return a new database with both.

    A shape's default variant is always counted, as are the generic kernel and the smallest; and the `finalists`
    candidates with the fewest predicted instructions, by the model trained on earlier counts, or else by the analytic
    model.
    """
    from tvm_cascade.schedules.tuning.tune_model import CountModel  # plans count nothing

    database = Database()
    database.merge(known)
    uncounted = [s for s in shapes if not known.counted(target, s.key)]
    model = CountModel(known.shapes(target))
    rows: list[tuple[str, Candidate]] = []
    for shape in uncounted:
        rows += [(shape.key, c) for c in _promising(shape, model, finalists)]
    for (key, candidate), count in zip(rows, counter([c.task for _, c in rows]) if rows else [], strict=True):
        database.add(target, key, candidate.variant, replace(count, analytic=round(candidate.analytic.instructions)))
    return database


def _promising(shape: Shape, model: CountModel, finalists: int) -> list[Candidate]:
    """Choose a shape's candidates to count (see `tune`), in the order of `Shape.candidates`."""
    every = list(shape.candidates())
    costs = [c.analytic for c in every]
    guesses = model.predict(shape.key, [c.variant for c in every], costs)
    order = sorted(range(len(every)), key=lambda i: (guesses[i], i))
    smallest = min(range(len(every)), key=lambda i: (costs[i].bytes, i), default=0)
    counted = {0, len(every) - 1, smallest, *order[:finalists]}
    return [c for i, c in enumerate(every) if i in counted]


def choose(known: Mapping[str, Options], uses: Mapping[str, int], optimise: str, budget: int) -> dict[str, str]:
    """Choose a variant for every shape in `known`; for `balanced`, with at most `budget` code bytes if possible.

    `uses` counts operators by shape. Ties go to the variant with the first name.
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
    """Sum the code bytes of the chosen variants (`chosen`: variant by shape)."""
    return sum(known[s][v].bytes for s, v in chosen.items())


def _best(options: Options, uses: int, price: float) -> str:
    return min(options, key=lambda v: (options[v].instructions * uses + price * options[v].bytes, v))


def choices_for(
    shapes: Sequence[Shape], target: KernelTarget, known: Database, operators: int
) -> tuple[tuple[str, str], ...]:
    """List pairs of shape and chosen variant for a network with `operators` operators; shapes without counts are left
    out.
    """
    options = {s.key: known.options(target, s.key) for s in shapes if known.options(target, s.key)}
    if not options:
        return ()
    unknown = sum(_usual_bytes(s) for s in shapes if s.key not in options) if target.optimise == "balanced" else 0
    budget = CODE_BUDGET - RUNTIME - PER_CALL * operators - unknown
    return tuple(sorted(choose(options, {s.key: s.uses for s in shapes}, target.optimise, budget).items()))


def _usual_bytes(shape: Shape) -> int:
    usual = next(iter(shape.candidates()), None)
    return 0 if usual is None else round(usual.analytic.bytes)
