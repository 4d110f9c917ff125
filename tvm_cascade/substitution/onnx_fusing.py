"""Write several operators as a single ONNX operator: convolution biases, HardSwish, HardSigmoid, ReduceL2,
InstanceNormalization; merge repeated computations; drop index wrapping that Gather does itself.

ONNX Runtime fuses only these forms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_SIXTH = np.float32(1 / 6)
_FLOAT = 1  # ONNX's number of float32


def fuse(
    nodes: Sequence[Any],
    constant: Callable[[str], np.ndarray | None],
    add_constant: Callable[[np.ndarray], str],
    make_node: Callable[..., Any],
    results: Sequence[str],
    shape_of: Callable[[str], tuple[int, ...] | None] = lambda _name: None,
) -> list[Any]:
    """Return the nodes of an ONNX graph, fused: a node with a single reader, and no result, joins its reader.

    `constant` gives an initializer's value, None for other tensors; `add_constant` adds one and returns its name.
    `shape_of` gives a tensor's extents, None if unknown.
    """
    nodes = _each_once(nodes, results, constant)
    graph = _Graph(nodes, constant, results)
    gone: set[int] = set()
    made: dict[int, Any] = {}  # by the identity of the node whose place it takes
    for node in reversed(nodes):  # whole patterns before parts of them
        if id(node) in gone:
            continue
        found = _hard_swish(node, graph) or _hard_sigmoid(node, graph) or _length(node, graph)
        if found is not None:
            kind, source, inner, attrs = found
            made[id(node)] = make_node(kind, [source], list(node.output), **attrs)
            gone |= {id(n) for n in inner}
            continue
        wrapped = _wrapped(node, graph)
        if wrapped is not None:
            node.input[1], inner = wrapped
            gone |= {id(n) for n in inner}
            continue
        norm = _normalized(node, graph, shape_of)
        if norm is not None:
            read = [norm.source, *map(add_constant, (norm.scale, norm.bias))]
            made[id(node)] = make_node("InstanceNormalization", read, list(node.output), epsilon=norm.epsilon)
            gone |= {id(n) for n in norm.inner}
    for node in (n for n in nodes if id(n) not in gone):
        conv = _conv_before_bias(node, graph)
        if conv is not None:
            maker, bias = conv
            maker.input.append(add_constant(bias))
            maker.output[0] = node.output[0]
            graph.makers[node.output[0]] = maker
            gone.add(id(node))
    return [made.get(id(node), node) for node in nodes if id(node) not in gone]


def _each_once(nodes: Sequence[Any], results: Sequence[str], constant: Callable[[str], np.ndarray | None]) -> list[Any]:
    """Return the nodes without repeated computations and constants; a result stays."""
    known: dict[tuple[Any, ...], Any] = {}
    same: dict[str, str] = {}
    left = []
    for node in nodes:
        node.input[:] = [same.get(name, name) for name in node.input]
        held = constant(node.input[0]) if node.op_type == "Cast" else None
        if (
            held is not None
            and held.dtype == np.float32
            and node.attribute[0].i == _FLOAT
            and not {*node.output} & {*results}
        ):
            same[node.output[0]] = node.input[0]
            continue
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        first = known.setdefault((node.op_type, *node.input, *attributes), node)
        if first is node or any(name in results for name in node.output):
            left.append(node)
        else:
            same.update(zip(node.output, first.output, strict=True))
    return left


class _Graph:
    def __init__(
        self, nodes: Sequence[Any], constant: Callable[[str], np.ndarray | None], results: Sequence[str]
    ) -> None:
        self.makers: dict[str, Any] = {name: node for node in nodes for name in node.output}
        self.constant = constant
        self._uses = Counter(name for node in nodes for name in node.input)
        self._uses.update(results)

    def only(self, name: str, kind: str, uses: int = 1) -> Any:
        """Return the node with this kind behind a tensor read exactly so often; None for any other."""
        node = self.makers.get(name)
        return node if node is not None and node.op_type == kind and self._uses[name] == uses else None

    def scalar(self, name: str) -> float | None:
        """Return a one-element constant's value."""
        value = self.constant(name)
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])

    def bounds(self, clip: Any) -> list[float | None]:
        """Return a float32 Clip's bounds, the type for which ONNX Runtime has all these operators; none for other
        types.
        """
        held = [self.constant(name) for name in clip.input[1:]]
        return (
            [self.scalar(n) for n in clip.input[1:]]
            if all(v is not None and v.dtype == np.float32 for v in held)
            else []
        )

    def with_scalar(self, node: Any) -> tuple[str, float] | None:
        """Return the tensor and the number of a binary operator, in either order."""
        if len(node.input) != 2:
            return None
        for x, number in (tuple(node.input), tuple(reversed(node.input))):
            held = self.scalar(number)
            if held is not None and self.constant(x) is None:
                return x, held
        return None


