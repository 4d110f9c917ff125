"""Names of the calls of a program, from those that a model's file gives to what they compute."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from tvm_cascade.graph import Tensor
from tvm_cascade.passes.relax_functions import UniqueNames


class Named(Protocol):
    """A call of a program: a dataclass with a name, and the indices of the tensors that it reads and writes."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...


Call = TypeVar("Call", bound=Named)


def with_file_names(
    tensors: Sequence[Tensor],
    calls: Sequence[Call],
    inputs: Collection[int],
    outputs: Collection[int],
    in_file: Mapping[str, str],
) -> tuple[tuple[Tensor, ...], tuple[Call, ...]]:
    """Return tensors and calls of a program, called as a model's file calls what they are.

    A call that computes a tensor of the file has the tensor's name. What is computed for such a tensor alone is a part
    of it, `NAME, part 1 of 3`, and the last part, which computes the tensor, is called NAME. Other calls keep their names.

    Parameters
    ----------
    tensors : sequence of Tensor
        By index.
    calls : sequence of Call
        In program order.
    inputs, outputs : collections of int
        Indices of the program's own inputs and outputs.
    in_file : mapping of str to str
        By name of a tensor, the one that the file gives to what it holds.
    """
    if not in_file:
        return tuple(tensors), tuple(calls)
    files = [[in_file.get(tensors[t].name) for t in call.outputs] for call in calls]
    owners = _owners([of[0] for of in files], calls, outputs)
    parts: dict[str, list[int]] = {}
    for at, owner in enumerate(owners):
        if owner is not None:
            parts.setdefault(owner, []).append(at)
    unique, names = UniqueNames([tensors[t].name for t in inputs]), [""] * len(calls)
    for owner, members in parts.items():
        names[members[-1]] = unique(owner)
        for number, at in enumerate(members[:-1], 1):
            names[at] = unique(f"{owner}, part {number} of {len(members)}")
    names = [name or unique(call.name) for name, call in zip(names, calls, strict=True)]
    renamed = list(tensors)
    for call, name, of in zip(calls, names, files, strict=True):
        for k, t in enumerate(call.outputs):
            renamed[t] = replace(tensors[t], name=name if len(of) == 1 else of[k] or f"{name}:{k}")
    return tuple(renamed), tuple(replace(call, name=name) for call, name in zip(calls, names, strict=True))  # type: ignore[type-var]


def _owners(own: Sequence[str | None], calls: Sequence[Named], outputs: Collection[int]) -> list[str | None]:
    """Return by call the tensor of the file that it computes, or for which alone it computes something; None for others."""
    owners = list(own)
    readers: dict[int, list[int]] = {t: [] for call in calls for t in call.outputs}
    for at, call in enumerate(calls):
        for t in call.inputs:
            readers.setdefault(t, []).append(at)
    for at in reversed(range(len(calls))):
        written = calls[at].outputs
        above = {owners[reader] for t in written for reader in readers[t]}
        if owners[at] is None and len(above) == 1 and not any(t in outputs for t in written):
            owners[at] = above.pop()
    return owners
