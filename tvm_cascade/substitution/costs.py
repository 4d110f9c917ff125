"""Cost functions for graphs: the columns in MetaFlow's Table 2 (section 4.1) and weighted sums.

All but peak memory sum a figure per operator, a function of its signature alone. A graph's pool caches figures by
signature, so a new graph computes only new operators. Latencies come from the shared cost models (analytic, measured,
learned) through `OpFeatures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, inf, prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.graph import ITEM_BYTES
from tvm_cascade.operators.elementwise import program_steps
from tvm_cascade.operators.record import Family, Operator, TensorType, Types
from tvm_cascade.operators.table import OPERATORS
from tvm_cascade.sizes import parse_size
from tvm_cascade.substitution.dag import Dag, Node, Ref

if TYPE_CHECKING:
    from tvm_cascade.cost import CostModel, Device, OpFeatures


@dataclass(frozen=True, slots=True)
class Engine:
    """Capabilities of the kernels that run the graph. The paper's engine is cuDNN; ours is TVM's generated code."""

    name: str
    winograd: bool  # 3x3 convolutions at stride 1 take 2.25 times fewer multiplications, F(2x2, 3x3)
    views: bool  # a split along the outermost axis is a pointer, not a copy
    in_place_concat: bool  # a concat with the flag that the rule `exclusive_concat` sets needs no copy


TVM = Engine("tvm", winograd=False, views=False, in_place_concat=False)
STAGES = Engine("stages", winograd=False, views=True, in_place_concat=True)  # `passes.ScheduleStages`, batch 1, NCHW
CUDNN = Engine("cudnn", winograd=True, views=True, in_place_concat=True)
CUDNN_KEPLER = Engine("cudnn", winograd=False, views=True, in_place_concat=True)


def cudnn(device: Device) -> Engine:
    """Return the paper's engine on a device, assumed to have fused Winograd kernels from Maxwell (sm_50) on."""
    digits = device.arch.removeprefix("sm_")
    return CUDNN_KEPLER if digits.isdigit() and int(digits) < 50 else CUDNN


@dataclass(frozen=True, slots=True)
class Figures:
    """The columns in MetaFlow's Table 2 for a single operator."""

    flops: int  # two per multiply-accumulate, one per element-wise step
    traffic: int  # bytes of activations and weights, each once
    launches: int  # kernels


class Cost(Protocol):
    """A cost function for graphs, lower is better. `total` is infinite beyond a limit.

    A cost may bring its own search, as `search(dag, rules, options)`.
    """

    @property
    def name(self) -> str: ...

    def total(self, dag: Dag) -> float: ...


@runtime_checkable
class Foreseeing(Protocol):
    """A cost that is told which operators are about to be priced, as it measures several at the same time."""

    def foresee(self, nodes: Iterable[Node]) -> None:
        """Announce that `total` will be asked for graphs with these operators, built as they are read."""
        ...


def is_view(node: Node, engine: Engine) -> bool:
    """Return True if the engine runs the operator without moving data."""
    if node.kind == "reshape":
        return True
    if node.kind == "split":
        return engine.views and prod(node.inputs[0].shape[: int(node["axis"])]) == 1
    if node.kind == "concat":
        return engine.in_place_concat and bool(node.get("in_place"))
    if node.kind == "transpose":
        moved = [i for i in node["perm"] if node.inputs[0].shape[i] != 1]
        return moved == sorted(moved)
    return False


def _entry(node: Node) -> tuple[Operator, Types]:
    """Return the operator's table entry, and its operands' types."""
    return OPERATORS[node.kind], tuple(r.type for r in node.inputs)


def macs_of(node: Node) -> int:
    """Count multiply-accumulates, padding included."""
    operator, read = _entry(node)
    return operator.macs(read, node.types, dict(node.attrs))


def flops_of(node: Node) -> int:
    """Count nominal arithmetic operations: padding counts, Winograd does not."""
    operator, read = _entry(node)
    return operator.steps(read, node.types, dict(node.attrs))


def bytes_of(refs: Sequence[Ref]) -> int:
    """Count tensor bytes, each tensor once."""
    return sum([_size(r.node.types[r.port]) for r in dict.fromkeys(refs)])


