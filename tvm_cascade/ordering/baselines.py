"""Topological orders that compilers commonly use, for comparison and as first upper bounds of the peak."""

from __future__ import annotations

from collections.abc import Callable

from tvm_cascade.graph import Graph
from tvm_cascade.ordering.model import Model, model

Take = Callable[[list[int], int], int]  # (ready operators, mask of those done) -> the operator that runs next


def file_order(graph: Graph) -> tuple[int, ...]:
    """Return the order in which the model file lists operators."""
    return tuple(range(len(graph.ops)))


def kahn_fifo(graph: Graph) -> tuple[int, ...]:
    """Order by Kahn's algorithm with a first-in first-out queue; operators become ready in index order."""
    return _kahn(graph, lambda ready, _: ready[0])


def greedy(graph: Graph, m: Model | None = None) -> tuple[int, ...]:
    """Order greedily: next runs the ready operator that leaves the fewest live bytes; ties by demand, then by index."""
    costs = m or model(graph)
    return _kahn(graph, lambda ready, done: min(ready, key=lambda op: (*reversed(costs.step(done, op)), op)))


def list_scheduler(graph: Graph) -> tuple[int, ...]:
    """Order by XLA's list scheduler, with the priority rule alone.

    Next runs the ready operator with the largest gain (freed bytes less new bytes); ties by the number of successors,
    then by index.
    """
    costs = model(graph, in_place=False)
    return _kahn(
        graph, lambda ready, done: min(ready, key=lambda op: (costs.step(done, op)[1], -len(graph.successors[op]), op))
    )


def _kahn(graph: Graph, take: Take) -> tuple[int, ...]:
    """Order by Kahn's algorithm: `take` chooses among the ready operators, listed in the order they became ready."""
    missing = [len(p) for p in graph.predecessors]
    ready = [i for i, m in enumerate(missing) if not m]
    order, done = [], 0
    while ready:
        i = take(ready, done)
        ready.remove(i)
        order.append(i)
        done |= 1 << i
        for s in graph.successors[i]:
            missing[s] -= 1
            if not missing[s]:
                ready.append(s)
    return tuple(order)


def reverse_post_order(graph: Graph) -> tuple[int, ...]:
    """Order by the reversed depth-first post-order from the inputs, lower indices visited first."""
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


BASELINES = (file_order, kahn_fifo, reverse_post_order, greedy)
