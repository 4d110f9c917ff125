"""Orders that compilers use today, for comparison and as first upper bounds."""

from __future__ import annotations

from collections import deque

from tvm_cascade.graph import Graph
from tvm_cascade.ordering.model import Model, model


def file_order(graph: Graph) -> tuple[int, ...]:
    """The order in which the model file lists its operators."""
    return tuple(range(len(graph.ops)))


def kahn_fifo(graph: Graph) -> tuple[int, ...]:
    """Kahn's algorithm with a first-in first-out queue, operators becoming ready in order of index."""
    missing = [len(p) for p in graph.predecessors]
    queue = deque(i for i, m in enumerate(missing) if not m)
    order = []
    while queue:
        i = queue.popleft()
        order.append(i)
        for s in graph.successors[i]:
            missing[s] -= 1
            if not missing[s]:
                queue.append(s)
    return tuple(order)


def reverse_post_order(graph: Graph) -> tuple[int, ...]:
    """Reverse of the depth-first post-order from the inputs, lower indices visited first."""
    seen = [False] * len(graph.ops)
    post: list[int] = []
    for root in range(len(graph.ops)):
        if seen[root] or graph.predecessors[root]:
            continue
        seen[root] = True
        stack = [(root, iter(graph.successors[root]))]
        while stack:
            i, rest = stack[-1]
            follower = next((s for s in rest if not seen[s]), None)
            if follower is None:
                post.append(i)
                stack.pop()
            else:
                seen[follower] = True
                stack.append((follower, iter(graph.successors[follower])))
    return tuple(reversed(post))


def greedy(graph: Graph, m: Model | None = None) -> tuple[int, ...]:
    """The order that always takes the ready operator that leaves the least memory behind; ties by demand, then by index."""
    m = m or model(graph)
    missing = [len(p) for p in graph.predecessors]
    ready = {i for i, k in enumerate(missing) if not k}
    order, done = [], 0
    while ready:
        i = min(ready, key=lambda op: (*reversed(m.step(done, op)), op))
        ready.remove(i)
        order.append(i)
        done |= 1 << i
        for s in graph.successors[i]:
            missing[s] -= 1
            if not missing[s]:
                ready.add(s)
    return tuple(order)
