"""The tensors in a model's file behind a plan's layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tvm_cascade.messages import operator_of


def origins(layers: Collection[str], reads: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return by layer the file tensors computed; empty for layers missing in the file.

    A layer named after a file tensor computes that tensor, and all tensors on the way from other layers: the fused
    operators' tensors. A part of such a layer has the tensor alone.

    Parameters
    ----------
    layers : collection of str
        Names of all operators of the plan.
    reads : mapping of str to sequence of str
        By computed tensor of the file, the tensors that its operator reads.
    """
    place = {tensor: at for at, tensor in enumerate(reads)}
    return {name: tuple(sorted(_origin(name, layers, reads), key=place.__getitem__)) for name in layers}


def _origin(name: str, layers: Collection[str], reads: Mapping[str, Sequence[str]]) -> Collection[str]:
    whole = operator_of(name)
    if name not in reads:
        return (whole,) if whole in reads else ()
    found, waiting = {name}, [name]
    while waiting:
        for source in reads[waiting.pop()]:
            if source in reads and source not in layers and source not in found:
                found.add(source)
                waiting.append(source)
    return found
