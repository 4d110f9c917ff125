"""Candidate networks: the base class of equivalent networks to plan, and the loop that keeps the best plan.

Each kind is a generator that proposes candidates from cheap estimates on the graph. The loop (`best_candidate`) builds
each candidate with real kernels and scratch, plans it, and keeps it if `Candidate.beats` holds. The result records the
kept candidates with exactness and reasons, and why the rest were dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from tvm.ir import IRModule

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.passes.copied_weights import CopiedWeights
from tvm_cascade.passes.extract_graph import Analyses
from tvm_cascade.passes.prepare_graph import PreparedGraph, prepare_graph
from tvm_cascade.passes.prices import Prices, TimeRule
from tvm_cascade.passes.rewriting import Rewritten
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database
from tvm_cascade.search_monitor import SearchStopped, monitor

if TYPE_CHECKING:
    from tvm_cascade.memory import PlacedPlan


class Exactness(Enum):
    """How a candidate's results compare with the original network's."""

    BITS = "every bit stays"
    REASSOCIATED = "sums of floats are added in another order"


class RefusedCandidate(Exception):
    """Raised by `Candidate.apply` to drop the candidate without planning it; the message is the reason, for the user."""


@dataclass(frozen=True)
class KernelSource:
    """How kernels are selected for every candidate."""

    core: KernelTarget
    database: Database | None = None  # instruction counts; None: those shipped with the package
    counter: Counter | None = None  # counts kernels of shapes that the database lacks
    tuned: Callable[[PreparedGraph], PreparedGraph] | None = (
        None  # replaces selected kernels, such as by `tune_kernels`
    )
    fused_floats: bool = True  # whether float layers are fused (`passes.fuse_float_layers`)
    staged: frozenset[str] = frozenset()  # tensors in slow memory that are read through copies (`passes.staged_reads`)
    analyses: Analyses = field(default_factory=Analyses, compare=False, repr=False)  # of all candidates so far
    prices: Prices = field(default_factory=Prices, compare=False, repr=False)  # of all candidates so far

    def prepare(self, lowered: IRModule) -> PreparedGraph:
        """Prepare the graph and the kernels of a module after `LowerQuantized`."""
        made = prepare_graph(
            lowered, self.core, self.database, self.counter, self.fused_floats, self.analyses, self.staged
        )
        return self.prices.add(made if self.tuned is None else self.tuned(made))

    @property
    def untuned(self) -> KernelSource:
        """Return a source without `counter` and `tuned`, so nothing is measured."""
        return replace(self, counter=None, tuned=None)


@dataclass(frozen=True)
class Network:
    """The original network, from which every candidate is derived."""

    lowered: IRModule
    prepared: PreparedGraph
    options: PlanOptions
    kernels: KernelSource

    @property
    def rule(self) -> TimeRule:
        """Return the rule for comparing candidates' plans."""
        return TimeRule(self.options, self.kernels.prices)


@dataclass(frozen=True)
class PlannedCandidate:
    """A network with kernels and plan, and the changes made."""

    prepared: PreparedGraph
    plan: Plan
    joined: tuple[str, ...] = ()  # concats that became joins
    groups: Mapping[str, int] = field(default_factory=dict)  # number of channel groups, by name of the projection
    kept: Mapping[str, Exactness] = field(default_factory=dict)  # the candidates applied to this network, by name
    plain: Graph | None = None  # with `groups`: the graph before channel tiling
    others: tuple[Graph, ...] = ()  # of equivalent networks whose plans another cap or limit may choose
    reason: str = ""  # what was changed and its effect, or why nothing was; empty if there was nothing to try
    rewritten: Rewritten | None = None  # substitutions made, or why none were; None if none were requested
    # by operator, cycles of its accesses of each memory of the plan, in their order; none without named memories
    waits: tuple[tuple[float, ...], ...] = ()
    traffic: tuple[
        tuple[int, int], ...
    ] = ()  # bytes read and written by memory of the plan; none without named memories
    copied: CopiedWeights = field(default_factory=CopiedWeights)  # weights that are copied to RAM
    placements: tuple[PlacedPlan, ...] = ()  # in named memories: of this plan, then of the others that were tried
    least_cycles: float | None = None  # in named memories: no plan of the joint search takes fewer
    prices: Prices = field(default_factory=Prices, compare=False, repr=False)  # of the plans that were compared

    @property
    def graph(self) -> Graph:
        """Return the planned graph, or the graph before channel tiling if there are `groups`."""
        return self.prepared.graph if self.plain is None else self.plain

    @property
    def exactness(self) -> dict[str, str]:
        """Return each applied candidate's exactness in words, by name."""
        return {name: exactness.value for name, exactness in self.kept.items()}

    def told(self, what: str) -> PlannedCandidate:
        """Return a copy with the given text appended to `reason`."""
        return replace(self, reason="; ".join(filter(None, (self.reason, what))))


