"""IOS's evaluation (MLSys 2021, sections 6 and 7) on this project's search: `python benchmarks/ios.py --figure N`.

    table1   states, pairs and schedules of the largest blocks (needs --edges FOLDER with edge lists)
    6        schedules: sequential, greedy, IOS-Merge, IOS-Parallel, IOS-Both
    8        utilisation: part of the device's arithmetic that is busy, sequential against IOS
    9        pruning: r in {1, 2, 3} x s in {3, 8}, latency against search cost
    10       the last Inception block at batch 1 and 32
    11       batch sizes 1 to 128
    16       gain of each block of Inception V3
    table3   schedules made for one batch size or device, run on another
    cpu      (figures 6, 7) measured here: our schedules and TVM's default build, same weights, outputs compared
             (RandWire too with --edges FOLDER)
    12       measured here: default kernels against those that MetaSchedule tuned (--metaschedule, --trials)
    learned  measured against learned search on this machine: measurements and latency
    runs     --repeats runs of every network under concurrency, which must all give the same bits

All but `12`, `cpu`, `learned` and `runs` are costs of the analytic model of `--device`, not measurements: no GPU is used.
`ios_cuda.py` measures on one, with CUDA graphs, beside PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TVM_NUM_THREADS", str(os.cpu_count() or 1))

from ios_cpu import figure_12, figure_cpu, figure_learned, figure_runs
from ios_networks import NETWORKS, Row, randwire, read

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.graph import Graph
from tvm_cascade.parallel import VARIANTS, Options, Schedule, schedule, with_batch
from tvm_cascade.parallel.scheduler import NetworkSchedule, features_of
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.stage_blocks import block_from_edges, count
from tvm_cascade.testing.zoo.inception import inception_e

# The authors' latencies on a V100, ms: sequential, greedy, merge, parallel, both.
PUBLISHED = {
    "inception_v3": (6.51, 4.62, 5.39, 4.11, 4.03),
    "nasnet": (22.95, 16.78, 22.94, 16.04, 16.04),
    "squeezenet": (0.86, 0.98, 0.74, 0.82, 0.73),
    "randwire": (8.49, 6.27, 8.54, 6.02, 6.02),
}


def figure_6(args: argparse.Namespace) -> list[Row]:
    """Costs of the five schedules and their ratio to the sequential one, beside the authors'."""
    rows: list[Row] = []
    for name in args.networks:
        net, unit = read(name)
        schedules = {v: find(net.graph, args.device, Options(variant=v, unit=unit)) for v in VARIANTS}
        base = schedules["sequential"].schedule.cost_ms
        for k, variant in enumerate(VARIANTS):
            ours, theirs = schedules[variant].schedule, PUBLISHED[name]
            rows.append(
                {
                    "network": name,
                    "schedule": variant,
                    "ms": round(ours.cost_ms, 4),
                    "gain": round(base / ours.cost_ms, 3),
                    "published_gain": round(theirs[0] / theirs[k], 3),
                    "stages": len(ours.stages),
                    "optimal": ours.optimal,
                    "search_s": round(ours.seconds, 2),
                }
            )
    return rows


def figure_8(args: argparse.Namespace) -> list[Row]:
    """Arithmetic that the whole device could have done in the time, against what was asked of it."""
    rows: list[Row] = []
    device = find_device(args.device)
    for name in args.networks:
        net, unit = read(name)
        for variant in ("sequential", "both"):
            schedule = find(net.graph, args.device, Options(variant=variant, unit=unit))
            busy = sum(AnalyticCost(device).bound(k, False).works[0] for u in schedule.units.features for k in u)
            share = busy / schedule.schedule.cost_ms
            rows.append({"network": name, "schedule": variant, "busy_share": round(share, 3)})
    return rows


def figure_9(args: argparse.Namespace) -> list[Row]:
    """Latency against search cost under pruning."""
    rows: list[Row] = []
    for name in args.networks:
        net, unit = read(name)
        for r in (1, 2, 3):
            for s in (3, 8):
                ours = find(net.graph, args.device, Options(unit=unit, r=r, s=s)).schedule
                rows.append(
                    {
                        "network": name,
                        "r": r,
                        "s": s,
                        "ms": round(ours.cost_ms, 4),
                        "transitions": ours.transitions,
                        "priced": ours.priced,
                        "search_s": round(ours.seconds, 3),
                    }
                )
    return rows


def figure_10(args: argparse.Namespace) -> list[Row]:
    """Stages of the last block by batch size."""
    graph = stage_graph(inception_e()).graph
    return [
        {"batch": batch, "stages": describe(find(with_batch(graph, batch), args.device, Options()))}
        for batch in (1, 32)
    ]


def figure_11(args: argparse.Namespace) -> list[Row]:
    """Images per second by batch size."""
    net, unit = read("inception_v3")
    rows: list[Row] = []
    for batch in (1, 16, 32, 64, 128):
        graph = with_batch(net.graph, batch)
        row: Row = {"batch": batch}
        for variant in ("sequential", "greedy", "both"):
            cost = find(graph, args.device, Options(variant=variant, unit=unit)).schedule.cost_ms
            row[f"{variant}_images_per_s"] = round(1e3 * batch / cost)
        rows.append(row)
    return rows


