"""Baseline schedules of IOS (section 6.1): sequential, and greedy (each stage runs all operators that are ready)."""

from __future__ import annotations

from tvm_cascade.parallel.problem import CONCURRENT, Block, Schedule, Stage, StageCost


def sequential(block: Block, cost: StageCost) -> Schedule:
    """Schedule a single stage per node, in topological order."""
    stages = tuple(Stage(CONCURRENT, ((v,),)) for v in range(block.size))
    return _priced(stages, cost)


def greedy(block: Block, cost: StageCost, limit: int | None = None) -> Schedule:
    """Schedule every ready node into the next stage, until all have run; a stage holds at most `limit` groups."""
    done, stages = 0, []
    while done != block.full:
        ready = [v for v in range(block.size) if not done >> v & 1 and block.preds[v] & ~done == 0][:limit]
        stages.append(Stage(CONCURRENT, tuple((v,) for v in ready)))
        done |= sum(1 << v for v in ready)
    return _priced(tuple(stages), cost)


def _priced(stages: tuple[Stage, ...], cost: StageCost) -> Schedule:
    return Schedule(stages, sum(cost.concurrent(s.groups) for s in stages), priced=len(stages))
