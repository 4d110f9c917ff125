"""Schedules measured on a GPU: `python benchmarks/ios_cuda.py [--networks a,b] [--batch 1,16]`.

For every network and batch size, the same weights and inputs, outputs compared with the sequence's:

    sequential, greedy, both      this project's stages on streams, one CUDA graph an inference
    sequential, no graph          the same kernels, launched one by one
    tvm, tvm graph                TVM's default CUDA pipeline, without and with CUDA graphs
    torch, torch graph, compile   PyTorch where it is installed: eager, one CUDA graph, `torch.compile`

Schedules come from the analytic model of `--device`, or from stages measured on the GPU (`--cost measured`). Rows hold
medians of runs in turn, and go to `results/ios_cuda.json` with the command. Needs a CUDA device, its driver, and nvcc or
the package cuda-bindings; `--build-only` compiles everything for `--arch` and runs nothing, on any machine.
"""

# torch is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.measured import MeasuredCost
from tvm_cascade.errors import CascadeError
from tvm_cascade.measured.search import measured_model, search_measured
from tvm_cascade.measured.tune_stages import tune_stages
from tvm_cascade.parallel import Options, Schedule, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.runtime import Session, compile_stages, host_target, require_cuda
from tvm_cascade.runtime.bench import LocalBench
from tvm_cascade.schedules.tuning.metaschedule import Search
from tvm_cascade.staging.program.cuda import cuda_target
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.zoo import nasnet, randwire
from tvm_cascade.testing.zoo.inception import inception_v3
from tvm_cascade.testing.zoo.squeezenet import squeezenet

NETWORKS: dict[str, tuple[Callable[[int], tvm.IRModule], str]] = {
    "inception_v3": (inception_v3, "fused"),
    "squeezenet": (squeezenet, "fused"),
    "nasnet": (lambda batch: _single(nasnet.network("float32").mod, batch), "sepconv"),
    "randwire": (lambda batch: _single(randwire.network(dtype="float32").mod, batch), "sepconv"),
}
Row = dict[str, object]
Timer = Callable[[int], list[float]]


def _single(mod: tvm.IRModule, batch: int) -> tvm.IRModule:
    if batch != 1:
        raise CascadeError("this network of the zoo is built for batch 1; leave it out with --networks")
    return mod


def builds(mod: tvm.IRModule, unit: str, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """How to compile the network under every name of TVM's."""
    target = f"cuda -arch={args.arch}"
    net = stage_graph(mod)
    units = unit_graph(net.graph, unit)
    analytic = AnalyticCost(find_device(args.device))
    search = Search(trials=0 if args.build_only else args.trials)
    if args.metaschedule is not None:
        tune_stages(net, units, args.metaschedule, target, search=search, progress=print)
    model = analytic
    if args.cost == "measured":
        model = measured_model(net, units, args.database, LocalBench(target=target), args.metaschedule)

    def searched(variant: str) -> Schedule:
        options = Options(variant=variant, unit=unit)
        if isinstance(model, MeasuredCost) and variant == "both":
            return search_measured(net, model, options).schedule
        return schedule(net.graph, analytic, options).schedule

    def staged(variant: str, graph: bool) -> Any:
        options = LowerOptions(target=target, cuda_graph=graph, metaschedule=args.metaschedule)
        return compile_stages(lower_stages(net, units, searched(variant), options), cuda_target(target))

    def default(graph: bool) -> Any:
        with cuda_target(target), tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graph}):
            return tvm.compile(mod, cuda_target(target))

    return {
        "sequential, no graph": partial(staged, "sequential", False),
        **{variant: partial(staged, variant, True) for variant in ("sequential", "greedy", "both")},
        "tvm": partial(default, False),
        "tvm graph": partial(default, True),
    }


