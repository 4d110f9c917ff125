"""Legalizes a Relax function and reads it as `call_tir`s on numbered tensors, constants folded: input of `extract_graph`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm

from tvm_cascade.errors import GraphError
from tvm_cascade.graph import Tensor
from tvm_cascade.passes.call_names import with_file_names
from tvm_cascade.passes.casts import saturates
from tvm_cascade.passes.fold import Folder
from tvm_cascade.passes.keep_stored import inlined, is_stored
from tvm_cascade.passes.legalizations import legalizations
from tvm_cascade.passes.origin import file_name, plain
from tvm_cascade.passes.read.program import OperatorCall, numbers_in, read_program
from tvm_cascade.passes.relax_functions import UniqueNames
from tvm_cascade.schedules.kernels.spec import with_activations
from tvm_cascade.schedules.tir import (
    PrimFunc,
    dtype_of,
    int_value,
    leaf_blocks,
    loads,
    outputs_of,
    relax,
    stores,
    te,
    tirx,
    without_blocks,
)

ir: Any = tvm.ir  # nodes of TVM get their fields at run time
Given = Any  # an argument: an activation's tensor index, a constant's array, or a `_Kept`


@dataclass(frozen=True)
class Call:
    """A call of a PrimFunc with parameters activations, constants, outputs, in this order; tensors by index."""

    name: str
    kind: str
    func: PrimFunc
    inputs: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    outputs: tuple[int, ...]
    must_copy: bool = False  # a copy that needs storage of its own: never a view
    target: int | None = None  # position of the input, a state, whose bytes the output takes over (`Op.target`)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A constant that kernels read as it is stored."""

    func: PrimFunc  # computes it from `arrays`
    arrays: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Source:
    """A Relax function as a list of PrimFunc calls in program order."""

    tensors: tuple[Tensor, ...]  # row and column axes not yet set
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def legalize(mod: Any) -> Any:
    """Lower operators in a copy of the module to PrimFunc calls, batch norms in inference form.

    Private functions, such as the regions of `PartitionRegions`, are inlined.
    """
    passes = [
        relax.transform.InlinePrivateFunctions(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.LegalizeOps(legalizations(saturates(mod))),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod.clone())


_END = "end the network before it"


def _is_cut_from(func: PrimFunc) -> bool:
    """Test whether kernels can be cut from a PrimFunc.

    They cannot if loops in a block without stated writes (`te.extern`) write an output, or if a loop's length depends
    on data.
    """
    axes = [axis for r in leaf_blocks(func) for axis in r.block.iter_vars]
    if any(int_value(axis.dom.extent) is None for axis in axes):
        return False
    written = {s.buffer for r in leaf_blocks(func) if not r.block.writes for s in stores(r.block.body)}
    return not any(out in written for out in outputs_of(func))


def read_function(mod: Any, function: str, change: Callable[[Source], Source] | None = None) -> Source:
    """Lower and read a function, and `change` it before its calls are named.

    Raises `GraphError` unless it is straight-line code with static shapes.
    """
    if function not in {g.name_hint for g in mod.get_global_vars()}:
        raise GraphError(f"the module has no function {function}")
    return _Reader(legalize(mod), function).read(change)


class _Reader:
    """Assigns tensor indices to the activations of a program, and folds PrimFunc calls on constants alone."""

    def __init__(self, mod: Any, function: str) -> None:
        self._mod = mod
        self._program = read_program(mod[function])
        self._tensors: list[Tensor] = []
        self._calls: list[Call] = []
        self._unique = UniqueNames()
        self._env: dict[int, Given] = dict(self._program.constants)
        self._folder = Folder()
        self._in_file: dict[str, str] = {}  # name of a tensor -> that of the file

    def read(self, change: Callable[[Source], Source] | None) -> Source:
        program = self._program
        inputs = [self._tensor(self._unique(plain(program.values[v].name)), v) for v in program.inputs]
        for call in program.calls:
            self._call(call)
        outputs = tuple(self._output(self._env[v], inputs) for v in numbers_in(program.result))
        source = pruned(Source(tuple(self._tensors), tuple(self._calls), tuple(inputs), outputs))
        source = source if change is None else pruned(change(source))
        tensors, calls = with_file_names(source.tensors, source.calls, source.inputs, source.outputs, self._in_file)
        return replace(source, tensors=tensors, calls=calls)

    def _call(self, call: OperatorCall) -> None:
        if call.name != "call_tir" or len(call.arguments) != 2:
            name = getattr(call.expr.op, "name", str(call.expr.op))
            raise GraphError(f"{name} has no TIR form that a kernel can be cut from", _END, [name])
        target = call.expr.args[0]
        func = self._mod[target]
        self._check_types(call, func)
        func, given = self._with_kept(func, [self._env[v] for v in numbers_in(call.arguments[1])])
        constants = tuple(a for a in given if isinstance(a, np.ndarray))
        inputs = tuple(a for a in given if not isinstance(a, np.ndarray))
        if not inputs and is_stored(func):
            self._env[call.outputs[0]] = _Kept(func, constants)
            return
        if not inputs:
            self._env.update(zip(call.outputs, self._folder.fold(func, constants), strict=True))
            return
        if not _is_cut_from(func):
            name = readable(target.name_hint)
            raise GraphError(f"{name} has no TIR form that a kernel can be cut from", _END, [name])
        name = self._unique(readable(target.name_hint))
        names = [f"{name}:{k}" for k in range(len(call.outputs))] if call.several else [name]
        outputs = tuple(self._tensor(n, v) for n, v in zip(names, call.outputs, strict=True))
        kind = str((func.attrs or {}).get("op_kind", "") or re.sub(r"(?<=[a-z_])\d+$", "", target.name_hint))
        read = with_activations(_activations_first(func, given), len(inputs))
        self._calls.append(Call(name, kind, read, inputs, constants, outputs))

    def _with_kept(self, func: PrimFunc, given: list[Given]) -> tuple[PrimFunc, list[Given]]:
        """Inline stored constants in a function that reads activations, too, and fold all others."""
        activations = any(isinstance(a, int) for a in given)
        for at in reversed(range(len(given))):
            kept = given[at]
            if isinstance(kept, _Kept):
                reading = inlined(func, at, kept.func, kept.arrays) if activations else None
                given[at : at + 1] = self._folder.fold(kept.func, kept.arrays) if reading is None else kept.arrays
                func = func if reading is None else reading
        return func, given

    def _check_types(self, call: OperatorCall, func: PrimFunc) -> None:
        """Raise `GraphError` if a PrimFunc writes elements of another type than the call has: beyond the tensor's end."""
        for value, buffer in zip(call.outputs, outputs_of(func), strict=False):
            declared, written = self._program.values[value].dtype, dtype_of(buffer)
            if declared != written:
                name = readable(call.expr.args[0].name_hint)
                raise GraphError(f"{name} of type {declared} is computed by TVM as {written}", _END, [name])

    def _output(self, given: Given, inputs: Sequence[int]) -> int:
        """Return a function output's tensor; function inputs and constants are copied into a new tensor."""
        given = self._folder.fold(given.func, given.arrays)[0] if isinstance(given, _Kept) else given
        computed = isinstance(given, int)
        if computed and given not in inputs:
            return given
        name, source = self._unique("copy"), self._tensors[given] if computed else given
        copied = self._add(name, tuple(source.shape), str(source.dtype))
        reads, constants = ((given,), ()) if computed else ((), (given,))
        func = copy_func(self._tensors[copied])
        self._calls.append(Call(name, "copy", func, reads, constants, (copied,), must_copy=True))
        return copied

    def _tensor(self, name: str, value: int) -> int:
        made = self._program.values[value]
        if (known := file_name(made.name)) is not None:
            self._in_file[name] = known
        self._env[value] = self._add(name, made.shape, made.dtype)
        return self._env[value]

    def _add(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        self._tensors.append(Tensor(len(self._tensors), name, shape, dtype))
        return len(self._tensors) - 1


def pruned(source: Source) -> Source:
    """Remove dead code: outputs that nothing reads (a dropout's mask), and calls without live outputs."""
    used = {*source.outputs, *(t for c in source.calls for t in c.inputs)}
    calls = [p for c in source.calls if (p := _with_outputs(c, [t in used for t in c.outputs])) is not None]
    if sum(len(c.outputs) for c in calls) == len(source.tensors) - len(source.inputs):
        return source
    kept = sorted({*source.inputs, *(t for c in calls for t in c.outputs)})
    number = {t: k for k, t in enumerate(kept)}

    def numbers(tensors: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[t] for t in tensors)

    tensors = tuple(replace(source.tensors[t], index=k) for t, k in number.items())
    renumbered = tuple(replace(c, inputs=numbers(c.inputs), outputs=numbers(c.outputs)) for c in calls)
    return pruned(Source(tensors, renumbered, numbers(source.inputs), numbers(source.outputs)))


def _with_outputs(call: Call, live: Sequence[bool]) -> Call | None:
    """Remove a call's dead outputs, if separate blocks compute them; None if no output is live."""
    if all(live):
        return call
    if not any(live):
        return None
    made = outputs_of(call.func)
    dead = [o for o, keep in zip(made, live, strict=True) if not keep]
    blocks = [r for r in leaf_blocks(call.func) if all(s.buffer in dead for s in stores(r.block.body))]
    func = without_blocks(call.func, blocks, [p for p in call.func.params if p not in dead])
    if (
        func is None
        or any(v.source in dead for v in loads(func.body))
        or any(s.buffer in dead for s in stores(func.body))
    ):
        return call
    return replace(call, func=func, outputs=tuple(t for t, keep in zip(call.outputs, live, strict=True) if keep))


def copy_func(tensor: Tensor) -> PrimFunc:
    """Build a PrimFunc for copying a tensor."""
    x = te.placeholder(tensor.shape, tensor.dtype, name="x")
    return te.create_prim_func([x, te.compute(tensor.shape, lambda *i: x(*i), "copy")], index_dtype_override="int32")


def _activations_first(func: PrimFunc, given: Sequence[Given]) -> PrimFunc:
    params = list(func.params)
    order = sorted(range(len(given)), key=lambda k: isinstance(given[k], np.ndarray))
    if order == list(range(len(given))):
        return func
    return tirx.PrimFunc([params[k] for k in order] + params[len(given) :], func.body, func.ret_type, attrs=func.attrs)


def readable(name: str) -> str:
    """Return an operator's name from the PrimFunc's name: without leading and trailing underscores."""
    return name.strip("_") or "op"