@lru_cache(maxsize=4096)
def _size(tensor: TensorType) -> int:
    """Return a tensor type's bytes."""
    return prod(tensor.shape) * ITEM_BYTES.get(tensor.dtype, 4)


def figures(node: Node, engine: Engine) -> Figures:
    """Return Table 2's columns for a single operator run by `engine`; zeros for a view."""
    if is_view(node, engine):
        return Figures(0, 0, 0)
    return Figures(flops_of(node), bytes_of(node.inputs) + bytes_of(node.outputs), 1)


def op_features(node: Node, engine: Engine) -> OpFeatures:
    """Return the operator's features for the shared cost models."""
    from tvm_cascade.cost import OpFeatures, features  # searches for less memory price no latency

    if is_view(node, engine):
        return OpFeatures(kind="view")
    operator = OPERATORS[node.kind]
    kind, macs = operator.unquantized or node.kind, macs_of(node)
    if operator.family is Family.CONVOLUTION:
        groups = int(node["groups"])
        depthwise = groups > 1 and node.inputs[1].shape[1] == 1
        kind = "depthwise_conv2d" if depthwise else kind
        plain = not operator.unquantized and node["strides"] == node["dilation"] == (1, 1) and groups == 1
        if engine.winograd and plain and node.inputs[1].shape[2:] == (3, 3):
            macs = macs * 4 // 9
    elif operator.family is Family.PRODUCT:
        kind = "dense" if node.inputs[1].node.constant else kind
    read = [r for r in dict.fromkeys(node.inputs) if not r.node.constant]
    fixed = [r for r in dict.fromkeys(node.inputs) if r.node.constant]
    return features(
        kind,
        [r.shape for r in read],
        [t.shape for t in node.types],
        node.type.dtype,
        macs,
        bytes_of(fixed),
        _geometry(node),
    )


def _geometry(node: Node) -> tuple[int, ...]:
    """Return attributes and kernel sizes: operators that differ here are measured separately."""
    if node.kind == "fused":
        return (program_steps(node["program"]),)
    names = ("strides", "padding", "dilation", "groups", "kernel", "axis", "sizes")
    numbers: list[int] = []
    for name, value in node.attrs:
        if name in names:
            numbers += value if isinstance(value, tuple) else [int(value)]
    return (*numbers, *(node.inputs[1].shape if OPERATORS[node.kind].family is Family.CONVOLUTION else ()))


def peak_bytes(dag: Dag) -> int:
    """Return the live activations' peak bytes in `dag.nodes` order; inputs and outputs included."""
    return peak_at(dag)[0]


def peak_at(dag: Dag) -> tuple[int, str]:
    """Return a graph's `peak_bytes`, and the operator kind at the peak."""
    sizes: dict[int, tuple[int, ...]] = dag.pool.memory(peak_at)  # bytes of the outputs, by signature
    last: dict[Ref, int] = {}
    for i, node in enumerate(dag.nodes):
        for ref in node.operands:
            last[ref] = i
        if node.signature not in sizes:
            sizes[node.signature] = tuple([_size(t) for t in node.types])
    for ref in dag.outputs:
        last[ref] = len(dag.nodes)
    alive = bytes_of(dag.inputs)
    peak, where = alive, "input"
    for i, node in enumerate(dag.nodes):
        made = sizes[node.signature]
        alive += sum(made)
        if alive > peak:
            peak, where = alive, node.kind
        for ref in node.operands:
            if last[ref] == i:
                alive -= sizes[ref.node.signature][ref.port] if ref.node.signature in sizes else _size(ref.type)
        for ref, size in zip(node.outputs, made, strict=True):
            if ref not in last:
                alive -= size
    return peak, where


@dataclass(eq=False)
class Additive(ABC):
    """A cost summed over operators. Subclasses define a single operator's cost, `node`."""

    name: str
    engine: Engine = TVM

    @abstractmethod
    def node(self, node: Node) -> float:
        """Return a single operator's cost."""

    def total(self, dag: Dag) -> float:
        known = dag.pool.memory(self)
        for node in dag.nodes:
            if node.signature not in known:
                known[node.signature] = self.node(node)
        return fsum([known[node.signature] for node in dag.nodes])


