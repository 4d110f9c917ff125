"""`fuse_elementwise`: operators on floats, element by element, become parts of the operators that read them.

    before: t = x - mean        after: v = sum((x - mean) * (x - mean))
            v = sum(t * t)             y = (x - mean) * scale
            y = t * scale

A fused tensor is never stored: less work, and no memory. An operator has a single reader, or is as cheap as a load; no reader
takes any element twice, and none keeps more bytes alive than the fused tensor took. What sums up rows as they come keeps
a single input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.passes.relax_ops import Call, Source
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.kernels.spec import ACTIVATIONS, IGNORES_NAN, KIND, ignores_nan
from tvm_cascade.schedules.kernels.stages import Stage, stages_of
from tvm_cascade.schedules.kernels.storage import storage_of, with_storage
from tvm_cascade.schedules.tir import Buffer, Expr, PrimFunc, ir, s_tir, tirx, tvm_ffi

_FLOATS = ("float32", "float64", "bool")  # element types of fused tensors
_READ_IN = ("quantize", "mean")  # kinds of operators with parameters that take others in
_KEPT = ("tirx.noalias", "s_tir", IGNORES_NAN)  # attributes that a reader keeps
_LANE = 4  # bytes of a float32
_SMALL = 8  # an operand is small if the fused tensor takes this many times its bytes
_CHEAP = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Cast, tirx.Max, tirx.Min)
_PAIRS = (tirx.Sub, tirx.Div, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_MOST_CHEAP = 4  # operations of what several readers may compute anew
_MOST_NODES = 100  # of an operator that is fused: longer expressions make no kernel faster


def fuse_elementwise(source: Source, vectors: bool = False, joins: bool = False) -> Source:
    """Fuse the element by element float operators of a function into readers; tensors keep their numbers.

    With `vectors` a single reader takes no operator in if the loop could be vectorized no longer: for a core whose compilers
    vectorize neither sums of floats nor elements of several widths. With `joins` no scaled integer with a single reader
    becomes an operand of an element's sum: for compilers that round product and sum at once, as LLVM does. Tensors without
    a writer stay in the list; `relax_ops.pruned` removes them.
    """
    calls = list(source.calls)
    readers: dict[int, set[int]] = {}  # by tensor: the places of calls
    for k, call in enumerate(calls):
        for t in call.inputs:
            readers.setdefault(t, set()).add(k)
    for at, call in enumerate(calls):
        made = _Elementwise.of(call, source)
        places = sorted(readers.get(call.outputs[0], ())) if made is not None else []
        if made is None or not places or (vectors and len(places) == 1 and not made.in_vectors(calls[places[0]])):
            continue
        fused = {k: made.fused(calls[k], len(places), joins) for k in places}
        if None in fused.values():
            continue
        for k, reader in fused.items():
            assert reader is not None
            calls[k] = reader
            for t in reader.inputs:
                readers[t].add(k)
        for t in call.inputs:
            readers[t].discard(at)
        calls[at] = replace(call, outputs=())
    return replace(source, calls=tuple(c for c in calls if c.outputs))


@dataclass(frozen=True, eq=False)
class _Elementwise:
    """A call that computes each element in a float tensor from the same element in other tensors."""

    call: Call
    stage: Stage
    tensors: Sequence[Tensor]
    large: frozenset[int]  # activations of about the tensor's size

    @classmethod
    def of(cls, call: Call, source: Source) -> _Elementwise | None:
        """Read a call; None for any other, an output's, or a state's."""
        if len(call.outputs) != 1 or call.must_copy or call.target is not None or call.outputs[0] in source.outputs:
            return None
        tensor = source.tensors[call.outputs[0]]
        stages = stages_of(call.func) if tensor.dtype in _FLOATS else None
        if stages is None or len(stages) != 1 or not _is_elementwise(stages[0]):
            return None
        if _moves(stages[0].store.value):
            return None
        large = frozenset(t for t in call.inputs if source.tensors[t].bytes * _SMALL > tensor.bytes)
        return cls(call, stages[0], source.tensors, large)

    @property
    def tensor(self) -> int:
        return self.call.outputs[0]

    def in_vectors(self, reader: Call) -> bool:
        """Return True if all elements that a fused loop reads and writes have four bytes, and are not added up."""
        kinds = {self.tensors[t].dtype for c in (self.call, reader) for t in (*c.inputs, *c.outputs)}
        sums = any(r.block.init is not None for r in tir.leaf_blocks(reader.func))
        return not sums and all(ITEM_BYTES[k] == _LANE for k in kinds)

    def fused(self, reader: Call, readers: int, joins: bool) -> Call | None:
        """Return a call that reads the operands in place of the tensor; None if that is impossible or useless."""
        if reader.must_copy or reader.target is not None or len(reader.outputs) != 1:
            return None
        if self.tensors[self.tensor].dtype == "bool" and not reader.kind.startswith("where"):
            return None  # TVM simplifies `not x < y` to `x >= y`, which differs for NaN
        attrs = reader.func.attrs or {}
        if KIND in attrs and str(attrs[KIND]) not in _READ_IN:
            return None
        if ignores_nan(reader.func) != ignores_nan(self.call.func):
            return None
        stages = stages_of(reader.func)
        places = [k for k, t in enumerate(reader.inputs) if t == self.tensor]
        if stages is None or not self._keeps_memory(reader, readers):
            return None
        buffers = [reader.func.params[k] for k in places]
        reading = [(s, load) for s in stages for b in buffers for load in s.reads(b)]
        if not all(self._reads_once(s, load) and not _moves(s.store.value) for s, load in reading):
            return None
        if joins and readers == 1 and any(s.initial is None and self._is_joined(s, load) for s, load in reading):
            return None
        sums = any(s.initial is not None for s, _ in reading)
        if sums and len(reader.inputs) == 1 and len(self.call.inputs) > 1:
            return None  # rows of a single input are added up as they come
        if (readers > 1 or len(reading) > 1) and not _is_cheap(self.stage.store.value):
            return None
        if any(_size(s.store.value) + _size(self.stage.store.value) > _MOST_NODES for s, _ in reading):
            return None
        made = self._inlined(reader, places)
        return None if _is_folded(made.func) else made

    def _is_joined(self, stage: Stage, load: Any) -> bool:
        """Return True if the call scales integers for `load`, an operand of a sum: what dynamic quantization computes bit by
        bit.
        """
        value, sums = self.stage.store.value, (tirx.Add, tirx.Sub)
        integers = any("int" in tir.dtype_of(cast.value) for cast in tir.collect(value, tirx.Cast))
        operands = [v for kind in sums for n in tir.collect(stage.store.value, kind) for v in (n.a, n.b)]
        return type(value) is tirx.Mul and integers and any(v.same_as(load) for v in operands)

    def _reads_once(self, stage: Stage, load: Any) -> bool:
        """Return True if a stage reads no element twice, in the order of the axes."""
        return _in_order(load.indices, stage) and prod(stage.extents.values()) <= prod(self.tensors[self.tensor].shape)

    def _keeps_memory(self, reader: Call, readers: int) -> bool:
        """Return True if no plan with the fused operators needs more memory."""
        own, made = self.tensors[self.tensor], self.tensors[reader.outputs[0]]
        if self.large <= {*reader.inputs}:  # they are there as long
            return True
        if len(self.large) <= 1 and all(self.tensors[t].bytes <= own.bytes for t in self.large):
            return True
        others = {t for t in reader.inputs if t != self.tensor and self.tensors[t].bytes * _SMALL > own.bytes}
        return readers == 1 and others <= self.large and made.bytes <= own.bytes

    def _inlined(self, reader: Call, places: Sequence[int]) -> Call:
        """Return `reader` computing the tensor's elements where it read them."""
        own, params = self.call.func.params, reader.func.params
        count, constants = len(reader.inputs), len(reader.constants)
        inputs = [t for t in reader.inputs if t != self.tensor]
        buffers = [p for k, p in enumerate(params[:count]) if k not in places]
        known: dict[Buffer, Buffer] = {}
        for t, p in zip(self.call.inputs, own[: len(self.call.inputs)], strict=True):
            if t in inputs:
                known[p] = buffers[inputs.index(t)]
            else:
                known[p] = _copy(p)
                inputs.append(t)
                buffers.append(known[p])
        added = [_copy(p) for p in own[len(self.call.inputs) : len(self.call.inputs) + len(self.call.constants)]]
        known |= dict(zip(own[len(self.call.inputs) :], added, strict=False))
        replaced = {params[k] for k in places}
        body = _computed(reader.func.body, replaced, self.stage, known)
        every = [*buffers, *params[count : count + constants], *added, *params[count + constants :]]
        kept = {k: v for k, v in (reader.func.attrs or {}).items() if k in _KEPT}
        func = tirx.PrimFunc(every, body, reader.func.ret_type).with_attrs({**kept, ACTIVATIONS: len(inputs)})
        func = with_storage(func, storage_of(reader.func), storage_of(self.call.func))
        dear = _has_functions(self.stage.store.value) and not _has_functions(reader.func.body)
        return replace(
            reader,
            kind=self.call.kind if dear else reader.kind,
            func=func,
            inputs=tuple(inputs),
            constants=(*reader.constants, *self.call.constants),
        )


