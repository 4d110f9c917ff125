"""`check_executed`: runs a planned program on random data, and compares the results with the network without a plan.

The program is the emitted TIR, built for this machine; nothing here counts slots or rows, as planner and driver do. The
network without a plan consists of the functions its operators were read from, each with separate whole tensors. After
every segment, each tensor that lies whole in memory, by the plan, is compared: integers exactly, floats to a tolerance.
Memory holds random bytes in every unwritten place, and before and behind the arena. All runs in a forked process, which a
wrong address may crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm.ir import Call, GlobalVar, IRModule

from tvm_cascade.cascading import Plan, PlanOptions, plan_graph
from tvm_cascade.cascading.state_areas import areas
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import ITEM_BYTES, Tensor
from tvm_cascade.messages import last_line, short_name
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.passes.relax_ops import Source
from tvm_cascade.passes.run_apart import run_apart
from tvm_cascade.schedules import tir
from tvm_cascade.schedules.driver.lower_plan import Lowered, lower_plan, place_of
from tvm_cascade.schedules.driver.streaming import streamed_inputs
from tvm_cascade.schedules.rules.portable import WORDS_FILE, NotPortableError, portable
from tvm_cascade.schedules.tir import PrimFunc, tirx, tvm_ffi
from tvm_cascade.schedules.tir.barrier import with_barriers
from tvm_cascade.schedules.tir.quick_build import QUICK_TARGET, can_link, linked, quick_build

MOST_MACS = 300_000_000  # of networks that are run: code that is made quickly takes seconds for them
_MARGIN = 64  # bytes of random data in front of the arena and behind it
_MARKER = "cascade_segment"  # the call with which the driver marks where a segment begins
_INVOKE, _OPERATOR = "invoke_segment", "operator"  # names in the module that is built
# of floats: difference, as a factor of the largest value; others: `_NEAR_HALF`
_NEAR = {"float32": 1e-4, "float64": 1e-4}
_NEAR_HALF = 2e-2
_FEW = 0.02  # share of elements that may lie apart where operators jump, such as from a float to the next integer

Values = dict[int, np.ndarray]  # by tensor


class NotExecutedError(Exception):
    """Raised if a program is not run on random data; the message says why."""


def check_executed(
    prepared: PreparedGraph,
    plan: Plan,
    transform: Callable[[PrimFunc], PrimFunc] | None = None,
) -> None:
    """Run `plan`, a plan for `prepared`, and the network on a single random input, and compare the results.

    `transform` is applied to the kernels, as by `lower_plan`.

    Raises
    ------
    ValidationError
        The plan computes something else; the message names the tensor. Or the program crashed, or did not end.
    NotExecutedError
        Nothing was run: the network is too large, or random data may not be given to it.
    """
    source = prepared.extracted.source
    if source is None or not _is_of(source, plan):
        raise NotExecutedError("the network was changed after its operators were read")
    if any("bfloat16" in _kinds(call.func) for call in source.calls):
        raise NotExecutedError("it computes in bfloat16, of which LLVM crashes where it makes code quickly")
    if plan.macs > MOST_MACS:
        raise NotExecutedError(f"it takes more than {MOST_MACS} multiply-accumulates")
    programs = [_Program(plan, lower_plan(plan, prepared.kernels_of(plan), transform=transform, segment_call=_MARKER))]
    network = _Network(source)
    _build(network, programs)
    run_apart(lambda: _compare(prepared, network, programs[0], transform), NotExecutedError)


def _compare(
    prepared: PreparedGraph,
    network: _Network,
    program: _Program,
    transform: Callable[[PrimFunc], PrimFunc] | None,
) -> None:
    """Run what was built, the network first, and compare every tensor of a program that lies whole."""
    want = network.values
    comparison = _Comparison(prepared, network.source, want, transform)
    for tensor, got in program.run({t: want[t] for t in network.source.inputs}):
        comparison.check(tensor, got)


def _is_of(source: Source, plan: Plan) -> bool:
    """Return True if `source` has the tensors of a plan's graph."""
    graph = plan.graph
    if (graph.inputs, graph.outputs) != (source.inputs, source.outputs) or len(graph.tensors) != len(source.tensors):
        return False
    return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(graph.tensors, source.tensors, strict=True))


