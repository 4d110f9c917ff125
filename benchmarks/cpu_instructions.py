"""Instructions of one inference on one thread beside ONNX Runtime, counted by callgrind: the same on a busy machine.

    python benchmarks/cpu_instructions.py             # thirteen networks, an hour or more; writes results/cpu_instructions.md
    python benchmarks/cpu_instructions.py --integers  # integer products, weights of 8 and 4 bits; cpu_instructions_integers.md
    python benchmarks/cpu_instructions.py --networks bert_tiny --profile  # prints, and the functions that take the most too

Both run as for a processor with AVX2, which is what valgrind emulates. Counting begins after two inferences. Needs valgrind with
its headers, and gcc.
"""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

RESULTS = Path(__file__).parent / "results"
_TARGET = "llvm -mcpu=x86-64-v3"
_COUNTER = """#include <valgrind/callgrind.h>
void count(void) { CALLGRIND_START_INSTRUMENTATION; }
void end(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""
_WARM_UP = 2
_PAGES = {  # file, title, what its networks are, and a note
    False: ("cpu_instructions.md", "instructions", "`: float32", ""),
    True: (
        "cpu_instructions_integers.md",
        "instructions of quantized transformers",
        " --integers`: products that `quantize_dynamic` made\nintegers, weights that "
        "`MatMulNBitsQuantizer` stored in 8 or 4 bits",
        " Activations\nrounded to 8 bits make a step out of a difference in a float's last bit; a single layer agrees to 1e-6.",
    ),
}
_NETWORKS = (
    "llama_block", "bert_tiny", "bert_base_layer", "mobilenet_v3_small", "squeezenet_1_1", "shufflenet_v2", "mobilenet_v2",
    "efficientnet_b0", "vit_tiny", "resnet18", "googlenet", "inception_v3", "whisper_tiny_layer",
)  # fmt: skip
_INTEGERS = ("bert_tiny_int8", "llama_block_int8", "llama_block_8bits", "llama_block_4bits")


def main() -> None:
    """Count what the command line asks for; without names of networks, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", help="of cpu_networks.py")
    parser.add_argument(
        "--integers", action="store_true", help="networks that ONNX Runtime quantized; writes their table"
    )
    parser.add_argument("--profile", action="store_true", help="print the functions that take the most")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)  # what counts, and a folder
    args = parser.parse_args()
    if args.run:
        run(args.run[0], Path(args.run[1]))
        return
    rows = []
    for name in args.networks or (_INTEGERS if args.integers else _NETWORKS):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder), args.profile))
        print(rows[-1], flush=True)
        if not args.networks:
            file, *words = _PAGES[args.integers]
            (RESULTS / file).write_text(page(rows, *words))


def measure(name: str, folder: Path, profile: bool) -> dict[str, Any]:
    """Return the millions of instructions of both, and the largest difference of a result to the largest result."""
    import numpy as np
    import onnx
    from cpu_networks import NETWORKS, inputs_of

    model = NETWORKS[name]()
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **inputs_of(model))
    build(folder)
    (folder / "counter.c").write_text(_COUNTER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "counter.so", folder / "counter.c"], check=True)
    counts, results = {}, {}
    for who in ("ours", "onnxruntime"):
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/{who}.out"]
        command += [sys.executable, __file__, "--run", who, str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        counted = folder / f"{who}.out.1"  # what `end` dumps
        counts[who], results[who] = _total(counted), np.load(folder / f"{who}.npy")
        if profile:
            print(_functions(counted))
    wanted = results["onnxruntime"]
    error = float(np.abs(results["ours"] - wanted).max() / np.abs(wanted).max())
    millions = {who: round(count / 1e6, 2) for who, count in counts.items()}
    return {"network": name, **millions, "ratio": round(counts["ours"] / counts["onnxruntime"], 3), "error": error}


def build(folder: Path) -> None:
    """Compile the network in a folder to a library of one thread, its kernels in sequence."""
    from tvm_cascade import frontend
    from tvm_cascade.cost import AnalyticCost, find_device
    from tvm_cascade.parallel import Options, schedule
    from tvm_cascade.parallel.units import unit_graph
    from tvm_cascade.runtime import compile_stages
    from tvm_cascade.staging.kernels.processors import processor
    from tvm_cascade.staging.program.network import stage_network
    from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

    net = stage_network(frontend.load(folder / "model.onnx"), "llvm")
    cost = AnalyticCost(find_device("cpu", "llvm", 1))
    found = schedule(net.graph, cost, Options(variant="sequential")).schedule
    staged = lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions(workers=1, target=_TARGET))
    compile_stages(staged, processor(_TARGET)).export_library(folder / "ours.so")


def run(who: str, folder: Path) -> None:
    """Run a network some times in this process, the last time counted, and keep its result."""
    import ctypes

    import numpy as np

    data = dict(np.load(folder / "inputs.npz"))
    infer = (_ours if who == "ours" else _onnxruntime)(folder, data)
    counter = ctypes.CDLL(str(folder / "counter.so"))
    for _ in range(_WARM_UP):
        infer()
    counter.count()
    result = infer()
    counter.end()
    results = [result] if hasattr(result, "numpy") else result
    values = [value.numpy() if hasattr(value, "numpy") else value for value in results]
    np.save(folder / f"{who}.npy", np.concatenate([value.reshape(-1) for value in values]))


def _ours(folder: Path, data: Any) -> Callable[[], Any]:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "ours.so")), tvm.cpu())
    given, function = [tvm.runtime.tensor(value) for value in data.values()], machine["main"]
    return lambda: function(*given)


def _onnxruntime(folder: Path, data: Any) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, data)


def _total(path: Path) -> int:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith(("summary:", "totals:"))]
    return max((int(line.split()[1]) for line in lines), default=0)


def _functions(path: Path) -> str:
    done = subprocess.run(["callgrind_annotate", path], capture_output=True, text=True, check=True)
    return "\n".join(line[:150] for line in done.stdout.splitlines() if "%)" in line)[:6000]


def _description(name: str) -> str:
    """Return what a network's builder says: layers, widths, tokens."""
    from cpu_networks import NETWORKS

    text = " ".join((NETWORKS[name].__doc__ or "").split("\n\n")[0].split()).removeprefix("Build ")
    return text


def page(rows: list[dict[str, Any]], title: str, stored: str, note: str) -> str:
    """Return the table as Markdown, with what the page says of the networks."""
    import onnxruntime

    lines = [
        f"# CPU: {title} beside ONNX Runtime",
        "",
        f"Written by `python benchmarks/cpu_instructions.py{stored}, batch 1, random weights, one thread, AVX2. Millions of",
        f"instructions of one inference under callgrind, of the staged program and of ONNX Runtime {onnxruntime.__version__}.",
        f"Error: largest difference of an output, relative to the largest output. Counts are no times.{note}",
        "",
        "| network | staged | ONNX Runtime | ratio | error |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for r in rows:
        lines.append(f"| {r['network']} | {r['ours']} | {r['onnxruntime']} | {r['ratio']} | {r['error']:.1e} |")
    told = [(r["network"], _description(r["network"])) for r in rows]
    lines += ["", *(f"- {name}: {text}" for name, text in told if text)]
    mean = geometric_mean([r["ours"] / r["onnxruntime"] for r in rows])
    lines += ["", f"Geometric mean of the ratios: {mean:.3f}; the largest: {max(r['ratio'] for r in rows)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
