"""Reads how a Relax function slides over time: which tensors have rows, along which axis, and how operators read them."""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tvm_cascade.errors import GraphError, UsageError
from tvm_cascade.graph import IDENTITY, ITEM_BYTES, Window
from tvm_cascade.passes.integer.untyped import Binding, Function, Value, relax
from tvm_cascade.passes.origin import file_name, plain
from tvm_cascade.passes.relax_functions import bindings_of
from tvm_cascade.passes.sliding.rules import rule_of
from tvm_cascade.passes.sliding.site import NotSliding, Site, Sliding, shape_of
from tvm_cascade.passes.sliding.totals import Total, find_totals
from tvm_cascade.passes.states import STATES_ATTR
from tvm_cascade.sliding import Series, SlidingNetwork, Step

_VIEWS = ("reshape", "expand_dims", "squeeze", "flatten", "permute_dims", "strided_slice")  # zeros stay zeros


@dataclass(frozen=True)
class ReadStep:
    """An operator that depends on the network's input."""

    binding: Binding
    sliding: Sliding | None  # None: its output has no rows
    inputs: tuple[Value, ...]  # the variables of `Step.inputs`
    total: Total | None = None  # where the output is a function of the sum of all rows
    views: tuple[ReadStep, ...] = ()  # behind the input, in front of what is summed


@dataclass(frozen=True)
class SlidingFunction:
    """A function as a `SlidingNetwork`, with everything needed for writing the function back."""

    network: SlidingNetwork
    steps: tuple[ReadStep, ...]  # of `network.steps`
    variables: tuple[Value, ...]  # of `network.series`
    axes: dict[Value, int]  # time axis of the variables that have rows


def read_sliding(func: Function, axis: int = 1) -> SlidingFunction:
    """Read the function as a network with a window that slides along an axis behind the batch of the only parameter.

    Raises `GraphError` for a function with several parameters, or without rows to slide over, and `UsageError` for a
    missing axis, and for a network with states: they would accumulate a window once for every frame that contains it,
    and incomplete windows too (rfc/0019, section 3).
    """
    kept = int(dict(func.attrs or {}).get(STATES_ATTR, 0))
    if kept:
        names = ", ".join(p.name for p in func.params[-kept:])
        raise UsageError(
            f"--hop slides the window of a network that keeps nothing, and this one keeps {names} from call to call: leave "
            "--hop out where a call takes new rows alone, or let recurrent layers begin every window anew (--stateless)"
        )
    if len(func.params) != 1:
        names = ", ".join(p.name for p in func.params)
        raise GraphError(f"--hop slides the window of one input, and the network has {len(func.params)} ({names})")
    if not all(isinstance(block, relax.DataflowBlock) for block in func.body.blocks):
        raise GraphError("--hop: the network has branches or loops, which do not slide")
    shape = shape_of(func.params[0])
    if len(shape) < 2 or shape[0] != 1:
        raise GraphError(f"--hop: the input is {list(shape)}, not one window of rows, [1, T, ...]")
    if axis >= len(shape):
        raise UsageError(f"--axis {axis}: the input is {list(shape)}, whose last axis is {len(shape) - 1}")
    return _Reader(func, axis).read()


