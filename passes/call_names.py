"""Names for a program's calls, from the names in the model's file."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from tvm_cascade.graph import Tensor
from tvm_cascade.passes.relax_functions import UniqueNames

_TRANSPOSES = ("transpose", "permute_dims")
_MOVES = ("reshape", *_TRANSPOSES)
_NUMBER = re.compile(r"[_\d]+$")


class Named(Protocol):
    """A call in a program: a dataclass with a name, and the indices of tensors read and written."""

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
    """Return a program's tensors and calls, named after the tensors in the model's file.

    A call that computes a tensor of the file has the tensor's name. Calls made for such a tensor alone are parts,
    `NAME, part 1 of 3`, and the last part, which computes the tensor, is called NAME. A call that only changes the
    shape is no part: `NAME, view`. Neither is a transpose of a program's input, `NAME (INPUT transposed)`, or of what
    becomes an output, `NAME (transposed)`. Other calls keep their names.

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
        moving = [at for at in members if _is_view(calls[at], tensors)]
        turning = [at for at in members if at not in moving and not any(files[at]) and _turns(calls[at], inputs)]
        computing = [at for at in members if at not in (*moving, *turning)] or members[-1:]
        names[computing[-1]] = unique(owner)
        for number, at in enumerate(computing[:-1], 1):
            names[at] = unique(f"{owner}, part {number} of {len(computing)}")
        for at in turning:
            names[at] = unique(f"{owner} ({tensors[calls[at].inputs[0]].name} transposed)")
        for at in moving:
            names[at] = names[at] or unique(f"{owner}, view")
    by_output = {t: name for call, name in zip(calls, names, strict=True) for t in call.outputs}
    for at, call in enumerate(calls):
        if not names[at] and _turns(call, [t for t, name in by_output.items() if name]) and call.outputs[0] in outputs:
            names[at] = unique(f"{by_output[call.inputs[0]]} (transposed)")
    names = [name or unique(call.name) for name, call in zip(names, calls, strict=True)]
    renamed = list(tensors)
    for call, name, of in zip(calls, names, files, strict=True):
        for k, t in enumerate(call.outputs):
            renamed[t] = replace(tensors[t], name=name if len(of) == 1 else of[k] or f"{name}:{k}")
    return tuple(renamed), tuple(replace(call, name=name) for call, name in zip(calls, names, strict=True))  # type: ignore[type-var]


def _turns(call: Named, tensors: Collection[int]) -> bool:
    """Return True if a call transposes a tensor among `tensors`."""
    return _NUMBER.sub("", call.name) in _TRANSPOSES and len(call.inputs) == 1 and call.inputs[0] in tensors


def _is_view(call: Named, tensors: Sequence[Tensor]) -> bool:
    """Return True if a call moves no data: a reshape, or a transpose that keeps all axes larger than 1 in order."""
    kind = _NUMBER.sub("", call.name)
    if kind not in _MOVES or len(call.inputs) != 1:
        return False
    before, after = (tuple(d for d in tensors[t].shape if d > 1) for t in (call.inputs[0], call.outputs[0]))
    return kind == "reshape" or (before == after and len({*before}) == len(before))


def _owners(own: Sequence[str | None], calls: Sequence[Named], outputs: Collection[int]) -> list[str | None]:
    """Return by call the file tensor computed, or the only file tensor served; None otherwise."""
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
