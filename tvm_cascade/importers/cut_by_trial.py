"""Find the cut before operators that import but do not compile, by compiling parts of the file.

For a missing kernel nobody knows which file operator became the Relax operator. So a bisection over the file's
operators, in order, finds the first operator that breaks the compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_cascade.importers.cut import FileGraph, Remedy, behind, kinds_of, names_in_front, needed_for, until_remedy

Compiles = Callable[[Sequence[str]], bool]  # whether the network that ends at these tensors compiles

_REFUSED = 3  # operators that a cut is placed in front of, one after the other


def until_by_trial(graph: FileGraph, compiles: Compiles) -> Remedy:
    """Return the remedy that cuts a network before the operators without a kernel; its text is "" if no cut
    compiles.

    Calls `compiles` at most `_REFUSED` times the logarithm of the operator count, and once for each cut.
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
    """Return the position of the first operator with which the computation of `outputs` does not compile."""
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
