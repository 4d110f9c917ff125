"""Cuts of a model's graph at named tensors, whatever the file's format: which operators stay, and where others cut off.

A cut network ends at the tensors of `--until` and begins at those of `--from`. Operators that none of its outputs needs are
left out before anything looks at them, and so are inputs that only they read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from shlex import quote
from typing import NamedTuple

from tvm_cascade.errors import UsageError
from tvm_cascade.messages import printable, short_name
from tvm_cascade.tensor_spec import Cut

_LISTED = 3  # names that a message suggests


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of a file: the tensors that it reads, weights left out, and those that it computes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kind: str = ""  # what the file calls its operator, such as CONV_2D; empty where that is not known


class Remedy(NamedTuple):
    """What helps where operators of a file are refused: the last arguments of `LoadError` and `GraphError`."""

    text: str  # the option that cuts them off; empty where nothing is left in front of them or behind
    operators: tuple[str, ...]  # what the file calls them


@dataclass(frozen=True, slots=True)
class FileGraph:
    """The graph of a model's file by the names of its tensors."""

    nodes: tuple[Node, ...]  # in an order in which they can be computed, for `in_front`; for `cut_out` in any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def computed(self) -> tuple[str, ...]:
        """The tensors that operators compute."""
        return tuple(name for node in self.nodes for name in node.writes)


@dataclass(frozen=True, slots=True)
class CutOut:
    """What stays of a graph."""

    nodes: tuple[int, ...]  # ascending
    inputs: tuple[str, ...]  # those of the file that are still read, then those of the cut
    outputs: tuple[str, ...]


def cut_out(graph: FileGraph, cut: Cut) -> CutOut:
    """The part of a graph between the tensors of a cut.

    Raises
    ------
    UsageError
        For a name that is no computed tensor of the graph, and for a cut that leaves no operator or no input.
    """
    until, start = _named("--until", cut.until, graph), _named("--from", cut.start, graph)
    both = [name for name in start if name in until]
    if both:
        raise UsageError(f"--until and --from both name {printable(both[0])}: no operator is left between")
    outputs = until or graph.outputs
    nodes, reached = _needed(graph, outputs, start)
    if not nodes:
        raise UsageError("--from names the outputs of the network: no operator is left between")
    for name in start:
        if name not in reached:
            raise UsageError(f"--from {printable(name)}: no output of the network depends on it")
    for i in nodes:
        also = [name for name in graph.nodes[i].writes if name in start]
        if also:
            others = _listed(name for name in graph.nodes[i].writes if name not in start)
            raise UsageError(
                f"--from {printable(also[0])}: the operator that computes it also computes {others}: name both"
            )
    inputs = [name for name in graph.inputs if name in reached]
    if until and graph.inputs and not inputs and not start:
        which = "depends" if len(until) == 1 else "depend"
        raise UsageError(f"--until {_listed(until)}: {which} on no input of the network; name a tensor behind an input")
    return CutOut(tuple(sorted(nodes)), (*inputs, *start), outputs)


def _needed(graph: FileGraph, outputs: Iterable[str], start: Collection[str]) -> tuple[set[int], set[str]]:
    """The operators that outputs need, and all tensors on the way; the search ends at `start`.

    Operators that write nothing act in other ways: those in front of the last one that is needed stay.
    """
    producers = {name: i for i, node in enumerate(graph.nodes) for name in node.writes}
    nodes: set[int] = set()
    reached: set[str] = set()

    def reach(names: Iterable[str]) -> None:
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            i = producers.get(name)
            if i is not None and name not in start and i not in nodes:
                nodes.add(i)
                waiting.extend(graph.nodes[i].reads)

    reach(outputs)
    for i in range(max(nodes, default=0)):
        if not graph.nodes[i].writes:
            nodes.add(i)
            reach(graph.nodes[i].reads)
    return nodes, reached


def _named(option: str, asked: Sequence[str], graph: FileGraph) -> tuple[str, ...]:
    """The tensors that a list names; a text that is no name itself has several, separated by commas."""
    computed, by_short = dict.fromkeys(graph.computed), _by_short_name(graph.computed)
    known = {*computed, *by_short}
    parts = [p for text in asked for p in ([text] if text in known else map(str.strip, text.split(",")))]
    for name in parts:
        if name not in known:
            raise UsageError(f"{option} {printable(name)}: {_unknown(name, graph)}")
    return tuple(dict.fromkeys(name if name in computed else by_short[name] for name in parts))