def _is_elementwise(stage: Stage) -> bool:
    """Return True if a stage reads what it reads at the indices at which it stores, in their order."""
    spatial = list(stage.store.indices)
    if stage.initial is not None or len(spatial) != len(stage.extents):
        return False
    if not all(i.same_as(v) for i, v in zip(spatial, stage.extents, strict=True)):
        return False
    values = tir.loads(stage.store.value)
    inside = {v for load in values for v in tir.collect(load.indices, tirx.Var)}
    everywhere = {v for v in tir.collect(stage.store.value, tirx.Var) if not hasattr(v.ty, "shape")}
    return bool(values) and everywhere <= inside and all(_in_order(load.indices, stage) for load in values)


def _in_order(indices: Any, stage: Stage) -> bool:
    """Return True if indices are axes of a stage in ascending order, or 0 in an axis of extent 1; a reduction's axes may
    stand in any order.
    """
    order = {v: k for k, v in enumerate(stage.extents)}
    variables = [i for i in indices if isinstance(i, tirx.Var)]
    if not all(isinstance(i, tirx.Var) or tir.int_value(i) == 0 for i in indices) or not {*variables} <= {*order}:
        return False
    places = [order[v] for v in variables]
    return len({*places}) == len(places) and (stage.initial is not None or places == sorted(places))