@dataclass(eq=False)
class Figure(Additive):
    """A column in Table 2 as a cost; its name is 'flops', 'traffic' (bytes) or 'launches'."""

    def node(self, node: Node) -> float:
        return float(getattr(figures(node, self.engine), self.name))


@dataclass(eq=False)
class Latency(Additive):
    """A graph's milliseconds by a shared cost model, with operators in sequence."""

    model: CostModel | None = None

    def node(self, node: Node) -> float:
        assert self.model is not None
        return self.model.op_ms(op_features(node, self.engine))


@dataclass(eq=False)
class Weighted(Additive):
    """A weighted sum of additive costs, each in its own unit."""

    terms: tuple[tuple[float, Additive], ...] = ()

    def node(self, node: Node) -> float:
        return fsum(weight * term.node(node) for weight, term in self.terms)


@dataclass(eq=False)
class PeakMemory:
    """Live activations' peak bytes; ties are broken by the operator count (1e-3 bytes each)."""

    name: str = "peak"

    def total(self, dag: Dag) -> float:
        return peak_bytes(dag) + 1e-3 * len(dag.nodes)


@dataclass(eq=False)
class Limited:
    """`cost` where the peak memory stays within `limit` bytes, else infinite (section 4.1)."""

    cost: Cost
    limit: int

    @property
    def name(self) -> str:
        return f"{self.cost.name},peak<={self.limit}"

    def total(self, dag: Dag) -> float:
        return self.cost.total(dag) if peak_bytes(dag) <= self.limit else inf

    def foresee(self, nodes: Iterable[Node]) -> None:
        """Announce graphs, see `Foreseeing`."""
        if isinstance(self.cost, Foreseeing):
            self.cost.foresee(nodes)


def limit_broken(cost: Cost, dag: Dag) -> InfeasibleError:
    """Return the error for a graph with infinite cost."""
    needed, where = peak_at(dag)
    return InfeasibleError(needed, getattr(cost, "limit", 0), (where,), "raise the limit of the cost")


def parse_cost(
    text: str, model: CostModel, engine: Engine = TVM, named: Mapping[str, Cost] = MappingProxyType({})
) -> Cost:
    """Parse a cost: 'latency', 'flops', 'traffic', 'launches', 'peak', or a weighted sum such as 'latency+1e-9*traffic'.

    Each may have a cap on memory: 'latency,peak<=262144'. `named` holds further costs by name, which may be terms of a
    sum if they are `Additive`. Raises `UsageError` for anything else.
    """
    main, _, cap = text.replace(" ", "").partition(",")
    cost: Cost
    if main == "peak":
        cost = PeakMemory()
    elif main in named:
        cost = named[main]
    else:
        terms = tuple(_term(t, model, engine, named) for t in main.replace("e-", "e~").replace("e+", "e").split("+"))
        plain = len(terms) == 1 and terms[0][0] == 1
        cost = terms[0][1] if plain else Weighted(main, engine, terms=terms)
    if not cap:
        return cost
    head, sign, size = cap.partition("<=")
    if head != "peak" or not sign:
        raise UsageError(f"unknown limit {cap}: write peak<=BYTES")
    return Limited(cost, parse_size(size))


def _term(text: str, model: CostModel, engine: Engine, named: Mapping[str, Cost]) -> tuple[float, Additive]:
    weight, star, name = text.replace("e~", "e-").rpartition("*")
    try:
        factor = float(weight) if star else 1.0
    except ValueError:
        raise UsageError(f"unknown weight {weight} in a cost: write a number") from None
    if name == "latency":
        return factor, Latency("latency", engine, model=model)
    if name in ("flops", "traffic", "launches"):
        return factor, Figure(name, engine)
    cost = named.get(name)
    if isinstance(cost, Additive):
        return factor, cost
    if cost is not None or name == "peak":
        raise UsageError(f"{name} is a cost of the whole graph: it stands alone or with a limit, not in a sum")
    raise UsageError(
        f"unknown cost {name}: choose latency, flops, traffic, launches, peak{''.join(', ' + n for n in named)}"
    )
