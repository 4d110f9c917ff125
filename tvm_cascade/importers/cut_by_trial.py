"""The cut in front of operators that can be read but not compiled, found by trying how much of a file compiles.

Which operator of the file an operator of Relax came from is not known any more when a kernel is missing. So the operators are
taken in their order, and bisected for the first one with which the network does not compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.importers.cut import FileGraph, Remedy, behind, kinds_of, names_in_front, needed_for, until_remedy

Compiles = Callable[[Sequence[str]], bool]  # whether the network that ends at these tensors compiles

_REFUSED = 3  # operators that a cut is placed in front of, one after the other


def until_by_trial(graph: FileGraph, compiles: Compiles) -> Remedy:
    """The remedy that cuts a network in front of the operators without which it compiles; of no text where none is found.

    Calls `compiles` at most `_REFUSED` times the logarithm of the number of operators, and for each cut.
    """
    refused: set[int] = set()
    outputs = tuple(graph.outputs)
    for _ in range(_REFUSED):
        refused.add(first_refused(graph, outputs, compiles))
        outputs = names_in_front(graph, behind(graph, refused))
        if not outputs or compiles(outputs):
            break
    else:
        outputs = ()
    return Remedy(until_remedy(outputs) if outputs else "", kinds_of(graph.nodes[at] for at in sorted(refused)))


def first_refused(graph: FileGraph, outputs: Sequence[str], compiles: Compiles) -> int:
    """The position of the first operator with which what computes `outputs` does not compile."""
    needed = sorted(needed_for(graph, outputs))
    known = behind(graph, (), graph.inputs)
    works, fails = 0, len(needed)  # operators with which it compiles, and does not
    while fails - works > 1:
        middle = (works + fails) // 2
        later = {*outputs, *(name for at in needed[middle:] for name in graph.nodes[at].reads)}
        made = (name for at in needed[:middle] for name in graph.nodes[at].writes)
        ends = [name for name in made if name in known and name in later]
        if not ends or compiles(ends):
            works = middle
        else:
            fails = middle
    return needed[works]