def figure_16(args: argparse.Namespace) -> list[Row]:
    """Gain of every block with branches of Inception V3."""
    net, unit = read("inception_v3")
    model = AnalyticCost(find_device(args.device))
    schedule = find(net.graph, args.device, Options(unit=unit))
    rows, first = [], 0
    for size in schedule.sizes:
        ops = {i for u in schedule.units.units[first : first + size] for i in u.ops}
        alone = sum(model.op_ms(k) for f in schedule.units.features[first : first + size] for k in f)
        mine = [s for s in schedule.schedule.stages if set(s.members) <= ops]
        cost = sum(model.stage_ms(features_of(schedule.units, s)) for s in mine)
        if size > 1:
            rows.append({"block": len(rows) + 1, "operators": size, "gain": round(alone / cost, 2)})
        first += size
    return rows


def table_1(args: argparse.Namespace) -> list[Row]:
    """Exact sizes of the search spaces."""
    rows: list[Row] = []
    for path in sorted(args.edges.glob("*.txt")):
        numbers = [int(w) for w in path.read_text().split()]
        start = time.perf_counter()
        block = block_from_edges(numbers[0], zip(numbers[2::2], numbers[3::2], strict=True))
        counted = count(block)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "block": path.stem,
                "nodes": block.size,
                "states": counted.states,
                "pairs": counted.pairs,
                "schedules": str(counted.schedules),
                "seconds": round(seconds, 2),
            }
        )
    return rows


def table_3(args: argparse.Namespace) -> list[Row]:
    """Rows: where a schedule runs. Columns: what it was made for."""
    net, unit = read("inception_v3")
    options = Options(unit=unit)
    rows: list[Row] = []
    for kind, settings in (
        ("batch", [(args.device, b) for b in (1, 32, 128)]),
        ("device", [(d, 1) for d in ("k80", "v100", "h200")]),
    ):
        schedules = {p: find(with_batch(net.graph, p[1]), p[0], options).schedule for p in settings}
        for device, batch in settings:
            row: Row = {"by": kind, "runs_on": f"{device} batch {batch}"}
            for origin, best in schedules.items():
                row[f"made_for {origin[0]} batch {origin[1]}"] = round(
                    cost_of(with_batch(net.graph, batch), best, device, unit), 4
                )
            rows.append(row)
    return rows


def find(graph: Graph, device: str, options: Options) -> NetworkSchedule:
    return schedule(graph, AnalyticCost(find_device(device)), options)


def cost_of(graph: Graph, schedule: Schedule, device: str, unit: str) -> float:
    """A schedule's cost on another device or at another batch size."""
    units, model = unit_graph(graph, unit), AnalyticCost(find_device(device))
    return sum(model.stage_ms(features_of(units, stage)) for stage in schedule.stages)


def describe(network_schedule: NetworkSchedule) -> list[str]:
    """Stages in a line each."""
    ops = network_schedule.units.graph.ops
    return [
        f"{s.strategy}: " + " | ".join(" -> ".join(ops[i].name for i in g if ops[i].macs or "pool" in ops[i].kind) or
                                       ops[g[0]].name for g in s.groups)
        for s in network_schedule.schedule.stages
    ]  # fmt: skip


FIGURES: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "table1": table_1,
    "6": figure_6,
    "8": figure_8,
    "9": figure_9,
    "10": figure_10,
    "11": figure_11,
    "16": figure_16,
    "table3": table_3,
    "12": figure_12,
    "cpu": figure_cpu,
    "learned": figure_learned,
    "runs": figure_runs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", choices=FIGURES, default="6")
    parser.add_argument("--device", default="v100")
    parser.add_argument("--networks", type=lambda s: s.split(","), help="[default: all, randwire with --edges]")
    parser.add_argument(
        "--edges", type=Path, help="folder of edge lists: of blocks for table1, of RandWire for randwire"
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--default", action="store_true", help="also time TVM's default build (cpu; slow)")
    parser.add_argument("--database", help="keep the measurements of the full search here (learned)")
    parser.add_argument(
        "--metaschedule",
        type=Path,
        default=Path("tuned_kernels"),
        help="folder of records of tuned kernels, made where it is missing (12)",
    )
    parser.add_argument("--trials", type=int, default=0, help="candidates to measure for kernels without a record (12)")
    parser.add_argument("--onnxruntime", help="interpreter that has onnxruntime, to compare with it (cpu)")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    if args.figure == "table1" and not args.edges:
        parser.error("table1 needs --edges FOLDER")
    if args.edges and args.figure != "table1":
        NETWORKS["randwire"] = randwire(args.edges)
    args.networks = args.networks or list(NETWORKS)
    if unknown := [name for name in args.networks if name not in NETWORKS]:
        parser.error(
            f"unknown networks {', '.join(unknown)}: choose from {', '.join(NETWORKS)}; randwire needs --edges FOLDER"
        )
    start = time.perf_counter()
    rows = FIGURES[args.figure](args)
    record = {
        "command": "python benchmarks/ios.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load_average": [round(x, 1) for x in os.getloadavg()],
        "measured": args.figure in ("12", "cpu", "learned", "runs"),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": rows,
    }
    args.results.mkdir(exist_ok=True)
    (args.results / f"ios_{args.figure}.json").write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        print("  ".join(f"{k}={v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
