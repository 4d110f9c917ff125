"""Find the tensors behind which little work remains, where a network may end and the host may continue.

Detection decoders, or maps enlarged to the image size, take more RAM than the network in front and hardly any
multiply-accumulates. The file operator behind a plan's operator is unknown. So a bisection over the file's tensors
finds the end of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm_cascade.importers.cut import FileGraph, behind, names_in_front, needed_for
from tvm_cascade.importers.cut_by_trial import first_refused

Lacks = Callable[[Sequence[str]], bool]  # whether the network that ends at these tensors lacks work worth speaking of
Sizes = Callable[[Sequence[str]], Mapping[str, int]]  # bytes of tensors of the file by name; of those that are known


def end_of_work(graph: FileGraph, lacks: Lacks, sizes: Sizes) -> tuple[str, ...]:
    """Return the tensors at which a network may end after all its work; empty if nothing follows.

    Calls `lacks` at most the logarithm of the operator count, `sizes` once. Operators behind the last working operator,
    such as activations, stay while the bytes between operators do not grow: the network ends at the fewest bytes, as
    late as possible.
    """
    last = first_refused(graph, graph.outputs, lacks)
    needed = sorted(needed_for(graph, graph.outputs))
    ends: list[tuple[str, ...]] = []
    for place in needed[needed.index(last) + 1 :]:
        names = names_in_front(graph, behind(graph, [i for i in needed if i >= place]))
        if names:
            ends.append(names)
    if not ends:
        return ()
    known = sizes(tuple(dict.fromkeys(name for names in ends for name in names)))
    best, most = ends[0], _bytes(ends[0], known)
    least = most
    for names in ends[1:]:
        taken = _bytes(names, known)
        if most is None or least is None or taken is None or taken > most:
            break
        if taken <= least:
            best, least = names, taken
    return best


def _bytes(names: Sequence[str], known: Mapping[str, int]) -> int | None:
    return sum(known[name] for name in names) if all(name in known for name in names) else None