def _moves(value: Expr) -> bool:
    """Return True if a stage with this value moves elements alone, as a copy or a padding does."""
    return isinstance(value, ir.TensorLoad) or tir.is_if_then_else(value)


def _has_functions(value: Expr) -> bool:
    return any(isinstance(c.op, ir.Op) for c in tir.collect(value, ir.Call))


def _is_folded(func: PrimFunc) -> bool:
    """Return True if something is computed from a value and the same value: TVM simplifies `x - x`, even for infinities."""
    pairs = [(n.a, n.b) for kind in _PAIRS for n in tir.collect(func.body, kind)]
    return any(tir.loads(a) and tvm_ffi.structural_equal(a, b) for a, b in pairs)


def _size(value: Expr) -> int:
    """Count an expression's nodes, without indices."""
    return len(tir.collect(tir.replace(value, ir.TensorLoad, lambda _load: tirx.const(0)), ir.Expr))


def _is_cheap(value: Expr) -> bool:
    """Return True if computing a value anew takes hardly longer than a load."""
    operations: list[Any] = []
    tvm_ffi.structural_walk(value, [(kind, operations.append) for kind in _CHEAP])
    plain = not any(tir.collect(value, kind) for kind in (ir.Call, tirx.Div, tirx.Select))
    return plain and len(operations) <= _MOST_CHEAP


def _copy(buffer: Buffer) -> Buffer:
    return tirx.decl_buffer(list(buffer.ty.shape), tir.dtype_of(buffer), buffer.name)


def _computed(body: Any, replaced: set[Buffer], stage: Stage, known: Mapping[Buffer, Buffer]) -> Any:
    """Replace a function's loads from some buffers by the value `stage` stores there."""

    def value_at(load: Any) -> Any:
        if load.source not in replaced:
            return load
        at = dict(zip(stage.store.indices, load.indices, strict=True))
        moved = tir.substitute(stage.store.value, at)
        return tir.replace(
            moved, ir.TensorLoad, lambda v: tirx.BufferLoad(known.get(v.source, v.source), list(v.indices))
        )

    def block(made: Any) -> Any:
        if not any(region.source in replaced for region in made.reads):
            return made
        more = [
            tirx.BufferRegion(v.source, [ir.Range.from_min_extent(i, 1) for i in v.indices])
            for v in tir.loads(made.body)
            if v.source not in [s.buffer for s in tir.stores(made.body)]
        ]
        return s_tir.SBlock(
            made.iter_vars, more, made.writes, made.name_hint, made.body, made.init, made.alloc_buffers,
            made.match_buffers, made.annotations,
        )  # fmt: skip

    return tvm_ffi.structural_map(body, [(ir.TensorLoad, value_at), (s_tir.SBlock, block)], order="post")
