"""Networks on this machine's CPU beside ONNX Runtime and OpenVINO, on one thread and more: runs in turn in one process.

    python benchmarks/cpu.py                       # one thread and two, 25 runs; writes results/cpu.json and results/cpu.md
    python benchmarks/cpu.py --networks googlenet --threads 1 --repeats 101   # these rows anew, the others stay

OpenVINO's column stays empty where it is not installed.

`sequence` are the staged program's kernels one after the other, `ios` is the schedule that `tvm-cascade stages` keeps: the one
found by the analytic cost, the sequence or the greedy one, whichever ran fastest. Times on one thread are of the
processor; else of the wall, in blocks of runs behind a pause and runs that are not counted, as the other pool's threads wait
busily for a while. Nodes: of the model that `optimize` writes, and of what ONNX Runtime's extended level makes of it and of
the original.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
FLOATS = (
    "googlenet", "inception_v3", "squeezenet_1_1", "shufflenet_v2", "resnet18", "mobilenet_v2", "mobilenet_v3_small",
    "efficientnet_b0", "bert_tiny", "bert_base_layer", "vit_tiny", "whisper_tiny_encoder", "llama_block",
)  # fmt: skip
_RIVALS = ("onnxruntime", "openvino")
_FIRST = 3  # runs that are not counted, at least
_PAUSE = 0.1  # seconds in which the threads of the program before fall asleep
_AWAKE = 0.3  # seconds of runs that are not counted after a pause: threads wake up on one core, and spread
_BLOCK = 8  # runs of one kind in a row on several threads, after those that are not counted


def main() -> None:
    """Measure what the command line asks for and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=FLOATS, help="of cpu_networks.py; default: those in float32")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a network, measured in this process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads[0], args.repeats)))
        return
    stored = RESULTS / "cpu.json"
    rows = {(r["network"], r["threads"]): r for r in json.loads(stored.read_text())} if stored.is_file() else {}
    for name in args.networks:
        for count in args.threads:
            threads = {k: str(count) for k in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
            threads["TVM_BIND_THREADS"] = "0"  # bound, the main thread's core is all that the rival's threads would get
            command = [sys.executable, __file__, "--one", name, "--threads", str(count), "--repeats", str(args.repeats)]
            done = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True)
            rows[name, count] = json.loads(done.stdout.splitlines()[-1])
            print(rows[name, count], flush=True)
            kept = [rows[key] for key in sorted(rows, key=_place)]
            stored.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n")
            (RESULTS / "cpu.md").write_text(page(kept))


def _place(key: tuple[str, int]) -> tuple[int, str, int]:
    """Return where the row of a network on so many threads stands in the table."""
    name, threads = key
    return FLOATS.index(name) if name in FLOATS else len(FLOATS), name, threads


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
    if find_spec("openvino"):
        runs["openvino"] = _openvino(model, threads, data)
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
            if turn < 0 or block > 1:
                _warm_up(run, _PAUSE if block > 1 else 0)
            for _ in range(block if turn >= 0 else 0):
                start = clock()
                run()
                times[key].append((clock() - start) * 1e3)
    own = [k for k in runs if k not in _RIVALS]
    quartiles = {k: [round(float(x), 3) for x in np.percentile(v[:repeats], (50, 25, 75))] for k, v in times.items()}
    return {
        "network": name, "threads": threads, "repeats": repeats, **quartiles, "kept": kept,
        **{f"ratio_{r}": round(min(quartiles[k][0] for k in own) / quartiles[r][0], 3) for r in runs if r not in own},
        "error": error, "versions": {r: version(r) for r in runs if r in _RIVALS}, "machine": machine_line(),
        **nodes,
    }  # fmt: skip


def _warm_up(run: Callable[[], Any], pause: float) -> None:
    """Wait, then run a few times."""
    time.sleep(pause)
    runs, until = 0, time.perf_counter() + (_AWAKE if pause else 0)
    while runs < _FIRST or time.perf_counter() < until:
        run()
        runs += 1


def machine_line() -> str:
    """Return the processor, and how many other processes ran beside this one."""
    from tvm_cascade.cost.processor import this_model

    load = max(0.0, os.getloadavg()[0] - 1)
    return f"{this_model()}, {os.cpu_count()} cores; beside this about {load:.1f} other processes ran"


def _openvino(model: Any, threads: int, data: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs OpenVINO on so many threads, in float32."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings).create_infer_request()

    def run() -> list[Any]:
        found = request.infer(data)
        return [found[k] for k in range(len(found))]

    return run


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
    versions = rows[0]["versions"]
    lines = [
        "# CPU: beside ONNX Runtime and OpenVINO",
        "",
        "Written by `python benchmarks/cpu.py`: float32, batch 1, random weights. Milliseconds, medians of",
        f"{rows[0]['repeats']} runs in turn in one process with their quartiles, of the processor on one thread, of the wall on",
        "more, in blocks of eight in turn after a pause and warm-up. Ratios: the better of `sequence` and `ios` to ONNX",
        f"Runtime {versions['onnxruntime']} and to OpenVINO {versions.get('openvino', '(not installed)')}. Error: largest",
        "difference of an output from ONNX Runtime's, relative to the largest output.",
        "",
        f"Machine: {rows[0]['machine']}.",
        "",
        "| network | threads | sequence | ios | kept | ONNX Runtime | ratio | OpenVINO | ratio | error |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]

    def told(times: list[float] | None) -> str:
        return f"{times[0]:.2f} [{times[1]:.2f}, {times[2]:.2f}]" if times else ""

    for r in rows:
        cells = [r["network"], r["threads"], told(r["sequence"]), told(r.get("ios")), r["kept"] if "ios" in r else ""]
        for rival in _RIVALS:
            cells += [told(r.get(rival)), r.get(f"ratio_{rival}", "")]
        lines.append("| " + " | ".join(map(str, [*cells, f"{r['error']:.1e}"])) + " |")
    lines.append("")
    for threads in sorted({r["threads"] for r in rows}):
        for rival in _RIVALS:
            ratios = [r[f"ratio_{rival}"] for r in rows if r["threads"] == threads and f"ratio_{rival}" in r]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                lines.append(f"- Threads: {threads}. To {rival}: geometric mean {mean:.3f}, largest {max(ratios):.3f}.")
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