Best = PlannedCandidate | InfeasibleError
"""What is best so far, or why nothing fits yet."""


class Candidate(ABC):
    """An equivalent network to build and plan."""

    name: ClassVar[str]

    @property
    def exactness(self) -> Exactness:
        """Return how the results compare with the original network's."""
        return Exactness.BITS

    @abstractmethod
    def apply(self) -> PlannedCandidate:
        """Build the network with kernels and plan it.

        Raises `InfeasibleError` for a plan above the cap, `RefusedCandidate` with a reason not to plan at all.
        """

    @staticmethod
    def change(plan: Plan, best: Best) -> str:
        """Format the arena bytes for the best so far and for `plan`, for messages."""
        return f"{'more than the cap' if isinstance(best, InfeasibleError) else best.plan.peak} -> {plan.peak} bytes"

    def beats(self, found: PlannedCandidate, best: Best, rule: TimeRule) -> bool:
        """Return True if the planned candidate is better than the best so far: by default, if `rule` prefers its plan."""
        return isinstance(best, InfeasibleError) or rule.prefers(found.plan, best.plan)

    @abstractmethod
    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        """Return the planned candidate `found`, with `reason` (or `rewritten`) explaining why it is kept."""

    def dropped(self, found: Best, best: PlannedCandidate) -> PlannedCandidate:
        """Return the best so far, with `reason` (or `rewritten`) explaining why this candidate is dropped; by default
        unchanged.
        """
        return best


class Outcome(Enum):
    """A candidate's fate in `best_candidate`; sent to the proposing generator."""

    KEPT = "kept"
    DROPPED = "dropped"
    INFEASIBLE = "infeasible"


Proposals = Generator[Candidate, Outcome, str]
"""Candidates of one kind, each proposed in the light of what became of the one before; at last, what there is to say."""
Kind = Callable[[Best], Proposals]


def best_candidate(start: Best, kinds: Iterable[Kind], rule: TimeRule) -> PlannedCandidate:
    """Search the best of `start` and all proposed candidates by `rule`; each kind starts from the best plan so far.

    If a limit (`search_monitor`) strikes, return the best tried so far.

    Raises
    ------
    InfeasibleError
        Nothing fits the cap; the error comes from the candidate that needs the fewest bytes.
    """
    best = start
    for kind in kinds:
        proposals = kind(best)
        try:
            candidate = next(proposals)
            while True:
                monitor().check()
                best, outcome = _tried(candidate, best, rule)
                candidate = proposals.send(outcome)
        except StopIteration as end:
            best = best.told(end.value) if isinstance(best, PlannedCandidate) else best
        except SearchStopped:
            break
    if isinstance(best, InfeasibleError):
        raise best
    return best


def _tried(candidate: Candidate, best: Best, rule: TimeRule) -> tuple[Best, Outcome]:
    """Build and plan a candidate; return the better of the candidate and the best so far, and the candidate's fate."""
    try:
        found = candidate.apply()
    except RefusedCandidate as why:
        return best.told(str(why)) if isinstance(best, PlannedCandidate) else best, Outcome.DROPPED
    except InfeasibleError as error:
        if isinstance(best, PlannedCandidate):
            return candidate.dropped(error, best), Outcome.INFEASIBLE
        return min(best, error, key=lambda e: e.needed), Outcome.INFEASIBLE
    if candidate.beats(found, best, rule):
        kept = {**found.kept, candidate.name: candidate.exactness}
        return replace(candidate.explained(found, best), kept=kept), Outcome.KEPT
    assert isinstance(best, PlannedCandidate)
    return candidate.dropped(found, best), Outcome.DROPPED
