"""What `ios.py` measures on this machine's CPU: figures `cpu`, `12`, `learned` and `runs`."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tvm
from ios_networks import NETWORKS, Row, read

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.measured import MeasuredCost, MeasureOptions
from tvm_cascade.cost.records import RecordStore, median_interval
from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.measured.finalists import judge, program_of
from tvm_cascade.measured.measure import CpuRunner
from tvm_cascade.measured.runners import analytic_of
from tvm_cascade.measured.search import search_learned
from tvm_cascade.measured.tune_stages import tune_stages
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.passes.substitution_write import fold
from tvm_cascade.runtime import Session, compile_stages, host_target
from tvm_cascade.runtime.bench import LocalBench
from tvm_cascade.schedules.tuning.metaschedule import Search
from tvm_cascade.staging.program.graph import StageGraph, stage_graph
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.substitution.export_onnx import export_onnx
from tvm_cascade.testing.zoo.inception import inception_e

_BASELINES = ("sequential", "greedy")
LEARNED_SHARE = 0.3  # of the measurements of a full search that the learned one may make


def figure_cpu(args: argparse.Namespace) -> list[Row]:
    """The same network and weights under every schedule, in turn, and in TVM's default build.

    `searched` is the analytic model's schedule; `ios` is the one of the three that `stages` would keep after whole runs
    (`measured.finalists`), timed in other runs than those that chose it.
    """
    rows: list[Row] = []
    for name in args.networks:
        make, unit = NETWORKS[name]
        mod = make()
        net = stage_graph(mod)
        units = unit_graph(net.graph, unit)
        data = _input(net)
        cost = AnalyticCost(find_device("cpu2"))
        options = {v: Options(variant=v, unit=unit) for v in (*_BASELINES, "both")}
        schedules = {v: schedule(net.graph, cost, o) for v, o in options.items()}
        built = {
            name: compile_stages(lower_stages(net, units, s.schedule, LowerOptions()))
            for name, s in zip(("sequential", "greedy", "searched"), schedules.values(), strict=True)
        }
        sessions = {name: Session(b) for name, b in built.items()}
        expected = sessions["sequential"].run(data)[0]
        finalists = ("searched", "sequential", "greedy")
        bench, programs = LocalBench(), {name: program_of(net, b) for name, b in built.items()}
        fastest = finalists[judge(bench, [programs[f] for f in finalists]).best]
        columns = dict(zip(built, map(np.array, bench.in_turn(list(programs.values()), args.repeats)), strict=True))
        sessions["ios"], columns["ios"] = sessions[fastest], columns[fastest]
        if args.default:
            sessions["tvm_default"] = Session(tvm.compile(mod, host_target()))
            columns["tvm_default"] = np.array(sessions["tvm_default"].times_ms([data], 3, 1))
        for variant, mine in columns.items():
            error = float(np.abs(sessions[variant].run(data)[0] - expected).max() / np.abs(expected).max())
            ratios = columns["sequential"][: len(mine)] / mine
            rows.append(
                {
                    "network": name,
                    "schedule": variant,
                    "median_ms": round(float(np.median(mine)), 3),
                    "times_sequential": round(float(np.median(ratios)), 3),
                    "interval": [round(float(x), 3) for x in median_interval(list(ratios))],
                    "least_ms": round(float(mine.min()), 3),
                    "relative_error": error,
                    **({"kept": fastest} if variant == "ios" else {}),
                }
            )
        if args.onnxruntime:
            rows.append({"network": name, "schedule": "onnxruntime", **onnxruntime_ms(args, mod, data)})
    return rows


def _input(net: StageGraph) -> np.ndarray:
    shape = net.graph.tensors[net.graph.inputs[0]].shape
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def figure_12(args: argparse.Namespace) -> list[Row]:
    """Default kernels against tuned ones, in sequence and in stages; medians of runs in turn."""
    rows: list[Row] = []
    lowers = {"default": LowerOptions(), "tuned": LowerOptions(metaschedule=args.metaschedule)}
    for name in args.networks:
        net, unit = read(name)
        units = unit_graph(net.graph, unit)
        search = Search(trials=args.trials)
        reports = [tune_stages(net, units, args.metaschedule, search=search, progress=print)]
        built = {}
        for variant in ("sequential", "greedy", "both"):
            best = schedule(net.graph, AnalyticCost(find_device("cpu2")), Options(variant=variant, unit=unit)).schedule
            reports.append(tune_stages(net, units, args.metaschedule, "llvm", best, search, print))
            for kernels, lower in lowers.items():
                built[kernels, variant] = compile_stages(lower_stages(net, units, best, lower))
        data, sessions = [_input(net)], {key: Session(b) for key, b in built.items()}
        expected = sessions["default", "sequential"].run(data[0])[0]
        programs = [program_of(net, b) for b in built.values()]
        times = np.array(LocalBench().in_turn(programs, args.repeats)).T
        base = times[:, 0]
        for k, ((kernels, variant), session) in enumerate(sessions.items()):
            error = float(np.abs(session.run(data[0])[0] - expected).max() / np.abs(expected).max())
            rows.append(
                {
                    "network": name,
                    "kernels": kernels,
                    "schedule": variant,
                    "median_ms": round(float(np.median(times[:, k])), 3),
                    "times_default_sequential": round(float(np.median(base / times[:, k])), 3),
                    "least_ms": round(float(times[:, k].min()), 3),
                    "relative_error": error,
                    **({"tuned": reports[0].tuned, "tunable": reports[0].kernels} if kernels == "tuned" else {}),
                    **({"measured_now": sum(r.measured for r in reports)} if kernels == "tuned" else {}),
                }
            )
    return rows


_ORT = """
import sys, time, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
session = ort.InferenceSession(sys.argv[1] + "/model.onnx", options)
feed = {session.get_inputs()[0].name: np.load(sys.argv[1] + "/input.npy")}
times = []
for _ in range(int(sys.argv[2]) + 3):
    start = time.perf_counter()
    result = session.run(None, feed)[0]
    times.append((time.perf_counter() - start) * 1e3)
