"""RandWire from the edge lists of IOS's authors: stages of relu -> separable 3x3 nodes, each with a sink that sums.

A file holds the numbers of nodes and of edges, then the edges; those of whole blocks (`drop_sink`) hold the sink too. The
authors' network has a convolution in front, a stage of 16 nodes, three of 32, a relu, a 1x1 convolution and a pool: the 120
operators of IOS's Table 2, one of which is the "sum" of the small stage's only sink: a copy, left out here. Its three blocks are
the stages of 32 nodes.
"""

from __future__ import annotations

from pathlib import Path

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

OPERATORS = 120


def read_edges(path: Path) -> tuple[int, list[tuple[int, int]]]:
    """Nodes and edges, renumbered so that edges point upwards, in a topological order with ties by number."""
    numbers = [int(w) for w in path.read_text().split()]
    nodes, edges = numbers[0], list(zip(numbers[2::2], numbers[3::2], strict=True))
    order: list[int] = []
    while len(order) < nodes:
        order.append(next(v for v in range(nodes) if v not in order and all(u in order for u, w in edges if w == v)))
    position = {v: k for k, v in enumerate(order)}
    return nodes, sorted((position[u], position[v]) for u, v in edges)


def drop_sink(nodes: int, edges: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """The stage of a file that has the sink, its last node, as a node of its own."""
    return nodes - 1, [(u, v) for u, v in edges if v != nodes - 1]


def stages(paths: list[Path], size: int = 56, channels: int = 78, batch: int = 1) -> IRModule:
    """The stages alone. Float32, NCHW; every one halves the map, the channels double from one to the next."""
    net = Net("float32", "NCHW")
    x = net.input((batch, channels // 2, size, size), "input")
    for k, path in enumerate(paths):
        x = block(net, x, *read_edges(path), channels << k)
    return net.finish(x)


def network(
    wirings: list[tuple[int, list[tuple[int, int]]]], size: int = 224, channels: int = 154, head: int = 1280
) -> IRModule:
    """The whole network, nodes and edges of every stage given (the authors': 224, 154, 1280). Float32, NCHW."""
    net = Net("float32", "NCHW")
    x = net.conv(net.input((1, 3, size, size), "image"), channels // 2, 3, 2)
    for k, (nodes, edges) in enumerate(wirings):
        x = block(net, x, nodes, edges, channels << k)
    return net.finish(net.global_pool(net.conv(net.relu(x), head, 1)))


def block(net: Net, x: Value, nodes: int, edges: list[tuple[int, int]], channels: int) -> Value:
    """One block; sources halve the map, the sink sums what nothing else reads."""
    values: list[Value] = []
    for v in range(nodes):
        inputs = [values[u] for u, w in edges if w == v]
        total = inputs[0] if inputs else x
        for other in inputs[1:]:
            total = net.add(total, other)
        values.append(net.separable(net.relu(total), channels, 3, 1 if inputs else 2))
    ends = [values[v] for v in range(nodes) if all(u != v for u, _ in edges)]
    total = ends[0]
    for other in ends[1:]:
        total = net.add(total, other)
    return total
