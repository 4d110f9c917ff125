"""What a candidate is, what is known of it once it is planned, and the loop that keeps the best.

A candidate is an equivalent network. Its kind proposes it, by what is cheap to know of the graph; the loop has it built with
its real kernels and scratch and planned, and keeps it where its kind says that it is better. The user is told which candidates
were kept, how exact they are and why, and why others were not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

from tvm.ir import IRModule

from tvm_cascade.cascading import Plan, PlanOptions
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.graph import Graph
from tvm_cascade.passes.prepare_graph import PreparedGraph, prepare_graph
from tvm_cascade.passes.rewriting import Rewritten
from tvm_cascade.schedules.tuning.counting import Counter
from tvm_cascade.schedules.tuning.tune import Database


class Exactness(Enum):
    """How the results of a candidate compare with those of the network as it is."""

    BITS = "every bit stays"
    REASSOCIATED = "sums of floats are added in another order"


class RefusedCandidate(Exception):
    """A candidate that its kind gives up once it is built; the message is the reason, for the user."""


@dataclass(frozen=True)
class KernelSource:
    """How the kernels of every candidate are chosen."""

    core: KernelTarget
    database: Database | None = None  # counts; None: those that come with the package
    counter: Counter | None = None  # counts kernels of shapes that the database lacks
    tuned: Callable[[PreparedGraph], PreparedGraph] | None = None  # changes kernels once they are chosen

    def prepare(self, lowered: IRModule) -> PreparedGraph:
        """The graph and the kernels of a module whose integers are lowered."""
        made = prepare_graph(lowered, self.core, self.database, self.counter)
        return made if self.tuned is None else self.tuned(made)

    @property
    def untuned(self) -> KernelSource:
        """The same without anything that measures."""
        return replace(self, counter=None, tuned=None)


@dataclass(frozen=True)
class Network:
    """The network as it is: what every candidate is made from."""

    lowered: IRModule
    prepared: PreparedGraph
    options: PlanOptions
    kernels: KernelSource


@dataclass(frozen=True)
class PlannedCandidate:
    """A network with its kernels and its plan, and what was changed in it."""

    prepared: PreparedGraph
    plan: Plan
    joined: tuple[str, ...] = ()  # written into place by the makers of their parts
    groups: Mapping[str, int] = field(default_factory=dict)  # of channels, by the projection that sums them up
    kept: Mapping[str, Exactness] = field(default_factory=dict)  # by the names of the candidates that made this network
    plain: Graph | None = None  # with `groups`, the graph without
    reason: str = ""  # what was done and what it changes, or why nothing; empty where there was nothing to try
    rewritten: Rewritten | None = None  # substitutions made, or why none were; None where none were asked for

    @property
    def graph(self) -> Graph:
        """The graph that was planned, without groups of channels."""
        return self.prepared.graph if self.plain is None else self.plain

    @property
    def exactness(self) -> dict[str, str]:
        """How exact each candidate is that was kept, in words, by its name."""
        return {name: exactness.value for name, exactness in self.kept.items()}

    def told(self, what: str) -> PlannedCandidate:
        """The same with one more thing to say."""
        return replace(self, reason="; ".join(filter(None, (self.reason, what))))


Best = PlannedCandidate | InfeasibleError
"""What is best so far, or why nothing fits yet."""


class Candidate(ABC):
    """An equivalent network to try."""

    name: ClassVar[str]

    @property
    def exactness(self) -> Exactness:
        """How its results compare with those of the network as it is."""
        return Exactness.BITS

    @abstractmethod
    def apply(self) -> PlannedCandidate:
        """The network with its kernels and its plan.

        Raises `InfeasibleError` where it does not fit, `RefusedCandidate` with a reason not to plan it at all.
        """

    @staticmethod
    def change(plan: Plan, best: Best) -> str:
        """How the arena changes from the best so far to a plan, in words."""
        return f"{'more than the cap' if isinstance(best, InfeasibleError) else best.plan.peak} -> {plan.peak} bytes"

    def beats(self, found: PlannedCandidate, best: Best) -> bool:
        """Whether what was planned is better than the best so far."""
        return isinstance(best, InfeasibleError) or found.plan.peak < best.plan.peak

    @abstractmethod
    def explained(self, found: PlannedCandidate, best: Best) -> PlannedCandidate:
        """What was planned, with why it is kept."""

    def dropped(self, found: Best, best: PlannedCandidate) -> PlannedCandidate:
        """The best so far where it is not, with what to say of that."""
        return best


class Outcome(Enum):
    """What became of a candidate."""

    KEPT = "kept"
    DROPPED = "dropped"
    INFEASIBLE = "infeasible"


Proposals = Generator[Candidate, Outcome, str]
"""Candidates of one kind, each proposed in the light of what became of the one before; at last, what there is to say."""
Kind = Callable[[Best], Proposals]


def best_candidate(start: Best, kinds: Iterable[Kind]) -> PlannedCandidate:
    """The best of `start` and the candidates of all kinds, each kind starting from the best of those before it.

    Raises
    ------
    InfeasibleError
        Nothing fits the cap; the error of the candidate that came nearest.
    """
    best = start
    for kind in kinds:
        proposals = kind(best)
        try:
            candidate = next(proposals)
            while True:
                best, outcome = _tried(candidate, best)
                candidate = proposals.send(outcome)
        except StopIteration as end:
            best = best.told(end.value) if isinstance(best, PlannedCandidate) else best
    if isinstance(best, InfeasibleError):
        raise best
    return best


def _tried(candidate: Candidate, best: Best) -> tuple[Best, Outcome]:
    """The better of a candidate and the best so far."""
    try:
        found = candidate.apply()
    except RefusedCandidate as why:
        return best.told(str(why)) if isinstance(best, PlannedCandidate) else best, Outcome.DROPPED
    except InfeasibleError as error:
        if isinstance(best, PlannedCandidate):
            return candidate.dropped(error, best), Outcome.INFEASIBLE
        return min(best, error, key=lambda e: e.needed), Outcome.INFEASIBLE
    if candidate.beats(found, best):
        kept = {**found.kept, candidate.name: candidate.exactness}
        return replace(candidate.explained(found, best), kept=kept), Outcome.KEPT
    assert isinstance(best, PlannedCandidate)
    return candidate.dropped(found, best), Outcome.DROPPED
