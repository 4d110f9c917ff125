"""RandWire from the edge lists of its authors: three blocks of relu -> separable 3x3 nodes and a sink that sums."""

from __future__ import annotations

from pathlib import Path

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value


def read_edges(path: Path) -> tuple[int, list[tuple[int, int]]]:
    """Nodes and edges, renumbered so that edges point upwards, in a topological order with ties by number."""
    numbers = [int(w) for w in path.read_text().split()]
    nodes, edges = numbers[0], list(zip(numbers[2::2], numbers[3::2], strict=True))
    order: list[int] = []
    while len(order) < nodes:
        order.append(next(v for v in range(nodes) if v not in order and all(u in order for u, w in edges if w == v)))
    place = {v: k for k, v in enumerate(order)}
    return nodes, sorted((place[u], place[v]) for u, v in edges)


def randwire(paths: list[Path], size: int = 56, channels: int = 78, batch: int = 1) -> IRModule:
    """Float32, NCHW; every block halves the map, the channels double from block to block."""
    net = Net("float32", "NCHW")
    x = net.input((batch, channels // 2, size, size), "input")
    for k, path in enumerate(paths):
        x = block(net, x, *read_edges(path), channels << k)
    return net.finish(x)


def block(net: Net, x: Value, nodes: int, edges: list[tuple[int, int]], channels: int) -> Value:
    """One block; sources halve the map, the sink sums what nothing else reads."""
    made: list[Value] = []
    for v in range(nodes):
        inputs = [made[u] for u, w in edges if w == v]
        total = inputs[0] if inputs else x
        for other in inputs[1:]:
            total = net.add(total, other)
        made.append(net.separable(net.relu(total), channels, 3, 1 if inputs else 2))
    ends = [made[v] for v in range(nodes) if all(u != v for u, _ in edges)]
    total = ends[0]
    for other in ends[1:]:
        total = net.add(total, other)
    return total
