"""Two networks at once on two threads, by one schedule, beside one after the other: runs in turn in one process.

    TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python benchmarks/beside.py                # writes results/beside.json and .md
    ... python benchmarks/beside.py --pairs squeezenet_1_1+shufflenet_v2 --repeats 51

`after`: the staged programs of both, one kernel after the other, each kernel on both threads. `joint`: the schedule that the
analytic cost finds for their joint graph (`stages A --beside B`). `apart`: both networks as the two groups of a single stage,
each on one thread. Ratios are of pairs of runs that follow each other, so that what else runs on the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PAIRS = ("squeezenet_1_1+squeezenet_1_1", "squeezenet_1_1+shufflenet_v2", "googlenet+shufflenet_v2")


def main() -> None:
    """Measure what the command line asks for and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=_PAIRS, help="of networks of cpu_networks.py: A+B")
    parser.add_argument("--repeats", type=int, default=41)
    args = parser.parse_args()
    if os.environ.get("TVM_NUM_THREADS") != "2":
        raise SystemExit("set TVM_NUM_THREADS=2 and TVM_BIND_THREADS=0: TVM reads them as it starts")
    rows = []
    for pair in args.pairs:
        rows.append(measure(pair, args.repeats))
        print(rows[-1], flush=True)
    (RESULTS / "beside.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    (RESULTS / "beside.md").write_text(page(rows, args.repeats))


def measure(pair: str, repeats: int) -> dict[str, Any]:
    """One pair of networks: milliseconds and ratios, as quartiles."""
    import numpy as np
    import onnx
    from cpu_networks import NETWORKS

    from tvm_cascade import frontend
    from tvm_cascade.cost import AnalyticCost, find_device
    from tvm_cascade.parallel import Options, Schedule, Stage, schedule
    from tvm_cascade.parallel.problem import CONCURRENT
    from tvm_cascade.parallel.units import unit_graph
    from tvm_cascade.passes.join_networks import join_networks
    from tvm_cascade.runtime import Session, compile_stages
    from tvm_cascade.staging.program.graph import stage_graph
    from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

    mods = {}
    for key, name in zip("ab", pair.split("+"), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(NETWORKS[name](), Path(folder) / "network.onnx")
            mods[key] = frontend.load(Path(folder) / "network.onnx")
    cost = AnalyticCost(find_device("cpu", "llvm", 2))

    def session(net: Any, found: Any) -> Any:
        return Session(
            compile_stages(lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions(workers=2)))
        )

    nets = {k: stage_graph(m) for k, m in mods.items()}
    alone = [session(n, schedule(n.graph, cost, Options(variant="sequential")).schedule) for n in nets.values()]
    both = stage_graph(join_networks(mods))
    sides = both.graph.inputs, both.graph
    joint = session(both, schedule(both.graph, cost, Options()).schedule)
    apart = session(both, Schedule((Stage(CONCURRENT, _sides(*sides)),), 0.0))
    data = [
        np.random.default_rng(k)
        .standard_normal([int(d) for d in m["main"].params[0].ty.shape.values])
        .astype("float32")
        for k, m in enumerate(mods.values())
    ]
    runs: dict[str, Callable[[], list[Any]]] = {
        "after": lambda: [y for s, x in zip(alone, data, strict=True) for y in s.run(x)],
        "joint": lambda: joint.run(*data),
        "apart": lambda: apart.run(*data),
    }
    expected = runs["after"]()
    for run in runs.values():
        for a, b in zip(run(), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())
    times: dict[str, list[float]] = {k: [] for k in runs}
    for turn in range(repeats + 2):
        for key in list(runs) if turn % 2 else list(runs)[::-1]:
            start = time.perf_counter()
            runs[key]()
            if turn >= 2:
                times[key].append((time.perf_counter() - start) * 1e3)
    row: dict[str, Any] = {"pair": pair, "repeats": repeats}
    for key, held in times.items():
        row[key] = [round(float(x), 2) for x in np.percentile(held, (50, 25, 75))]
    for key in ("joint", "apart"):
        row[f"{key}_ratio"] = [
            round(float(x), 3) for x in np.percentile(np.divide(times[key], times["after"]), (50, 25, 75))
        ]
    return row


def _sides(inputs: tuple[int, ...], graph: Any) -> tuple[tuple[int, ...], ...]:
    """The operators that depend on each of two inputs."""
    side = {t: k for k, t in enumerate(inputs)}
    groups: tuple[list[int], ...] = ([], [])
    for op in graph.ops:
        k = next(side[t] for t in op.inputs if t in side)
        side.update(dict.fromkeys(op.outputs, k))
        groups[k].append(op.index)
    return tuple(map(tuple, groups))


def page(rows: list[dict[str, Any]], repeats: int) -> str:
    """The table, as Markdown."""
    lines = [
        "# Two networks at once",
        "",
        "Written by `python benchmarks/beside.py`: float32, batch 1, two threads, milliseconds of the wall for both",
        f"networks, medians of {repeats} runs in turn with their quartiles. `after`: one network after the other, every",
        "kernel on both threads; `joint`: the schedule found for both together; `apart`: each network on a thread of its",
        "own. Ratios to `after` are of pairs of runs that follow each other.",
        "",
        "| networks | after | joint | apart | joint / after | apart / after |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in rows:
        cells = [
            f"{r[k][0]:g} [{r[k][1]:g}, {r[k][2]:g}]" for k in ("after", "joint", "apart", "joint_ratio", "apart_ratio")
        ]
        lines.append(f"| {r['pair'].replace('+', ' + ')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
