"""Remove channels that a quantized network computes in vain, with proof: every output keeps every bit.

Channels lie on the last axis. A channel is *constant* if it has one value at every position for every input: a filter
with weights all equal to their zero point gives its bias, rescaled and clamped. Constants are followed forward through
the graph (`_Constants`), needs backward (`_Kept`). A convolution or product needs no channel whose weights equal their
zero point in every kept output, and no constant channel whose products fit into its bias. They fit unless it pads:
padding adds nothing to a sum, and a constant adds nothing only at the zero point. Other operators keep the same
channels on all sides; unknown operators keep all. The kept channels are the least solution, found by iteration from
none.

Graph inputs, outputs and operands of opaque operators keep all channels. No tensor is left without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tvm_cascade.operators import table
from tvm_cascade.operators.fixed_point import INT32_MAX, range_of
from tvm_cascade.operators.record import Array, Family
from tvm_cascade.substitution.dag import Dag, Node, Ref
from tvm_cascade.substitution.evaluate import evaluate
from tvm_cascade.substitution.integer_arithmetic import TFLITE, Arithmetic

_LAYERS = ("qconv2d", "qmatmul")
_POOLS = ("max_pool2d", "avg_pool2d")
_BIAS_BYTES = 4


@dataclass(frozen=True, slots=True)
class ShrunkLayer:
    """A convolution or product with fewer weights than before."""

    output: Ref  # of the graph before
    channels: int  # outputs removed
    of: int  # outputs before
    weight_bytes: int  # of weights and biases removed


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A graph without dead channels."""

    dag: Dag
    constants: Mapping[str, Array]  # by name of the weight leaf
    layers: tuple[ShrunkLayer, ...]  # those that shrank, in topological order; empty if nothing did
    moved: Mapping[Ref, Ref]  # values of the graph before -> of this one


def without_dead_channels(dag: Dag, constants: Mapping[str, Array], rounding: Arithmetic = TFLITE) -> Shrunk:
    """Remove constant and unread channels from `dag`; `constants` are its weights by name."""
    layers = {n: made for n in dag.nodes if n.kind in _LAYERS and (made := _layer(n, constants, rounding)) is not None}
    known = _Constants(layers, rounding).of(dag)
    kept = _Kept(dag, layers, known).solve()
    if all(k.all() for k in kept.values()):
        return Shrunk(dag, constants, (), {})
    return _Writer(dag, dict(constants), layers, known, kept).write()


def has_dead_channels(weights: Array, zero: int, axes: tuple[int, ...]) -> bool:
    """Return True if the weights have an all-`zero` slice along one of `axes`, outputs or inputs.

    A quick test before graphs are read: it looks at a few weights per slice first.
    """
    for axis in axes:
        slices = np.moveaxis(weights, axis, 0)
        first = slices[(slice(None), *(0 for _ in slices.shape[2:]), slice(_FEW))]
        some = (first == zero).all(1)
        if some.any() and (slices[some] == zero).reshape(int(some.sum()), -1).all(1).any():
            return True
    return False


