"""How much faster row kernels get by MetaSchedule on this machine, and that a second run measures nothing.

    python benchmarks/metaschedule.py MODEL.tflite --database DIR [--trials 16] [--rounds 30] [-o results.json]

One plan of the model is built twice with LLVM, as `passes.Cascade` builds it: with the generic row kernels and with the
tuned ones. Both run on the same input in turn (untuned, tuned, tuned, untuned, ...); what counts is the ratio of neighbours,
so that a machine that slows down slows both.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_cascade import pipeline
from tvm_cascade.cascading import Plan, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.frontend import load
from tvm_cascade.passes.kernel_tuning import tune_kernels
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.prepare_graph import PreparedGraph
from tvm_cascade.schedules.driver.lower_plan import lower_plan
from tvm_cascade.schedules.tuning.metaschedule import Search
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.planned_module import planned_module


def build(mod: tvm.IRModule, prepared: PreparedGraph, plan: Plan) -> Any:
    """A Relax virtual machine that runs the plan."""
    planned = planned_module(mod, lower_plan(plan, prepared.kernels_of(plan)))
    vm: Any = relax.VirtualMachine
    return vm(tvm.compile(planned, tvm.target.Target("llvm")), tvm.cpu())


def seconds(machine: Any, feed: list[Any]) -> float:
    """Processor time: kernels are for one thread, and other processes do not count."""
    started = time.process_time()
    machine["main"](*feed)
    return time.process_time() - started


def first(result: Any) -> np.ndarray:
    return (result[0] if isinstance(result, (list, tuple)) or hasattr(result, "__len__") else result).numpy()


def paired(untuned: Any, tuned: Any, feed: list[Any], rounds: int) -> list[tuple[float, float]]:
    """Processor seconds of both, alternating which comes first."""
    pairs = []
    for k in range(rounds + 2):
        if k % 2:
            b = seconds(tuned, feed)
            a = seconds(untuned, feed)
        else:
            a = seconds(untuned, feed)
            b = seconds(tuned, feed)
        pairs.append((a, b))
    return pairs[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    lower: Any = LowerQuantized()
    mod = lower(load(args.model))
    prepared = pipeline.prepare(load(args.model), KernelTarget())
    search = Search(trials=args.trials, batch=min(args.trials, 8))
    started = time.perf_counter()
    tuned, report = tune_kernels(prepared, args.database, search, progress=print)
    tuning = time.perf_counter() - started
    _, again = tune_kernels(prepared, args.database, search)
    options = rows_alone(granularity="row", accumulators=False)
    plans = [plan_graph(p.graph, options) for p in (prepared, tuned)]
    machines = [build(mod, p, plan) for p, plan in zip((prepared, tuned), plans, strict=True)]
    random = np.random.default_rng(0)
    feed = [
        tvm.runtime.tensor(random.integers(-128, 128, prepared.graph.tensors[t].shape).astype("int8"))
        for t in prepared.graph.inputs
    ]
    outputs = [first(m["main"](*feed)) for m in machines]
    pairs = paired(machines[0], machines[1], feed, args.rounds)
    ratios = sorted(a / b for a, b in pairs)
    result = {
        "model": args.model.name,
        "machine": platform.processor() or platform.machine(),
        "operators_tuned": report.tuned,
        "kernels": report.forms,
        "records": sum(1 for _ in (args.database / "database_tuning_record.json").open()),
        "candidates_measured": report.measured,
        "candidates_measured_again": again.measured,
        "tuning_seconds": round(tuning, 1),
        "arena_bytes": [p.peak for p in plans],
        "macs": [p.macs for p in plans],
        "equal": bool(np.array_equal(outputs[0], outputs[1])),
        "untuned_cpu_ms": [round(1e3 * a, 4) for a, _ in pairs],
        "tuned_cpu_ms": [round(1e3 * b, 4) for _, b in pairs],
        "speedup": {"min": ratios[0], "median": ratios[len(ratios) // 2], "max": ratios[-1]},
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if not k.endswith("_ms")}, indent=1))
    if not result["equal"] or again.measured:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