np.save(sys.argv[1] + "/output.npy", result)
print(np.median(times[3:]), min(times[3:]))
"""


def onnxruntime_ms(args: argparse.Namespace, mod: tvm.IRModule, data: np.ndarray) -> Row:
    """The same network and weights in onnxruntime, by the interpreter `--onnxruntime`: another environment has it."""
    read_graph = read_function(mod["main"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            export_onnx(read_graph.dag, fold(read_graph.dag, read_graph.constants), Path(folder) / "model.onnx")
        except UnsupportedOperatorError as error:
            return {"error": f"cannot be exported: {', '.join(error.operators)}"}
        np.save(Path(folder) / "input.npy", data)
        command = [args.onnxruntime, "-c", _ORT, folder, str(args.repeats), os.environ["TVM_NUM_THREADS"]]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        median_ms, least = (float(word) for word in done.stdout.split())
        session = Session(tvm.compile(mod, host_target()))
        expected, ours = session.run(data)[0], np.load(Path(folder) / "output.npy")
        error = float(np.abs(ours - expected).max() / np.abs(expected).max())
    return {"median_ms": round(median_ms, 3), "least_ms": round(least, 3), "relative_error": error}


def figure_runs(args: argparse.Namespace) -> list[Row]:
    """Runs of a schedule with concurrent stages, all bits compared with the first run's and with the sequence's."""
    rows: list[Row] = []
    for name in args.networks:
        net, unit = read(name)
        units = unit_graph(net.graph, unit)
        data = _input(net)
        results = {}
        for variant in ("sequential", "greedy"):
            best = schedule(net.graph, AnalyticCost(find_device("cpu2")), Options(variant=variant, unit=unit)).schedule
            results[variant] = Session(compile_stages(lower_stages(net, units, best, LowerOptions()))), best
        first = results["sequential"][0].run(data)[0]
        session, best = results["greedy"]
        different = sum(not np.array_equal(session.run(data)[0], first) for _ in range(args.repeats))
        wide = sum(len(s.groups) > 1 for s in best.stages)
        rows.append({"network": name, "runs": args.repeats, "concurrent_stages": wide, "different": different})
    return rows


def figure_learned(args: argparse.Namespace) -> list[Row]:
    """Inception V3's last block on this CPU: every stage measured, against the learned model's choice of what to measure.

    Both schedules are then run in turn; `ratio` is the median of learned over measured, run by run.
    """
    net = stage_graph(inception_e())
    options = Options(unit="fused", r=2, s=2)
    units = unit_graph(net.graph, "fused")
    quick = MeasureOptions(first=5, most=10)
    runner = CpuRunner(net, units)
    full = MeasuredCost(runner, RecordStore(args.database, runner.device), quick)
    best = schedule(net.graph, full, options)
    alone = len({k for kernels in units.features for k in kernels if k.kind != "view"})
    few = MeasuredCost(runner, RecordStore(None, runner.device), quick)
    budget = int(LEARNED_SHARE * len(full.store)) - alone
    found, _ = search_learned(net, units, few, analytic_of(runner.bench), options, budget=max(1, budget))
    data = [_input(net)]
    sessions = [Session(compile_stages(lower_stages(net, units, s.schedule, LowerOptions()))) for s in (best, found)]
    pairs = np.array([[s.times_ms(data, 1, 1)[0] for s in sessions] for _ in range(args.repeats)])
    shares = [len(full.store), few.measurements]
    ratio = float(np.median(pairs[:, 1] / pairs[:, 0]))
    return [
        {
            "search": label,
            "measurements": n,
            "share": round(n / shares[0], 3),
            "median_ms": round(float(ms), 3),
            "ratio": r,
        }
        for label, n, ms, r in zip(
            ("measured", "learned"), shares, np.median(pairs, axis=0), (1.0, round(ratio, 3)), strict=True
        )
    ]