_FEW = 8


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution or product, per output and input channel. Depthwise, an output has its own input alone (`times`)."""

    sums: Array  # int64 [outputs, inputs of an output]: of weights less their zero point
    zero: Array  # bool, alike: whether all of these weights equal their zero point
    bias: Array  # int64 [outputs], in units of the sums
    multipliers: Array  # float64 [outputs]
    times: int  # outputs of each input, of a depthwise convolution; 0 for others
    x_zero: int
    padded: bool

    def gathered(self, per_input: Array) -> Array:
        """Return per-input values as [1 or outputs, inputs per output]."""
        return np.repeat(per_input, self.times)[:, None] if self.times else per_input[None, :]

    def absorbed(self, flags: Array, values: Array) -> tuple[Array, Array]:
        """Return, for constant inputs (`flags`, `values`), the inputs each output can add to its bias, and the
        products.

        Both have a single row per output. A bias stays within 32 bits under any selection.
        """
        centred = np.where(flags, values - self.x_zero, 0)
        free = self.gathered(flags & ((centred == 0) | (not self.padded)))
        products = np.where(free, self.gathered(centred) * self.sums, 0)
        wide = np.abs(self.bias) + np.abs(products).sum(1) > INT32_MAX
        return free & ~(wide[:, None] & (products != 0)), products


def _layer(node: Node, constants: Mapping[str, Array], rounding: Arithmetic) -> _Layer | None:
    """Return an operator's computation; None unless an integer kernel computes it, with channels last."""
    conv = node.kind == "qconv2d"
    if any(not r.node.constant for r in node.inputs[1:]) or (conv and node["layout"] != "NHWC"):
        return None
    weights, scales, *biases = (_value(r, constants) for r in node.inputs[1:])
    rows = weights.reshape(*weights.shape[:2], -1) if conv else weights.T[:, :, None]
    groups = int(node["groups"]) if conv else 1
    outputs, depth = rows.shape[:2]
    if groups > 1 and depth != 1:
        return None
    zero_point = int(node["w_zero"])
    bias = np.zeros(outputs, "int32") if not biases else rounding.bias(node, biases[0], biases[1], scales)
    if bias is None:
        return None
    taps = rows.shape[2]
    sums = rows.sum(2, "int64") - taps * zero_point
    zero = (rows == zero_point).all(2)
    lowest, highest = range_of(node.inputs[0].type.dtype)
    x_zero = int(node["x_quantum"][1])
    reach = max(highest - x_zero, x_zero - lowest)
    total = np.abs(rows.astype("int32") - zero_point).sum((1, 2), "int64") * reach + np.abs(bias.astype("int64"))
    multipliers = rounding.multipliers(node, scales, str(weights.dtype))
    if not rounding.computes(node, multipliers, int(total.max())):
        return None
    times = outputs // groups if groups > 1 else 0
    padded = conv and any(node["padding"])
    return _Layer(sums, zero, bias.astype("int64"), multipliers, times, x_zero, padded)


def _value(ref: Ref, constants: Mapping[str, Array]) -> Array:
    return constants[str(ref.node["name"])] if ref.node.kind == "weight" else evaluate((ref,), constants)[ref]


@dataclass(frozen=True, slots=True)
class _Constant:
    """The constant channels of a value."""

    flags: Array  # bool [channels]
    values: Array  # int64 [channels]: those of constant channels


def _channels(ref: Ref) -> int:
    return ref.shape[-1] if ref.shape else 1


@dataclass(frozen=True, slots=True)
class _Constants:
    """Follows constant channels forwards through a graph."""

    layers: Mapping[Node, _Layer]
    rounding: Arithmetic
    known: dict[Ref, _Constant] = field(default_factory=dict)  # values without any are left out

    def of(self, dag: Dag) -> Mapping[Ref, _Constant]:
        """Return the constant channels of every value with any."""
        for node in dag.nodes:
            for ref, made in zip(node.outputs, self._made(node), strict=False):
                if made is not None and made.flags.any():
                    self.known[ref] = made
        return self.known

    def _made(self, node: Node) -> Iterator[_Constant | None]:
        reads = [self.known.get(r) for r in node.inputs]
        if node in self.layers:
            yield self._layer(node, reads[0])
        elif node.kind == "concat" and node["axis"] == len(node.shape) - 1:
            yield _joined(node, reads)
        elif all(r is None for r in reads):
            return
        elif node.kind == "split" and reads[0] is not None:
            yield from _parts(node, reads[0])
        elif node.kind == "reshape" and reads[0] is not None:
            yield _reshaped(_channels(node.inputs[0]), _channels(node.result), reads[0])
        elif node.kind == "qadd" and all(r is not None for r in reads):
            a, b = (r for r in reads if r is not None)
            values = self.rounding.added(node, a.values, b.values)
            yield None if values is None else _Constant(a.flags & b.flags, values)
        elif node.kind == "concat":
            yield _same(reads)
        elif node.get("table") is not None and reads[-1] is not None and _same_channels(node):
            lowest = range_of(node.inputs[-1].type.dtype)[0]
            table = np.array(node["table"], "int64")
            yield _Constant(reads[-1].flags, table[np.where(reads[-1].flags, reads[-1].values - lowest, 0)])
        elif reads[0] is not None and _same_channels(node):
            yield _moved(node, reads[0])

    def _layer(self, node: Node, read: _Constant | None) -> _Constant:
        layer, inputs = self.layers[node], _channels(node.inputs[0])
        read = read or _Constant(np.zeros(inputs, bool), np.zeros(inputs, "int64"))
        free, products = layer.absorbed(read.flags, read.values)
        flags = np.asarray((layer.zero | free).all(1))
        sums = layer.bias + np.where(free, products, 0).sum(1)
        return _Constant(flags, self.rounding.stored(node, np.where(flags, sums, 0), layer.multipliers))