def _conv_before_bias(node: Any, graph: _Graph) -> tuple[Any, np.ndarray] | None:
    """Return the bias-free convolution before an addition, and the per-channel constants added."""
    for x, other in (tuple(node.input), tuple(reversed(node.input))) if node.op_type == "Add" else ():
        conv, added = graph.only(x, "Conv") or graph.only(x, "ConvTranspose"), graph.constant(other)
        if conv is None or len(conv.input) != 2:
            continue
        weight = graph.constant(conv.input[1])
        if weight is None or added is None or added.ndim > weight.ndim or added.dtype != weight.dtype:
            continue
        shape = (1,) * (weight.ndim - added.ndim) + added.shape
        channels = weight.shape[0]
        if conv.op_type == "ConvTranspose":
            channels = weight.shape[1] * next((int(a.i) for a in conv.attribute if a.name == "group"), 1)
        if shape[1] in (1, channels) and added.size == shape[1]:
            return conv, np.ascontiguousarray(np.broadcast_to(added.reshape(-1), (channels,)))
    return None


_Found = tuple[str, str, Sequence[Any], Mapping[str, Any]]  # operator, its input, the nodes within, attributes


def _hard_swish(node: Any, graph: _Graph) -> _Found | None:
    """Match `x * clip(x + 3, 0, 6) / 6`, multiplied and divided in either order."""
    if node.op_type == "Mul" and graph.with_scalar(node) is None:  # x times a hard sigmoid
        for x, gate in (tuple(node.input), tuple(reversed(node.input))):
            last = graph.only(gate, "Div") or graph.only(gate, "Mul")
            found = None if last is None else _hard_sigmoid(last, graph)
            if found is not None and found[1] == x:
                return "HardSwish", x, [*found[2], last], {}
    sixth = _divided_by_six(node, graph)
    product = None if sixth is None else graph.only(sixth, "Mul")
    for x, gate in () if product is None else (tuple(product.input), tuple(reversed(product.input))):
        inner = list(_clip_of_three_more(gate, graph, x))
        if inner:
            return "HardSwish", x, [*inner, product], {}
    return None


def _hard_sigmoid(node: Any, graph: _Graph) -> _Found | None:
    """Match `clip(x + 3, 0, 6) / 6`, or `clip(alpha * x + beta, 0, 1)`."""
    if node.op_type == "Clip" and graph.bounds(node) == [0, 1]:
        more = graph.only(node.input[0], "Add")
        added = None if more is None else graph.with_scalar(more)
        times = None if added is None else graph.only(added[0], "Mul")
        factor = None if times is None else graph.with_scalar(times)
        if added is not None and factor is not None:
            return "HardSigmoid", factor[0], [times, more], {"alpha": factor[1], "beta": added[1]}
    clipped = _divided_by_six(node, graph)
    if clipped is None:
        return None
    inner = list(_clip_of_three_more(clipped, graph))
    if not inner:
        return None
    pair = graph.with_scalar(inner[0])
    assert pair is not None
    return "HardSigmoid", pair[0], inner, {"alpha": float(_SIXTH), "beta": 0.5}


def _length(node: Any, graph: _Graph) -> _Found | None:
    """Match `sqrt(sum(x * x))` along axes."""
    added = graph.only(node.input[0], "ReduceSum") if node.op_type == "Sqrt" else None
    if added is None or len(added.input) != 2:
        return None
    square, axes = graph.only(added.input[0], "Mul"), graph.constant(added.input[1])
    if square is None or axes is None or square.input[0] != square.input[1]:
        return None
    kept = next((int(a.i) for a in added.attribute if a.name == "keepdims"), 1)
    attrs = {"axes": [int(v) for v in axes.reshape(-1)], "keepdims": kept}
    return "ReduceL2", square.input[0], [added, square], attrs


def _divided_by_six(node: Any, graph: _Graph) -> str | None:
    pair = graph.with_scalar(node) if node.op_type in ("Div", "Mul") else None
    if pair is None or (node.op_type == "Div" and pair[0] != node.input[0]):
        return None
    divides = pair[1] == 6 if node.op_type == "Div" else np.float32(pair[1]) == _SIXTH
    return pair[0] if divides else None


def _clip_of_three_more(name: str, graph: _Graph, source: str | None = None) -> Iterator[Any]:
    """Yield the nodes of `clip(x + 3, 0, 6)` on the tensor `source`, or on any; nothing for another tensor."""
    clip = graph.only(name, "Clip")
    if clip is None or graph.bounds(clip) != [0, 6]:
        return
    more = graph.only(clip.input[0], "Add")
    pair = None if more is None else graph.with_scalar(more)
    if pair is not None and pair[1] == 3 and source in (None, pair[0]):
        yield more
        yield clip


