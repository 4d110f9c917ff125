"""Two networks at once on two threads, by each of the schedules that `stages A --beside B` prices: in turn in one process.

    TVM_NUM_THREADS=2 TVM_BIND_THREADS=0 python benchmarks/beside.py                # writes results/beside.json and .md
    ... python benchmarks/beside.py --pairs squeezenet_1_1+shufflenet_v2 --repeats 51
    ... python benchmarks/beside.py --device cpu2                                   # the built-in description of two threads
    ... python benchmarks/beside.py --prices                                        # prices alone, nothing is run

`joint`: stages that may hold operators of both networks. `apart`: both networks as the groups of a single stage, each on one
thread. `after`: the networks in turn, each by its own best schedule, large kernels on both threads. One of the three is what
`stages` chooses. Ratios are of pairs of runs that follow each other, so that what else runs on the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_FORMS = ("after", "joint", "apart")
_PAIRS = ("squeezenet_1_1+squeezenet_1_1", "squeezenet_1_1+shufflenet_v2", "googlenet+shufflenet_v2")


def main() -> None:
    """Measure what the command line asks for and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=_PAIRS, help="of networks of cpu_networks.py: A+B")
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--device", help="that prices; without it what `doctor --measure` keeps, else the built-in one")
    parser.add_argument("--prices", action="store_true", help="print prices and the choice, and run nothing")
    args = parser.parse_args()
    if not args.prices and os.environ.get("TVM_NUM_THREADS") != "2":
        raise SystemExit("set TVM_NUM_THREADS=2 and TVM_BIND_THREADS=0: TVM reads them as it starts")
    rows = []
    for pair in args.pairs:
        rows.append(measure(pair, args.repeats, args.device, args.prices))
        print(rows[-1], flush=True)
    if not args.prices:
        (RESULTS / "beside.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        (RESULTS / "beside.md").write_text(page(rows, args.repeats))


def measure(pair: str, repeats: int, device: str | None, prices: bool) -> dict[str, Any]:
    """Price a pair of networks and, unless `prices` alone are asked for, time it: milliseconds and ratios, as quartiles."""
    import numpy as np
    import onnx
    from cpu_networks import NETWORKS, inputs_of

    from tvm_cascade import frontend
    from tvm_cascade.cost import AnalyticCost, device_for
    from tvm_cascade.parallel import Options, schedule
    from tvm_cascade.parallel.units import unit_graph
    from tvm_cascade.passes.join_networks import join_networks
    from tvm_cascade.runtime import Session, compile_stages
    from tvm_cascade.staging.program.network import stage_network
    from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

    models = {key: NETWORKS[name]() for key, name in zip("ab", pair.split("+"), strict=True)}
    mods = {}
    for key, model in models.items():
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(model, Path(folder) / "network.onnx")
            mods[key] = frontend.load(Path(folder) / "network.onnx")
    cost = AnalyticCost(device_for(device, "llvm", 2))
    both = stage_network(join_networks(mods), "llvm")
    found = schedule(both.graph, cost, Options())
    assert found.beside is not None
    row: dict[str, Any] = {"pair": pair, "priced": cost.described, "chosen": found.beside.chosen}
    row["price_ms"] = {name: round(one.cost_ms, 3) for name, one in found.candidates.items()}
    if prices:
        return row
    units, data = unit_graph(both.graph, "fused"), [x for m in models.values() for x in inputs_of(m).values()]
    sessions = {
        name: Session(compile_stages(lower_stages(both, units, one, LowerOptions(workers=2))))
        for name, one in found.candidates.items()
    }
    expected = sessions["after"].run(*data)
    for session in sessions.values():
        for a, b in zip(session.run(*data), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.abs(b).max())
    times: dict[str, list[float]] = {name: [] for name in _FORMS}
    for turn in range(repeats + 2):
        for name in list(_FORMS) if turn % 2 else list(_FORMS)[::-1]:
            start = time.perf_counter()
            sessions[name].run(*data)
            if turn >= 2:
                times[name].append((time.perf_counter() - start) * 1e3)
    row["repeats"] = repeats
    for name, held in times.items():
        row[name] = [round(float(x), 2) for x in np.percentile(held, (50, 25, 75))]
    for name in ("joint", "apart"):
        ratios = np.divide(times[name], times["after"])
        row[f"{name}_ratio"] = [round(float(x), 3) for x in np.percentile(ratios, (50, 25, 75))]
    return row


def page(rows: list[dict[str, Any]], repeats: int) -> str:
    """The table, as Markdown."""
    lines = [
        "# Two networks at once",
        "",
        "Written by `python benchmarks/beside.py`: float32, batch 1, two threads; milliseconds of the wall for both networks,",
        f"medians of {repeats} runs in turn with their quartiles. `after`: one network after the other, each by its own best",
        "schedule; `joint`: the schedule found for both together; `apart`: each network on a thread of its own. Ratios to",
        "`after` are of pairs of runs that follow each other. Chosen: what `stages --beside` takes, by the prices of",
        f"{rows[0]['priced']}.",
        "",
        "| networks | after | joint | apart | joint / after | apart / after | chosen | prices: after, joint, apart |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for r in rows:
        cells = [
            f"{r[k][0]:g} [{r[k][1]:g}, {r[k][2]:g}]" for k in ("after", "joint", "apart", "joint_ratio", "apart_ratio")
        ]
        priced = ", ".join(f"{r['price_ms'][name]:g}" for name in _FORMS)
        lines.append(f"| {r['pair'].replace('+', ' + ')} | {' | '.join(cells)} | {r['chosen']} | {priced} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