def _joined(node: Node, reads: list[_Constant | None]) -> _Constant:
    parts = [
        r or _Constant(np.zeros(_channels(ref), bool), np.zeros(_channels(ref), "int64"))
        for r, ref in zip(reads, node.inputs, strict=True)
    ]
    return _Constant(np.concatenate([p.flags for p in parts]), np.concatenate([p.values for p in parts]))


def _same(reads: list[_Constant | None]) -> _Constant | None:
    """Return the channels with a single constant in all parts of a concatenation along another axis."""
    if any(r is None for r in reads):
        return None
    first, *others = (r for r in reads if r is not None)
    flags = first.flags.copy()
    for other in others:
        flags &= other.flags & (other.values == first.values)
    return _Constant(flags, first.values)


def _parts(node: Node, read: _Constant) -> Iterator[_Constant]:
    if node["axis"] != len(node.shape) - 1:
        yield from (read for _ in node.outputs)
        return
    ends = np.cumsum(node["sizes"])[:-1]
    for flags, values in zip(np.split(read.flags, ends), np.split(read.values, ends), strict=True):
        yield _Constant(flags, values)


def _reshaped(before: int, after: int, read: _Constant) -> _Constant | None:
    """Return a reshape's constants, if channel `i` on one side is channel `i % n` on the side with n channels."""
    if after % before == 0:
        return _Constant(np.tile(read.flags, after // before), np.tile(read.values, after // before))
    if before % after:
        return None
    flags, values = read.flags.reshape(-1, after), read.values.reshape(-1, after)
    return _Constant(flags.all(0) & (values == values[0]).all(0), values[0])


def _moved(node: Node, read: _Constant) -> _Constant | None:
    """Return the constants behind an operator that moves values, or compares or averages equal values; None for any
    other.
    """
    flags, values = read.flags, read.values
    if node.kind == "clip":
        return _Constant(flags, np.clip(values, node["low"], node["high"]).astype("int64"))
    if node.kind == "opaque":
        if node.get("moves") is None:
            return None
        low, high = range_of(node.type.dtype)
        fill = node["moves"]  # an empty tuple, or the value that is around the moved ones
        same = np.ones_like(flags) if not fill else values == fill[0]
        return _Constant(flags & same & (low <= values) & (values <= high), values)
    if node.kind == "pad":
        return _Constant(flags & (values == 0), values)
    averaged = node.kind == "avg_pool2d" and not (node["count_pad"] and any(node["padding"]))
    return read if averaged or node.kind in ("max_pool2d", "transpose") else None


def _same_channels(node: Node) -> bool:
    """Return True if every result channel depends on the operands' same channel alone."""
    if any(len(r.shape) == 0 or _channels(r) != _channels(node.result) for r in node.operands) or len(node.outputs) > 1:
        return False
    if any(r.node.constant and prod(r.shape) != 1 for r in node.inputs):
        return False
    rank = len(node.inputs[0].shape)
    if node.kind == "opaque":
        return bool(node.get("channelwise"))
    if node.kind in _POOLS:
        return node["layout"] == "NHWC"
    if node.kind == "transpose":
        return node["perm"][-1] == rank - 1
    if node.kind == "mean":
        return rank - 1 not in node["axes"]
    if node.kind == "pad":
        return not any(node["widths"][-1])
    if node.kind == "concat":
        return node["axis"] != rank - 1
    return node.kind == "qadd" or (
        node.kind in table.BINARY | table.UNARY and table.family(node.kind) in (Family.BINARY, Family.UNARY)
    )


@dataclass(slots=True)
class _Kept:
    """The kept channels, by value: the least sets that satisfy all readers."""

    dag: Dag
    layers: Mapping[Node, _Layer]
    known: Mapping[Ref, _Constant]
    kept: dict[Ref, Array] = field(init=False)  # bool [channels]
    changed: bool = field(default=False, init=False)
    needs: dict[Node, Array] = field(init=False)  # of layers, bool: which inputs each output needs (`_Layer.zero`)

    def __post_init__(self) -> None:
        refs = [*self.dag.inputs, *(r for n in self.dag.nodes for r in n.outputs)]
        self.kept = {r: np.zeros(_channels(r), bool) for r in refs}
        self.needs = {}
        for node, layer in self.layers.items():
            read = self.known.get(node.inputs[0])
            free = False if read is None else layer.absorbed(read.flags, read.values)[0]
            self.needs[node] = ~(layer.zero | free)

    def solve(self) -> Mapping[Ref, Array]:
        """Return every value's kept channels."""
        for ref in (*self.dag.inputs, *self.dag.outputs):
            if not ref.node.constant:
                self._keep(ref, True)
        while True:
            self._settle()
            empty = [r for r, k in self.kept.items() if not k.any()]
            if not empty:
                return self.kept
            self.kept[empty[-1]][0] = True

    def _settle(self) -> None:
        """Satisfy all constraints, in sweeps against and along the operator order."""
        self.changed = True
        while self.changed:
            self.changed = False
            for node in (*reversed(self.dag.nodes), *self.dag.nodes):
                self._meet(node)

    def _keep(self, ref: Ref, channels: Any) -> None:
        own = self.kept[ref]
        if np.any(channels & ~own):
            own |= channels
            self.changed = True

    def _meet(self, node: Node) -> None:
        if node in self.layers:
            self._meet_layer(node)
        elif node.kind in ("concat", "split") and node["axis"] == len(node.inputs[0].shape) - 1:
            whole, parts = (node.result, node.inputs) if node.kind == "concat" else (node.inputs[0], node.outputs)
            self._tie_parts(whole, parts)
        elif node.kind == "split":
            self._tie((node.inputs[0], *node.outputs))
        elif node.kind == "reshape" and not node.inputs[0].node.constant:
            self._tie_reshaped(node.inputs[0], node.result)
        elif _same_channels(node):
            self._tie((node.result, *node.operands))
        else:
            for ref in (*node.operands, *node.outputs):
                self._keep(ref, True)

    def _meet_layer(self, node: Node) -> None:
        x, y, layer = node.inputs[0], node.result, self.layers[node]
        if not layer.times:
            self._keep(x, self.needs[node][self.kept[y]].any(0))
            return
        self._keep(x, self.kept[y].reshape(-1, layer.times).any(1))
        self._keep(y, np.repeat(self.kept[x], layer.times))

    def _tie(self, refs: tuple[Ref, ...]) -> None:
        joint = self.kept[refs[0]].copy()
        for ref in refs[1:]:
            joint |= self.kept[ref]
        for ref in refs:
            self._keep(ref, joint)

    def _tie_parts(self, whole: Ref, parts: tuple[Ref, ...]) -> None:
        start = 0
        for part in parts:
            own = slice(start, start + _channels(part))
            start = own.stop
            if part.node.constant:
                joint = np.ones(_channels(part), bool)
            else:
                joint = self.kept[part] | self.kept[whole][own]
                self._keep(part, joint)
            among = np.zeros_like(self.kept[whole])
            among[own] = joint
            self._keep(whole, among)

    def _tie_reshaped(self, x: Ref, y: Ref) -> None:
        few, many = (x, y) if _channels(x) <= _channels(y) else (y, x)
        n = _channels(few)
        if _channels(many) % n:
            self._keep(x, True)
            self._keep(y, True)
            return
        joint = self.kept[few] | self.kept[many].reshape(-1, n).any(0)
        self._keep(few, joint)
        self._keep(many, np.tile(joint, _channels(many) // n))


@dataclass(slots=True)
class _Writer:
    """Writes the graph on the channels that are kept."""

    dag: Dag
    constants: dict[str, Array]
    layers: Mapping[Node, _Layer]
    known: Mapping[Ref, _Constant]
    kept: Mapping[Ref, Array]
    moved: dict[Ref, Ref] = field(default_factory=dict)
    shrunk: list[ShrunkLayer] = field(default_factory=list)

    def write(self) -> Shrunk:
        for node in self.dag.nodes:
            made = self._written(node)
            self.moved.update(zip(node.outputs, made.outputs, strict=True))
        outputs = tuple(self.moved.get(r, r) for r in self.dag.outputs)
        return Shrunk(Dag(self.dag.pool, self.dag.inputs, outputs), self.constants, tuple(self.shrunk), self.moved)

    def _written(self, node: Node) -> Node:
        inputs = tuple(self.moved.get(r, r) for r in node.inputs)
        attrs, pool = dict(node.attrs), self.dag.pool
        if node in self.layers and self._shrinks(node):
            return self._layer(node, inputs[0], attrs)
        if node.kind == "opaque":
            attrs["types"] = tuple((self._shape(r), r.type.dtype) for r in node.outputs)
        elif node.kind == "reshape":
            attrs["shape"] = self._shape(node.result)
        elif node.kind == "split":
            attrs["sizes"] = tuple(self._shape(r)[node["axis"]] for r in node.outputs)
        return pool.node(node.kind, inputs, tuple(sorted(attrs.items())))

    def _shape(self, ref: Ref) -> tuple[int, ...]:
        """Return a value's shape without dead channels."""
        return (*ref.shape[:-1], int(self.kept[ref].sum())) if ref.shape else ref.shape

    def _shrinks(self, node: Node) -> bool:
        return not (self.kept[node.inputs[0]].all() and self.kept[node.result].all())

    def _layer(self, node: Node, x: Ref, attrs: dict[str, Any]) -> Node:
        layer, rows, columns = self.layers[node], self.kept[node.result], self.kept[node.inputs[0]]
        weights, scales, *biases = (_value(r, self.constants) for r in node.inputs[1:])
        absorbed = self._absorbed(node)
        if layer.times:
            fewer = weights[rows]
            attrs["groups"] = int(columns.sum())
        else:
            fewer = weights[rows][:, columns] if node.kind == "qconv2d" else weights[columns][:, rows]
        operands = [fewer, scales[rows]]
        if biases or absorbed[rows].any():
            units = np.float32(node["x_quantum"][0]) * scales.astype("float32")
            operands += [(layer.bias + absorbed)[rows].astype("int32"), units[rows]]
        before = weights.nbytes + (_BIAS_BYTES * rows.size if biases else 0)
        after = fewer.nbytes + (_BIAS_BYTES * int(rows.sum()) if len(operands) > 2 else 0)
        self.shrunk.append(ShrunkLayer(node.result, int((~rows).sum()), rows.size, before - after))
        refs = [self._leaf(np.ascontiguousarray(v)) for v in operands]
        return self.dag.pool.node(node.kind, (x, *refs), tuple(sorted(attrs.items())))

    def _absorbed(self, node: Node) -> Array:
        """Return each output's bias sum for removed constant inputs."""
        layer, read, columns = self.layers[node], self.known.get(node.inputs[0]), self.kept[node.inputs[0]]
        if read is None or layer.times:
            return np.zeros_like(layer.bias)
        free, products = layer.absorbed(read.flags, read.values)
        return np.where(free & ~columns[None, :], products, 0).sum(1)

    def _leaf(self, value: Array) -> Ref:
        name = f"shrunk{len(self.constants)}"
        self.constants[name] = value
        return self.dag.pool.weight(name, value.shape, str(value.dtype))