def _by_short_name(names: Iterable[str]) -> dict[str, str]:
    """Return names by what text shows of them, where that tells one from all others."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(short_name(name), []).append(name)
    return {short: whole[0] for short, whole in found.items() if len(whole) == 1}


def _unknown(name: str, graph: FileGraph) -> str:
    if name in graph.inputs:
        return "it is an input of the network; name a tensor that an operator computes"
    known = graph.computed
    near = get_close_matches(name, known, _LISTED) or [k for k in known if name and name.lower() in k.lower()]
    if near:
        return f"no operator computes a tensor of that name; similar: {_listed(near[:_LISTED])}"
    return f"no operator computes a tensor of that name; the last ones: {_listed(known[-_LISTED:])}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(printable(name) for name in names)


def behind(graph: FileGraph, refused: Collection[int], tensors: Iterable[str] = ()) -> set[str]:
    """The tensors that operators at these positions compute, and all that depend on them or on `tensors`."""
    found = set(tensors)
    for i, node in enumerate(graph.nodes):
        if i in refused or not found.isdisjoint(node.reads):
            found.update(node.writes)
    return found


def needed_for(graph: FileGraph, outputs: Iterable[str]) -> set[int]:
    """The positions of the operators that these tensors depend on."""
    return _needed(graph, outputs, ())[0]


def until_in_front(graph: FileGraph, refused: Set[str], at: Collection[int] = ()) -> Remedy:
    """The remedy for a network of which the tensors `refused` cannot be computed: the option that cuts it in front of them,
    and the first operators that compute them. Where nothing is in front, and `at` says which operators are to blame, it is the
    option that begins behind them."""
    names = names_in_front(graph, refused)
    first = [n for n in graph.nodes if not refused.isdisjoint(n.writes) and refused.isdisjoint(n.reads)]
    return Remedy(until_remedy(names) if names else _from_behind(graph, at), kinds_of(first))


def _from_behind(graph: FileGraph, at: Collection[int]) -> str:
    """The sentence that proposes to begin a network behind the operators `at`; empty where it would not leave them out."""
    start = tuple(dict.fromkeys(name for i in sorted(at) for name in graph.nodes[i].writes))
    used = {name for i, node in enumerate(graph.nodes) if i not in at for name in node.reads}
    # ONNX leaves out inputs and outputs by an empty name
    start = tuple(name for name in start if name and name in used)
    if not start:
        return ""
    try:
        left = cut_out(graph, Cut(start=start)).nodes
    except UsageError:
        return ""
    if not set(left).isdisjoint(at):
        return ""
    return f"{option_of('--from', start)} begins the network behind it, and your program does what is in front"


def kinds_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """What a file calls these operators, each name once."""
    return tuple(dict.fromkeys(node.kind for node in nodes if node.kind))


def names_in_front(graph: FileGraph, refused: Set[str]) -> tuple[str, ...]:
    """The tensors at which a network ends in front of the tensors `refused`; none where nothing is left in front."""
    wanted = [r for node in graph.nodes if not refused.isdisjoint(node.writes) for r in node.reads]
    known = behind(graph, (), graph.inputs) - refused - {*graph.inputs}
    names = [name for name in dict.fromkeys((*wanted, *graph.outputs)) if name and name in known]
    return tuple(names) if any(name and name in known for name in wanted) else ()


def until_remedy(names: Sequence[str]) -> str:
    """The sentence that proposes to end a network at these tensors."""
    return f"{until_option(names)} ends the network in front of it, and your program does the rest"


def until_option(names: Sequence[str]) -> str:
    """`--until` for these tensors, as a shell takes it."""
    return option_of("--until", names)


def option_of(option: str, names: Sequence[str]) -> str:
    """An option that names tensors, as a shell takes it."""
    if any("," in name for name in names):
        return " ".join(f"{option} {quote(name)}" for name in names)
    return f"{option} {quote(','.join(names))}"