@dataclass(frozen=True)
class _Norm:
    """A normalization per image and channel: minus its mean, divided by its standard deviation, scaled and shifted by
    channel.
    """

    source: str
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray
    inner: Sequence[Any]


def _normalized(node: Any, graph: _Graph, shape_of: Callable[[str], tuple[int, ...] | None]) -> _Norm | None:
    """Match `(x - mean) / sqrt(mean((x - mean) ** 2) + epsilon)`, with its factor and term if constant by channel."""
    bias, at, inner = None, node, []
    scale = None
    if at.op_type == "Add" and (found := _by_channel(at, graph)) is not None:
        bias, below = found[1], graph.only(found[0], "Mul") or graph.only(found[0], "Div")
        if below is None:
            return None
        inner, at = [below], below
    if at.op_type == "Mul" and (found := _by_channel(at, graph)) is not None:
        scale, below = found[1], graph.only(found[0], "Div")
        if below is None:
            return None
        inner, at = [*inner, below], below
    core = _without_mean(at, graph) if at.op_type == "Div" else None
    if core is None:
        return None
    source, epsilon, parts, rank = core
    shape = shape_of(source)
    if shape is None or len(shape) != rank:
        return None
    count = shape[1]
    if any(v is not None and not _fits(v, count, rank) for v in (scale, bias)):
        return None
    scale = np.ones(count, "float32") if scale is None else np.broadcast_to(scale.reshape(-1), (count,))
    bias = np.zeros(count, "float32") if bias is None else np.broadcast_to(bias.reshape(-1), (count,))
    return _Norm(source, epsilon, scale.copy(), bias.copy(), [*inner, *parts])


def _by_channel(node: Any, graph: _Graph) -> tuple[str, np.ndarray] | None:
    """Return a binary operator's tensor and constant, in either order."""
    for x, other in (tuple(node.input), tuple(reversed(node.input))):
        held = graph.constant(other)
        if held is not None and graph.constant(x) is None and held.dtype == np.float32:
            return x, held
    return None


def _fits(value: np.ndarray, count: int, rank: int) -> bool:
    """Return True if a constant has a single value per channel, on the second of `rank` axes, or one for all."""
    shape = (1,) * (rank - value.ndim) + value.shape
    return value.ndim <= rank and value.size == shape[1] and shape[1] in (1, count)


def _without_mean(div: Any, graph: _Graph) -> tuple[str, float, list[Any], int] | None:
    """Match `(x - mean) / sqrt(mean((x - mean) ** 2) + epsilon)`: return x, epsilon, the nodes except the division, and
    the rank of x if the mean covers an image's axes.
    """
    centred, deviation = div.input
    sub, root = graph.only(centred, "Sub", 3), graph.only(deviation, "Sqrt")
    mean = None if sub is None else graph.only(sub.input[1], "ReduceMean")
    add = None if root is None else graph.only(root.input[0], "Add")
    pair = None if add is None else graph.with_scalar(add)
    variance = None if pair is None else graph.only(pair[0], "ReduceMean")
    square = None if variance is None else graph.only(variance.input[0], "Mul")
    if (
        pair is None
        or add is None
        or sub is None
        or mean is None
        or square is None
        or list(square.input) != [centred, centred]
    ):
        return None
    axes = _axes(mean) or []
    small = [graph.constant(name) for name in add.input if name != pair[0]]
    if any(v is None or v.dtype != np.float32 for v in small):
        return None
    if mean.input[0] != sub.input[0] or axes != _axes(variance) or axes != list(range(2, len(axes) + 2)):
        return None
    return mean.input[0], pair[1], [sub, mean, root, add, variance, square], len(axes) + 2


def _axes(mean: Any) -> list[int] | None:
    """Return the axes that a mean keeps with extent one; None for a mean that removes them."""
    held = {a.name: a for a in mean.attribute}
    kept = held["keepdims"].i if "keepdims" in held else 1
    return sorted(int(v) for v in held["axes"].ints) if kept and "axes" in held else None


def _wrapped(node: Any, graph: _Graph) -> tuple[str, Sequence[Any]] | None:
    """Return the indices behind `where(i < 0, i + extent, i)` in a Gather from a constant, and the wrapping nodes."""
    table = graph.constant(node.input[0]) if node.op_type == "Gather" else None
    chosen = None if table is None else graph.only(node.input[1], "Where")
    if table is None or chosen is None:
        return None
    less, more = graph.only(chosen.input[0], "Less"), graph.only(chosen.input[1], "Add")
    indices = chosen.input[2]
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 0)
    if less is None or more is None or less.input[0] != indices or graph.scalar(less.input[1]) != 0:
        return None
    return (indices, [chosen, less, more]) if graph.with_scalar(more) == (indices, table.shape[axis]) else None