class _Network:
    """Functions of a network's operators, each run once on whole tensors, the first time that `values` are asked for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.functions: dict[str, PrimFunc] = {}
        self.names = [self._named(call.func) for call in source.calls]
        self.library: Any = None

    def _named(self, func: PrimFunc) -> str:
        """Return the name of `func` among the functions; equal functions share a name."""
        stem = f"{_OPERATOR}_{tvm_ffi.structural_hash(func)}"
        known = self.functions.get(stem)
        name = stem if known is None or tvm_ffi.structural_equal(known, func) else f"{stem}_{len(self.functions)}"
        self.functions.setdefault(name, func)
        return name

    @cached_property
    def values(self) -> Values:
        """Compute every tensor of the network for a random input."""
        source, random = self.source, np.random.default_rng(0)
        indexed = [_indices(self.functions[n], len(c.inputs)) for n, c in zip(self.names, source.calls, strict=True)]
        narrow = any(indexed)
        arrays = {t: _random(source.tensors[t], random, narrow) for t in source.inputs}
        tensors = {t: tvm.runtime.tensor(a) for t, a in arrays.items()}
        for name, call, indices in zip(self.names, source.calls, indexed, strict=True):
            for position, extent in indices.items():
                if position < len(call.inputs):
                    _require_below(arrays[call.inputs[position]], extent, call.name)
            shapes = [source.tensors[t] for t in call.outputs]
            made = [tvm.runtime.empty(t.shape, t.dtype) for t in shapes]
            constants = [tvm.runtime.tensor(c) for c in call.constants]
            self.library[name](*(tensors[t] for t in call.inputs), *constants, *made)
            tensors |= dict(zip(call.outputs, made, strict=True))
            arrays |= {t: m.numpy() for t, m in zip(call.outputs, made, strict=True)}
        return arrays


def _random(tensor: Tensor, random: np.random.Generator, narrow: bool) -> np.ndarray:
    """Draw random elements; possible indices (`narrow`) become zeros."""
    kind = np.dtype(tensor.dtype)
    if tensor.dtype == "bool":
        return random.integers(0, 2, tensor.shape).astype(np.bool_)
    if kind.kind not in "iu":
        return random.standard_normal(tensor.shape).astype(kind)
    if kind.itemsize > 2:
        return np.zeros(tensor.shape, kind) if narrow else random.integers(0, 1000, tensor.shape).astype(kind)
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max, tensor.shape, kind, endpoint=True)


def _indices(func: PrimFunc, activations: int) -> dict[int, int]:
    """Return a function's index parameters, by position: the smallest extent indexed.

    Indices computed by the function, and numbers of at most 16 bits used as indices into a constant, lie inside their
    tensors anyway. Raises `NotExecutedError` for a function with possible integer division by a zero input.
    """
    for kind in (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod):
        for division in tir.collect(func.body, kind):
            if "int" in str(division.b.ty.dtype) and tir.loads(division.b):
                raise NotExecutedError("it divides integers by what it computes")
    position = {p: k for k, p in enumerate(func.params)}
    found: dict[int, int] = {}
    for load in tir.loads(func.body):
        constant = position.get(load.source, 0) >= activations
        for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
            if isinstance(index, tirx.Var | tirx.IntImm) or _is_clamped(index):
                continue
            for inner in tir.loads(index):
                k = position.get(inner.source)
                if k is not None and not (constant and ITEM_BYTES[tir.dtype_of(inner.source)] <= 2):
                    found[k] = min(extent, found.get(k, extent))
    return found


def _is_clamped(index: Any) -> bool:
    """Return True for `min(max(..., 0), constant)`, used by gathers to stay inside the tensor for any index."""
    clamped = isinstance(index, tirx.Min) and isinstance(index.a, tirx.Max)
    return clamped and tir.int_value(index.b) is not None and tir.int_value(index.a.b) == 0


def _require_below(indices: np.ndarray, extent: int, name: str) -> None:
    """Raise `NotExecutedError` unless all of `indices` lie in `range(extent)`."""
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < extent:
        raise NotExecutedError(f"{short_name(name)} reads at indices that are random")


class _Program:
    """A lowered plan with segments run one by one."""

    def __init__(self, plan: Plan, lowered: Lowered) -> None:
        self.plan, self.lowered = plan, lowered
        self.room = plan.allocation.peak + lowered.spare_bytes
        self.library: Any = None

    def functions(self, words: bool) -> dict[GlobalVar, PrimFunc]:
        """Make the program's functions, with an entry for running a single segment; `words` as in `portable`."""
        functions: Any = getattr(self.lowered.mod, "functions")  # noqa: B009 (a field of run time)
        made = {gv: portable(f, words) for gv, f in functions.items() if gv.name_hint != self.lowered.invoke}
        invoke = GlobalVar(self.lowered.invoke)
        segment = tirx.Var("segment", "int32")
        driver = by_segment(self.lowered.mod[self.lowered.invoke], segment)
        made = {gv: _calling(func, made) for gv, func in made.items()}
        made[invoke] = _calling(driver, made)
        made[GlobalVar(_INVOKE)] = self._entry(invoke, len(driver.params) - 1)
        return made

    def _entry(self, invoke: GlobalVar, pointers: int) -> PrimFunc:
        parts = areas(self.plan)
        arena = tirx.decl_buffer((self.room + 2 * _MARGIN,), "int8", "arena")
        flash = tirx.decl_buffer((max(len(self.lowered.flash), 8),), "int8", "flash")
        context = tirx.decl_buffer((max(self._streamed_bytes, 1),), "int8", "context")
        status = tirx.decl_buffer((1,), "int32", "status")
        segment = tirx.Var("segment", "int32")
        args = [tirx.address_of(arena[_MARGIN + area.start]) for area in parts]
        args += [tirx.address_of(flash[0]), tirx.address_of(context[0]), tirx.address_of(status[0])]
        call = Call(invoke, [*args[:pointers], segment], ret_ty="int32")
        entry = tirx.PrimFunc([arena, flash, context, status, segment], tirx.Evaluate(call))
        return entry.with_attr("global_symbol", _INVOKE)

    @property
    def _streamed_bytes(self) -> int:
        return sum(self.plan.graph.tensors[t].bytes for t in streamed_inputs(self.plan))

    def run(self, inputs: Values) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Run segment by segment; yield every tensor made by the last segment that then lies whole in memory."""
        plan, graph = self.plan, self.plan.graph
        memory = np.random.default_rng(1).integers(-128, 128, self.room + 2 * _MARGIN).astype(np.int8)
        margins = memory[:_MARGIN].copy(), memory[_MARGIN + self.room :].copy()
        streamed = streamed_inputs(plan)
        for t in graph.inputs:
            if t not in streamed:
                start = _MARGIN + place_of(plan, t)
                memory[start : start + graph.tensors[t].bytes] = np.frombuffer(inputs[t].tobytes(), np.int8)
        rows = b"".join(inputs[t].tobytes() for t in streamed) or b"\0"
        flash = self.lowered.flash.ljust(8, b"\0")
        fixed = [tvm.runtime.tensor(np.frombuffer(d, np.int8).copy()) for d in (flash, rows)]
        arena, status = tvm.runtime.tensor(memory), tvm.runtime.tensor(np.zeros(1, np.int32))
        for s, segment in enumerate(plan.segments):
            self.library[_INVOKE](arena, *fixed, status, s)
            after = arena.numpy()
            for own, now in zip(margins, (after[:_MARGIN], after[_MARGIN + self.room :]), strict=True):
                if not np.array_equal(own, now):
                    names = [graph.ops[o].name for o in segment.ops]
                    raise ValidationError("it writes outside of its memories", names)
            for t in (t for o in segment.ops for t in graph.ops[o].outputs):
                if _lies_whole(plan, t, s):
                    tensor, start = graph.tensors[t], _MARGIN + place_of(plan, t)
                    raw = after[start : start + tensor.bytes].tobytes()
                    yield tensor, np.frombuffer(raw, tensor.dtype).reshape(tensor.shape)


def by_segment(driver: PrimFunc, segment: Any) -> PrimFunc:
    """Make a plan's driver with a further parameter, the number `segment` of the only segment to run.

    The driver is lowered with calls to `_MARKER` at every segment's start.
    """
    head: list[Any] = []
    parts: dict[int, list[Any]] = {}
    stmts = list(driver.body.seq) if isinstance(driver.body, tirx.SeqStmt) else [driver.body]
    current = head
    for stmt in stmts[:-1]:  # the last returns the status
        number = _marked(stmt)
        if number is None:
            current.append(stmt)
        else:
            current = parts.setdefault(number, [])
    chosen = [tirx.IfThenElse(tirx.EQ(segment, tir.i32(n)), tir.sequence(p), None) for n, p in parts.items() if p]
    body = tir.sequence([*head, *chosen, stmts[-1]])
    return tirx.PrimFunc([*driver.params, segment], body, driver.ret_type, driver.attrs)


def _marked(stmt: Any) -> int | None:
    """Return the number of the segment beginning with a statement."""
    call = getattr(stmt, "value", None)
    if not isinstance(stmt, tirx.Evaluate) or not isinstance(call, Call) or len(call.args) != 2:
        return None
    return tir.int_value(call.args[1]) if str(getattr(call.args[0], "value", "")) == _MARKER else None


def _calling(func: PrimFunc, functions: Mapping[GlobalVar, Any]) -> PrimFunc:
    """Return `func` with the variables of `functions` in the calls, by name."""
    named = {gv.name_hint: gv for gv in functions}
    body = tir.replace(func.body, GlobalVar, lambda gv: named.get(gv.name_hint, gv))
    return func if body.same_as(func.body) else func.with_body(body)


def _lies_whole(plan: Plan, t: int, segment: int) -> bool:
    """Return True if a tensor made by a segment lies whole in memory afterwards, its elements contiguous."""
    graph = plan.graph
    storage, output = plan.storages[t], t in graph.outputs
    apart = False
    while True:
        rows = graph.tensors[storage.tensor].rows
        apart = apart or storage.pitch > 0 or storage.is_ring(rows) or (bool(storage.row_addresses) and not output)
        if storage.root is None:
            break
        storage = plan.storages[storage.root]
    is_there = storage.lower <= segment  # a view of a streamed input is made before the input arrives
    return not apart and is_there and (output or storage.upper > segment + 1)


def _build(network: _Network, programs: Sequence[_Program]) -> None:
    """Build a network's and a program's functions into a library. Raises `NotExecutedError` if TVM cannot."""
    try:
        library = (_library(network, programs, words=True) if can_link() else None) or _library(network, programs)
        library[_INVOKE]  # the JIT, where nothing is linked, looks for all symbols now
    except NotPortableError as error:
        raise NotExecutedError(f"it has instructions of another machine ({error})") from error
    except Exception as error:  # TVM's passes have no common class of errors
        raise NotExecutedError(f"{type(error).__name__}: {last_line(error)}") from error
    network.library = library
    for program in programs:
        program.library = library


def _library(network: _Network, programs: Sequence[_Program], words: bool = False) -> Any:
    """Build the library; return None if `words` are functions of their own and cannot be linked."""
    functions = {GlobalVar(name): f.with_attr("global_symbol", name) for name, f in network.functions.items()}
    for program in programs:
        functions |= program.functions(words)
    with QUICK_TARGET:
        mod = with_barriers(IRModule(functions))
    built = quick_build(mod).mod
    library = linked(built, WORDS_FILE if words else None)
    return None if words and library is built else library


@dataclass
class _Comparison:
    """Comparison of a planned program's tensors with the network's; differing floats are compared with a layer-by-layer
    plan.
    """

    prepared: PreparedGraph
    source: Source
    want: Values
    transform: Callable[[PrimFunc], PrimFunc] | None

    @cached_property
    def of_floats(self) -> bool:
        """Return whether anything is computed in floats."""
        return any(_has_floats(call.func) for call in self.source.calls)

    @cached_property
    def layerwise(self) -> Values:
        """Compute with the same kernels operator by operator: floats are added up in their order."""
        graph = self.prepared.graph
        plan = plan_graph(graph, PlanOptions(layerwise=True, alignment=self.prepared.core.core.align))
        kernels = self.prepared.kernels_of(plan)
        program = _Program(plan, lower_plan(plan, kernels, transform=self.transform, segment_call=_MARKER))
        _build(_Network(Source(self.source.tensors, (), (), ())), [program])
        return {tensor.index: value for tensor, value in program.run({t: self.want[t] for t in graph.inputs})}

    def check(self, tensor: Tensor, got: np.ndarray) -> None:
        """Raise `ValidationError` unless a tensor equals the network's."""
        want = self.want[tensor.index]
        if _same(got, want):
            return
        if self.of_floats and (_near(got, want, 0.0) or self._as_layerwise(tensor, got)):
            return
        differ = np.count_nonzero(got != want)
        producer = self.prepared.graph.producer[tensor.index]
        names = [] if producer is None else [self.prepared.graph.ops[producer].name]
        raise ValidationError(
            f"{short_name(tensor.name)} differs from the network without a plan in {differ} of {want.size} elements",
            names,
        )

    def _as_layerwise(self, tensor: Tensor, got: np.ndarray) -> bool:
        known = self.layerwise.get(tensor.index)
        return known is not None and _near(got, known, _FEW)


def _has_floats(func: PrimFunc) -> bool:
    return any("float" in kind for kind in _kinds(func))


def _kinds(func: PrimFunc) -> set[str]:
    """Return the element types of a function's buffers and casts."""
    kinds = {str(p.ty.dtype) for p in func.params if hasattr(p.ty, "dtype")}
    return kinds | {str(cast.ty.dtype) for cast in tir.collect(func.body, tirx.Cast)}


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    """Return True if two arrays are equal; all NaNs count as equal."""
    return bool(np.array_equal(got, want, equal_nan=want.dtype.kind == "f"))


def _near(got: np.ndarray, want: np.ndarray, share: float) -> bool:
    """Return True if all elements but a `share` lie near the wanted values; integers must be equal."""
    if want.dtype.kind != "f" and want.dtype.name != "bfloat16":
        return bool(np.count_nonzero(got != want) <= share * want.size)
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= _NEAR.get(want.dtype.name, _NEAR_HALF) * largest
    near |= (a == b) | (np.isnan(a) & np.isnan(b))
    return int(np.count_nonzero(~near)) <= share * want.size