@dataclass
class _Reader:
    func: Function
    axis: int  # of time, of the network's input
    series: list[Series] = field(default_factory=list)
    variables: list[Value] = field(default_factory=list)
    axes: dict[Value, int] = field(default_factory=dict)
    number: dict[Value, int] = field(default_factory=dict)  # of variables that depend on the input
    steps: list[ReadStep] = field(default_factory=list)

    def read(self) -> SlidingFunction:
        given = self.func.params[0]
        self._add(given, self.axis)
        self.totals = find_totals(self.func)
        network: list[Step] = []
        for binding in bindings_of(self.func):
            step = self._step(binding)
            if step is not None:
                network.append(step)
        results = relax.analysis.free_vars(self.func.body.body)
        outputs = tuple(dict.fromkeys(self._outputs(results)))
        made = SlidingNetwork(tuple(self.series), tuple(self._named(network)), 0, outputs)
        return SlidingFunction(made, tuple(self.steps), tuple(self.variables), self.axes)

    def _named(self, network: Sequence[Step]) -> list[Step]:
        """Name operators after the file's tensors. An operator inside a quantized layer, whose tensor has no name,
        takes the reader's.
        """
        names = {number: file_name(variable.name) for variable, number in self.number.items()}
        for step in reversed(network):
            for tensor in step.inputs:
                names[tensor] = names[tensor] or names[step.output]
        kinds = (step.name.partition(" (")[0] for step in network)
        found = (names[step.output] for step in network)
        return [replace(s, name=f"{k} ({n})") if n else s for s, k, n in zip(network, kinds, found, strict=True)]

    def _outputs(self, results: Any) -> list[int]:
        """Return the tensors returned by the function, through variables of tuples and aliases."""
        return [self.number[v] for v in results if v in self.number]

    def _add(self, variable: Value, axis: int | None) -> int:
        """Add a tensor to the network."""
        kinds = list(variable.ty.fields) if isinstance(variable.ty, relax.TupleType) else [variable.ty]
        size = sum(prod(int(d) for d in k.shape.values) * ITEM_BYTES.get(str(k.dtype), 8) for k in kinds)
        rows = None if axis is None else shape_of(variable)[axis]
        self.series.append(Series(plain(variable.name), rows, size // (rows or 1)))
        self.variables.append(variable)
        self.number[variable] = len(self.series) - 1
        if axis is not None:
            self.axes[variable] = axis
        return self.number[variable]

    def _step(self, binding: Binding) -> Step | None:
        """Build the operator of a binding; None if the binding depends on constants alone."""
        read = [v for v in relax.analysis.free_vars(binding.value) if v in self.number]
        if not read:
            return None
        total = self.totals.get(binding.var)
        if total is not None and self.axes.get(total.source) in total.axes:
            return self._summed(binding, total)
        sliding = self._sliding(binding, read)
        inputs = tuple(self._fields(binding.value)) if sliding is not None else tuple(read)
        windows: tuple[Window | None, ...] = (None,) * len(inputs) if sliding is None else sliding.windows
        output = self._add(binding.var, None if sliding is None else sliding.axis)
        self.steps.append(ReadStep(binding, sliding, inputs))
        macs = _macs(binding.value) if sliding is None else sliding.macs
        free = sliding is not None and sliding.free
        return Step(_name(binding), tuple(self.number[v] for v in inputs), output, windows, macs, free)

    def _summed(self, binding: Binding, total: Total) -> Step:
        """Add an operator that sums all rows, in place of the operators for the sum."""
        source, views = total.source, list[ReadStep]()
        while (number := self.number[source]) and self._is_view(self.steps[number - 1]):
            views.insert(0, self.steps[number - 1])
            source = views[0].inputs[0]
        terms = prod(shape_of(total.source)) // shape_of(total.source)[self.axes[total.source]]
        output = self._add(binding.var, None)
        self.steps.append(ReadStep(binding, None, (source,), total, tuple(views)))
        return Step(total.name, (self.number[source],), output, (None,), total_bytes=total.bytes, terms=terms)

    def _is_view(self, step: ReadStep) -> bool:
        sliding, named = step.sliding, _op(step.binding.value).rpartition(".")[2] in _VIEWS
        return named and sliding is not None and sliding.free and sliding.windows == (IDENTITY,)

    def _fields(self, value: Value) -> list[Value]:
        """List the tensors with rows read by a call, in order."""
        args = [f for a in value.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])]
        return [a for a in args if a in self.axes]

    def _sliding(self, binding: Binding, read: list[Value]) -> Sliding | None:
        value = binding.value
        known = isinstance(value, relax.Call) and hasattr(value.op, "name") and all(v in self.axes for v in read)
        rule = rule_of(str(value.op.name).rpartition(".")[2]) if known else None
        if rule is None or not hasattr(binding.var.ty, "shape"):
            return None
        inputs = self._fields(value)
        args = [f for a in value.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])]
        constants = tuple(a for a in args if a not in self.axes and isinstance(a.ty, relax.TensorType))
        shape = shape_of(binding.var)
        site = Site(
            value, tuple(inputs), tuple(self.axes[v] for v in inputs), constants, shape, str(binding.var.ty.dtype)
        )
        try:
            return rule(site)
        except NotSliding:
            return None


def _macs(value: Value) -> int:
    """Count the multiply-accumulates of an operator that reads all rows: a tensor product's; 0 otherwise."""
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.matmul":
        return 0
    return prod(shape_of(value.args[0])) * shape_of(value.args[1])[-1]


def _name(binding: Binding) -> str:
    kind = _op(binding.value).rpartition(".")[2]
    if kind == "call_tir":
        kind = str(binding.value.args[0].name_hint).rstrip("_0123456789")  # what the function is, such as `scan`
    return f"{kind} ({plain(binding.var.name)})"


def _op(value: Value) -> str:
    return str(getattr(getattr(value, "op", None), "name", type(value).__name__))
