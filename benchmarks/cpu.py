"""Networks of several branches on this machine's CPU beside ONNX Runtime, on one thread and more: runs in turn in one process.

    python benchmarks/cpu.py                       # one thread and two, 31 runs; writes results/cpu.json and results/cpu.md
    python benchmarks/cpu.py --networks googlenet --threads 1 --repeats 101

`sequence` are the staged program's kernels one after the other, `ios` is the schedule that `tvm-cascade stages` keeps: the one
found by the analytic cost, the sequence or the greedy one, whichever ran fastest. Times on one thread are of the
processor; else of the wall, in blocks of runs whose first are not counted, as the other pool's threads still wait busily
then. Nodes: of the model that `optimize` writes, and of what ONNX Runtime's extended level makes of it and of the original.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_FIRST = 3  # runs that are not counted
_BLOCK = 8  # runs of one kind in a row on several threads, after those that are not counted


def main() -> None:
    """Measure what the command line asks for and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", help="of cpu_networks.py; default: all")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a network, measured in this process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads[0], args.repeats)))
        return
    from cpu_networks import NETWORKS

    rows = []
    for name in args.networks or NETWORKS:
        for count in args.threads:
            threads = {k: str(count) for k in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
            threads["TVM_BIND_THREADS"] = "0"  # bound, the main thread's core is all that the rival's threads would get
            command = [sys.executable, __file__, "--one", name, "--threads", str(count), "--repeats", str(args.repeats)]
            done = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
    (RESULTS / "cpu.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    (RESULTS / "cpu.md").write_text(page(rows))


def measure(name: str, threads: int, repeats: int) -> dict[str, Any]:
    """One network on `threads` threads."""
    import numpy as np
    import onnx
    import onnxruntime
    from cpu_networks import NETWORKS, inputs_of

    from tvm_cascade import frontend
    from tvm_cascade.cost import AnalyticCost, find_device
    from tvm_cascade.measured.finalists import judge, program_of
    from tvm_cascade.parallel import Options, schedule
    from tvm_cascade.parallel.units import unit_graph
    from tvm_cascade.runtime import Session, compile_stages
    from tvm_cascade.runtime.bench import LocalBench
    from tvm_cascade.staging.program.network import stage_network
    from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        model = NETWORKS[name]()
        onnx.save(model, path)
        nodes = _nodes(path) if threads == 1 else {}
        net = stage_network(frontend.load(path), "llvm")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        rival = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    units, cost = unit_graph(net.graph, "fused"), AnalyticCost(find_device("cpu", "llvm", threads))
    variants = ("sequential", "greedy", "both") if threads > 1 else ("sequential",)
    found = {v: schedule(net.graph, cost, Options(variant=v)).schedule for v in variants}
    built = {v: compile_stages(lower_stages(net, units, s, LowerOptions(workers=threads))) for v, s in found.items()}
    ours = {v: Session(b) for v, b in built.items()}
    data = inputs_of(model)
    programs = [program_of(net, b) for b in built.values()]
    kept = variants[judge(LocalBench(threads), programs).best] if threads > 1 else "sequential"
    runs = {
        "sequence": lambda: ours["sequential"].run(*data.values()),
        "onnxruntime": lambda: rival.run(None, data),
    }
    if threads > 1:
        runs["ios"] = lambda: ours[kept].run(*data.values())
    expected = runs["onnxruntime"]()[0]
    error = max(
        float(np.abs(np.asarray(run()[0]).reshape(-1) - expected.reshape(-1)).max() / np.abs(expected).max())
        for run in runs.values()
    )
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {k: [] for k in runs}
    block = 1 if threads == 1 else _BLOCK
    for turn in range(-1, -(-repeats // block)):
        for key, run in runs.items():
            for _ in range(_FIRST if turn < 0 or block > 1 else 0):
                run()
            for _ in range(block if turn >= 0 else 0):
                start = clock()
                run()
                times[key].append((clock() - start) * 1e3)
    quartiles = {k: [round(float(x), 3) for x in np.percentile(v[:repeats], (50, 25, 75))] for k, v in times.items()}
    return {
        "network": name, "threads": threads, "repeats": repeats, **quartiles, "kept": kept,
        "ratio": round(min(quartiles[k][0] for k in quartiles if k != "onnxruntime") / quartiles["onnxruntime"][0], 3),
        "error": error, "onnxruntime_version": onnxruntime.__version__, **nodes,
    }  # fmt: skip


def _nodes(path: Path) -> dict[str, Any]:
    """Nodes of the model that `optimize` writes, and of ONNX Runtime's extended level; processor seconds of `optimize`."""
    import onnx
    import onnxruntime

    made = path.with_name("made.onnx")
    command = [sys.executable, "-m", "tvm_cascade.cli", "optimize", str(path), "-o", str(made), "--target", "llvm"]
    before = os.times()
    subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()

    def extended(model: Path) -> int:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(model.with_name("extended.onnx"))
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return len(onnx.load(options.optimized_model_filepath).graph.node)

    return {
        "optimize_s": round(after.children_user + after.children_system - before.children_user - before.children_system, 1),
        "nodes": [len(onnx.load(p).graph.node) for p in (path, made)],
        "extended_nodes": [extended(p) for p in (path, made)],
    }  # fmt: skip


def page(rows: list[dict[str, Any]]) -> str:
    """The table, as Markdown."""
    lines = [
        "# CPU: beside ONNX Runtime",
        "",
        "Written by `python benchmarks/cpu.py`: float32, batch 1, random weights. Milliseconds, medians of",
        f"{rows[0]['repeats']} runs in turn in one process with their quartiles, of the processor on one thread, of the wall on",
        f"more. Ratio: the better of `sequence` and `ios` to ONNX Runtime {rows[0]['onnxruntime_version']}. Error: largest",
        "difference of an output, relative to the largest output. On two threads runs alternate in blocks of eight.",
        "",
        "| network | threads | sequence | ios | kept | ONNX Runtime | ratio | error |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]

    def told(times: list[float] | None) -> str:
        return f"{times[0]:.2f} [{times[1]:.2f}, {times[2]:.2f}]" if times else ""

    for r in rows:
        cells = [r["network"], r["threads"], told(r["sequence"]), told(r.get("ios")), r["kept"] if "ios" in r else ""]
        lines.append(
            "| " + " | ".join(map(str, [*cells, told(r["onnxruntime"]), r["ratio"], f"{r['error']:.1e}"])) + " |"
        )
    held = [r for r in rows if "nodes" in r]
    if held:
        lines += [
            "",
            "| network | nodes | by `optimize` | by ONNX Runtime, extended | by both | processor s of `optimize` |",
        ]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        for r in held:
            (plain, made), (theirs, both) = r["nodes"], r["extended_nodes"]
            lines.append(f"| {r['network']} | {plain} | {made} | {theirs} | {both} | {r['optimize_s']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
