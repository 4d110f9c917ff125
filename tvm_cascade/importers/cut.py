"""Cut a model's graph at named tensors, in any file format.

A cut network ends at the tensors named by `--until` and begins at the tensors named by `--from`. Operators and inputs
without an effect on its outputs are removed before anything reads the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from shlex import quote
from typing import NamedTuple

from tvm_cascade.errors import UsageError
from tvm_cascade.messages import operator_of, printable, short_name, split_names
from tvm_cascade.tensor_spec import Cut

_LISTED = 3  # names that a message suggests


@dataclass(frozen=True, slots=True)
class Node:
    """An operator in a file: the tensors read, without weights, and the tensors computed."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kind: str = ""  # what the file calls its operator, such as CONV_2D; empty where that is not known


class Remedy(NamedTuple):
    """The remedy for refused operators in a file: the last arguments to `LoadError` and `GraphError`."""

    text: str  # the option that cuts them off; empty where nothing is left in front of them or behind
    operators: tuple[str, ...]  # what the file calls them


@dataclass(frozen=True, slots=True)
class FileGraph:
    """The graph in a model's file, by tensor names."""

    nodes: tuple[Node, ...]  # in an order in which they can be computed, for `in_front`; for `cut_out` in any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def computed(self) -> tuple[str, ...]:
        """Return the tensors computed by operators."""
        return tuple(name for node in self.nodes for name in node.writes)


@dataclass(frozen=True, slots=True)
class CutOut:
    """The remaining part of a graph."""

    nodes: tuple[int, ...]  # ascending
    inputs: tuple[str, ...]  # those of the file that are still read, then those of the cut
    outputs: tuple[str, ...]


def cut_out(graph: FileGraph, cut: Cut) -> CutOut:
    """Return the graph between a cut's tensors.

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
    """Return the operators needed for the outputs, and all tensors on the way; the search ends at `start`.

    Operators without outputs have other effects: they stay if a needed operator follows.
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
    """Return the tensors named by a list; split a text at commas unless the whole text is a name.

    A layer's name as printed stands for the operator that the file has: `NAME, part 1 of 2` for NAME.
    """
    computed, by_short = dict.fromkeys(graph.computed), _by_short_name(graph.computed)
    known = {*computed, *by_short}
    parts = [p for text in asked for p in ([text] if text in known else split_names(text))]
    parts = [p if p in known else operator_of(p) for p in parts]
    for name in parts:
        if name not in known:
            raise UsageError(f"{option} {printable(name)}: {_unknown(name, graph)}")
    return tuple(dict.fromkeys(name if name in computed else by_short[name] for name in parts))


def _by_short_name(names: Iterable[str]) -> dict[str, str]:
    """Map short names to full names, where the short name is unique."""
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
    """Return the tensors computed by the operators `refused`, and all tensors depending on these or on `tensors`."""
    found = set(tensors)
    for i, node in enumerate(graph.nodes):
        if i in refused or not found.isdisjoint(node.reads):
            found.update(node.writes)
    return found


def needed_for(graph: FileGraph, outputs: Iterable[str]) -> set[int]:
    """Return the positions of the operators needed for these tensors."""
    return _needed(graph, outputs, ())[0]


def until_in_front(graph: FileGraph, refused: Set[str], at: Collection[int] = ()) -> Remedy:
    """Return the remedy for a network with incomputable tensors `refused`: the option to cut in front, and the first
    operators behind the cut.

    If nothing is left in front and `at` names the operators at fault, propose to begin behind them.
    """
    names = names_in_front(graph, refused)
    first = [n for n in graph.nodes if not refused.isdisjoint(n.writes) and refused.isdisjoint(n.reads)]
    return Remedy(until_remedy(names) if names else _from_behind(graph, at), kinds_of(first))


def _from_behind(graph: FileGraph, at: Collection[int]) -> str:
    """Propose to begin a network behind the operators `at`; "" if that does not remove all of them."""
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
    """Return the file's names for the kinds of these operators, each once."""
    return tuple(dict.fromkeys(node.kind for node in nodes if node.kind))


def names_in_front(graph: FileGraph, refused: Set[str]) -> tuple[str, ...]:
    """Return the tensors at which a network may end before the tensors `refused`; empty if nothing is left."""
    wanted = [r for node in graph.nodes if not refused.isdisjoint(node.writes) for r in node.reads]
    known = behind(graph, (), graph.inputs) - refused - {*graph.inputs}
    names = [name for name in dict.fromkeys((*wanted, *graph.outputs)) if name and name in known]
    return tuple(names) if any(name and name in known for name in wanted) else ()


def until_remedy(names: Sequence[str]) -> str:
    """Propose to end a network at these tensors."""
    return f"{until_option(names)} ends the network in front of it, and your program does the rest"


def until_option(names: Sequence[str]) -> str:
    """Format `--until` for these tensors, for a shell."""
    return option_of("--until", names)


def option_of(option: str, names: Sequence[str]) -> str:
    """Format an option with tensor names, for a shell."""
    if any("," in name for name in names):
        return " ".join(f"{option} {quote(name)}" for name in names)
    return f"{option} {quote(','.join(names))}"