def torch_timers(mod: tvm.IRModule, data: np.ndarray) -> dict[str, tuple[Timer, np.ndarray]]:
    """PyTorch's times and outputs; nothing where it is not installed or has no device."""
    try:
        import torch
        from torch_model import TorchModel
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    read = read_function(mod["main"])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # float32, as the others
    model = TorchModel(read.dag, read.constants).cuda().eval()
    x = torch.from_numpy(data).cuda()

    def timed(call: Callable[[], Any]) -> Timer:
        def times(repeats: int) -> list[float]:
            timers_ms = []
            for _ in range(repeats):
                torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                torch.cuda.synchronize()
                timers_ms.append((time.perf_counter() - start) * 1e3)
            return timers_ms

        return times

    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static = model(x)
        compiled = torch.compile(model, mode="max-autotune")

        def run(what: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
            def call() -> Any:
                with torch.inference_mode():
                    return what(x)

            return call

        for _ in range(3):
            last = run(compiled)()
        graph.replay()
        timers = {
            "torch": (timed(run(model)), model(x)),
            "torch graph": (timed(graph.replay), static),
            "torch compile": (timed(run(compiled)), last),
        }
        return {name: (timer, value.cpu().numpy()) for name, (timer, value) in timers.items()}


def measure(name: str, batch: int, args: argparse.Namespace) -> list[Row]:
    """Rows of one network at one batch size."""
    make, unit = NETWORKS[name]
    mod = make(batch)
    if args.build_only:
        rows: list[Row] = []
        for variant, build in builds(mod, unit, args).items():
            start = time.perf_counter()
            build()
            rows.append({"network": name, "batch": batch, "built": variant, "s": round(time.perf_counter() - start, 1)})
        return rows
    graph = stage_graph(mod).graph
    data = np.random.default_rng(0).standard_normal(graph.tensors[graph.inputs[0]].shape).astype("float32")
    expected = Session(tvm.compile(mod, host_target())).run(data)[0]
    timers: dict[str, tuple[Timer, np.ndarray]] = {}
    for variant, build in builds(mod, unit, args).items():
        session = Session(build(), tvm.cuda())
        timers[variant] = (partial(_times, session, data), session.run(data)[0])
    timers |= torch_timers(mod, data)
    times: dict[str, list[float]] = {variant: [] for variant in timers}
    for _ in range(args.rounds):
        for variant, (timer, _) in timers.items():
            times[variant] += timer(args.repeats)
    base = float(np.median(times["sequential"]))
    return [
        {
            "network": name,
            "batch": batch,
            "schedule": variant,
            "median_ms": round(float(np.median(times[variant])), 4),
            "least_ms": round(min(times[variant]), 4),
            "speedup_over_sequential": round(base / float(np.median(times[variant])), 3),
            "relative_error": float(np.abs(result - expected).max() / np.abs(expected).max()),
        }
        for variant, (_, result) in timers.items()
    ]


def _times(session: Session, data: np.ndarray, repeats: int) -> list[float]:
    return session.times_ms([data], repeats, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=lambda s: s.split(","), default=list(NETWORKS))
    parser.add_argument("--batch", type=lambda s: [int(b) for b in s.split(",")], default=[1])
    parser.add_argument("--device", default="h200", help="description that schedules are made for")
    parser.add_argument("--cost", choices=["analytic", "measured"], default="analytic")
    parser.add_argument("--database", type=Path, help="keep measurements of stages here")
    parser.add_argument(
        "--metaschedule", type=Path, help="folder with records of tuned kernels; others are tuned first"
    )
    parser.add_argument("--trials", type=int, default=32, help="candidates to measure for a kernel without a record")
    parser.add_argument("--arch", default="sm_90", help="architecture that kernels are compiled for")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=20, help="runs of each schedule in a round")
    parser.add_argument("--build-only", action="store_true", help="compile and stop: needs no GPU")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    rows: list[Row] = []
    try:
        if not args.build_only:
            require_cuda()
        for name in args.networks:
            for batch in args.batch:
                for row in measure(name, batch, args):
                    print("  ".join(f"{k}={v}" for k, v in row.items()), flush=True)
                    rows.append(row)
    except CascadeError as error:
        print(f"ios_cuda: {error}", file=sys.stderr)
        return error.exit_status
    if not args.build_only:
        command = " ".join(["python benchmarks/ios_cuda.py", *sys.argv[1:]])
        text = json.dumps({"command": command, "measured": True, "rows": rows}, indent=1)
        (args.results / "ios_cuda.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
