"""MetaFlow's evaluation (SysML 2019, section 6) on this project's search: `python benchmarks/metaflow.py --figure N`.

    table2   operators, FLOPs, traffic, launches before and after, for every network (analytic V100)
    table3   backtracking against exhaustive search
    6        gain of each block of Inception V3
    7        two devices, two graphs
    9        training graphs
    10       alpha against search time and result
    cpu      processor time on this machine, one thread, batch 1, the same kernels for both graphs: this project's
             (`--kernels ours`, as `optimize --cost measured` builds them) or TVM's default ones (`--kernels tvm`)

The paper's baselines fuse greedily already, so table2 has a column for that: the same rules with alpha = 1 and only
those that fold constants or fuse activations and element-wise operators.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

os.environ.setdefault("TVM_NUM_THREADS", "1")  # `cpu` counts processor seconds, which other programs disturb least

import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.measured.choose_module import fastest, staged
from tvm_cascade.passes.substitute_graph import substitute
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.substitution.costs import CUDNN, STAGES, TVM, Figure, Latency, cudnn
from tvm_cascade.substitution.dag import Dag
from tvm_cascade.substitution.metaflow import SearchOptions, search
from tvm_cascade.substitution.picture import describe
from tvm_cascade.substitution.report import columns
from tvm_cascade.substitution.rules import ALL_RULES, PAPER_RULES, rules
from tvm_cascade.substitution.split import optimize
from tvm_cascade.testing.exhaustive_rewrites import exhaustive, exhaustive_by_parts
from tvm_cascade.testing.zoo import alexnet, inception, resnet, rnn, squeezenet, squeezenet_bypass, vgg

NETWORKS: dict[str, Callable[[], tvm.IRModule]] = {
    "alexnet": alexnet.alexnet,
    "vgg16": vgg.vgg16,
    "resnet18": resnet.resnet18,
    "resnet50": resnet.resnet50,
    "squeezenet": squeezenet.squeezenet,
    "squeezenet_simple": lambda: squeezenet_bypass.squeezenet_v1("simple"),
    "squeezenet_complex": lambda: squeezenet_bypass.squeezenet_v1("complex"),
    "inception_v3": inception.inception_v3,
    "rnntc": rnn.rnntc,
    "nmt": rnn.nmt,
}
GREEDY = rules(
    "fold_batch_norm", "fold_bias", "fold_scale", "matmul_bias", "matmul_scale", "fuse_activation", "fuse_elementwise"
)
FOLDING = rules("fold_batch_norm", "fold_bias", "matmul_bias")
TRAINING = tuple(r for r in ALL_RULES if not r.folds_weights)


def latency(device: str) -> Latency:
    described = find_device(device)
    return Latency("latency", cudnn(described), model=AnalyticCost(described))


def folded(mod: tvm.IRModule) -> Dag:
    """The network as the paper's figures begin: biases inside of the kernels, activations outside."""
    dag = read_function(mod["main"]).dag
    return search(dag, Figure("launches"), FOLDING, SearchOptions(patience=0, max_graphs=10**6)).dag


def table2(names: list[str], device: str) -> list[dict]:
    rows = []
    for name in names:
        dag = read_function(NETWORKS[name]()["main"]).dag
        cost = latency(device)
        greedy = optimize(dag, cost, GREEDY, SearchOptions(alpha=1.0))
        result = optimize(dag, cost, ALL_RULES)
        row = {
            "network": name,
            "seconds": round(result.seconds, 2),
            "graphs": result.graphs,
            "steps": len(result.steps),
        }
        row["rules"] = dict(Counter(s.rule for s in result.steps).most_common())
        for label, graph in (("before", dag), ("greedy", greedy.dag), ("after", result.dag)):
            row[label] = {"ms": round(cost.total(graph), 4), **columns(graph, CUDNN)}
        rows.append(row)
        b, g, a = row["before"], row["greedy"], row["after"]
        print(
            f"{name:19} ms {b['ms']:8.3f} {g['ms']:8.3f} {a['ms']:8.3f}   launches {b['launches']:4} {g['launches']:4} "
            f"{a['launches']:4}   MB {b['traffic_bytes'] / 1e6:6.1f} {g['traffic_bytes'] / 1e6:6.1f} "
            f"{a['traffic_bytes'] / 1e6:6.1f}   GFLOP {b['flops'] / 1e9:7.3f} {a['flops'] / 1e9:7.3f}   "
            f"{row['seconds']:5.1f} s",
            flush=True,
        )
    return rows


def table3(exhaust: bool) -> list[dict]:
    makes = {
        "alexnet": (alexnet.alexnet, 0.1),
        "vgg16": (vgg.vgg16, 0.2),
        "inception_e": (inception.inception_e, 0.29),
        "resnet18": (resnet.resnet18, 0.99),
    }
    rows = []
    for name, (make, paper) in makes.items():
        dag, cost = folded(make()), latency("v100")
        result = optimize(dag, cost, PAPER_RULES, SearchOptions(eager=()))
        row: dict = {"network": name, "operators": len(dag.nodes), "seconds": result.seconds, "paper_seconds": paper}
        row["ms"], row["graphs"] = result.cost_after, result.graphs
        if exhaust:
            by_parts = name == "resnet18"
            full = (
                exhaustive_by_parts(dag, cost, PAPER_RULES) if by_parts else exhaustive(dag, cost, PAPER_RULES, 400_000)
            )
            row["by_parts"] = by_parts
            row["exhaustive"] = {"ms": full.cost_after, "graphs": full.graphs, "seconds": full.seconds}
            row["same"] = full.complete and abs(full.cost_after - result.cost_after) < 1e-9 * full.cost_after
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def figure6(device: str) -> list[dict]:
    """Blocks of Inception V3 alone, from the fused baseline."""
    network = inception._Inception(1.0, 0)
    blocks = {
        "A1": (lambda n, x: n.block_a(x, 32), 192, 35),
        "A2": (lambda n, x: n.block_a(x, 64), 256, 35),
        "A3": (lambda n, x: n.block_a(x, 64), 288, 35),
        "B": (lambda n, x: n.block_b(x), 288, 35),
        "C1": (lambda n, x: n.block_c(x, 128), 768, 17),
        "C2": (lambda n, x: n.block_c(x, 160), 768, 17),
        "C3": (lambda n, x: n.block_c(x, 192), 768, 17),
        "D": (lambda n, x: n.block_d(x), 768, 17),
        "E1": (lambda n, x: n.block_e(x), 1280, 8),
        "E2": (lambda n, x: n.block_e(x), 2048, 8),
    }
    rows = []
    for name, (block, channels, size) in blocks.items():
        network = inception._Inception(1.0, 0)
        mod = network.net.finish(block(network, network.net.input((1, channels, size, size))))
        dag, cost = read_function(mod["main"]).dag, latency(device)
        greedy = search(dag, cost, GREEDY, SearchOptions(alpha=1.0)).cost_after
        found = optimize(dag, cost, ALL_RULES)
        rows.append({"block": name, "greedy_ms": greedy, "ms": found.cost_after, "gain": greedy / found.cost_after})
        print(f"{name:3} {greedy:.4f} -> {found.cost_after:.4f} ms  {rows[-1]['gain']:.2f}x", flush=True)
    return rows


def figure7() -> list[dict]:
    rows = []
    for device in ("v100", "k80"):
        result = search(folded(inception.inception_e()), latency(device), PAPER_RULES, SearchOptions(eager=()))
        boxes = [describe(n) for n in result.dag.nodes]
        rows.append({"device": device, "ms": result.cost_after, "operators": boxes})
        print(f"{device}: {result.cost_before:.4f} -> {result.cost_after:.4f} ms\n  " + "\n  ".join(boxes), flush=True)
    return rows


def figure9(device: str) -> list[dict]:
    """Forward and backward pass by Relax; constants become parameters, so that nothing can be folded."""
    nets = {
        "squeezenet_complex": lambda: squeezenet_bypass.squeezenet_v1("complex", size=64),
        "resnet18": lambda: resnet.resnet18(size=64, batch_norm=False),
        "inception_e": lambda: inception.inception_e(size=8),
    }
    rows = []
    for name, make in nets.items():
        trained = training_graph(make())
        read = read_function(trained["main_adjoint"])
        cost = latency(device)
        greedy = optimize(read.dag, cost, rules("fuse_activation", "fuse_elementwise"), SearchOptions(alpha=1.0))
        result = optimize(read.dag, cost, TRAINING)
        before, after = columns(read.dag, CUDNN), columns(result.dag, CUDNN)
        gain = greedy.cost_after / result.cost_after
        rows.append({"network": name, "before_ms": result.cost_before, "greedy_ms": greedy.cost_after,
                     "ms": result.cost_after, "gain": gain, "before": before, "after": after,
                     "seconds": result.seconds})  # fmt: skip
        print(
            f"{name:19} {result.cost_before:.3f} / {greedy.cost_after:.3f} -> {result.cost_after:.3f} ms, {gain:.2f}x "
            f"over greedy; launches {before['launches']} -> {after['launches']}; {result.seconds:.1f} s",
            flush=True,
        )
    return rows


def training_graph(mod: tvm.IRModule) -> tvm.IRModule:
    """`main_adjoint` of the sum of the network's output, weights of rank 2 and 4 as parameters."""
    func = mod["main"]
    params, bindings, weights = list(func.params), [], []
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                args = []
                for arg in value.args:
                    if hasattr(arg, "value") and hasattr(arg.value, "numpy") and len(arg.value.shape) in (2, 4):
                        weights.append(relax.Var(f"w{len(weights)}", arg.ty))
                        arg = weights[-1]
                    args.append(arg)
                value = relax.Call(value.op, args, value.attrs, value.ty_args)
            bindings.append((binding.var, value))
    builder = relax.BlockBuilder()
    with builder.function("main", [*params, *weights]):
        with builder.dataflow():
            env = {}
            for var, value in bindings:
                env[var] = builder.emit(_renamed(value, env))
            loss = builder.emit_output(relax.op.sum(env[bindings[-1][0]]))
        builder.emit_func_output(loss)
    made = builder.finalize()
    return relax.transform.Gradient("main", require_grads=list(made["main"].params)[len(params) :])(made)


def _renamed(value, env):
    if isinstance(value, relax.Var):
        return env.get(value, value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_renamed(f, env) for f in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_renamed(value.tuple_value, env), value.index)
    if isinstance(value, relax.Call):
        return relax.Call(value.op, [_renamed(a, env) for a in value.args], value.attrs, value.ty_args)
    return value


def figure10(device: str) -> list[dict]:
    """alpha on Inception V3, with enlarging and fusing as one rule (the default) and only apart (as in the paper)."""
    dag = read_function(inception.inception_v3()["main"]).dag
    apart = tuple(r for r in ALL_RULES if r.name != "fuse_convs_enlarged")
    rows = []
    for label, chosen in (("compound", ALL_RULES), ("apart", apart)):
        for alpha in (1.0, 1.02, 1.05, 1.08, 1.12, 1.2):
            result = optimize(dag, latency(device), chosen, SearchOptions(alpha=alpha))
            row = {"rules": label, "alpha": alpha, "ms": result.cost_after, "seconds": result.seconds}
            rows.append({**row, "graphs": result.graphs})
            print(f"{label:8} {alpha:.2f}: {result.cost_after:.4f} ms, {result.seconds:.1f} s, {result.graphs} graphs",
                  flush=True)  # fmt: skip
    return rows


def cpu(names: list[str], runs: int, kernels: str) -> list[dict]:
    """Original against rewritten graph, in turn: medians of the ratios run by run; `kept` is what `fastest` chooses."""
    rows = []
    device = find_device("cpu", "llvm", 1)
    build, engine = (staged, STAGES) if kernels == "ours" else (tvm.compile, TVM)
    for name in names:
        mod = NETWORKS[name]()
        done = substitute(mod, Latency("latency", engine, model=AnalyticCost(device)))
        choice = fastest([mod, done.mod], runs=runs, clock=time.process_time, build=build)
        before, after = choice.milliseconds
        row = {"network": name, "kernels": kernels, "before_ms": before, "after_ms": after}
        row["ratio"] = choice.ratios[1]
        row["kept"] = ("original", "rewritten")[choice.best]
        row["speedup"] = choice.ratios[choice.best]
        rows.append({**row, "search_seconds": done.results["main"].seconds, "load_average": os.getloadavg()[0]})
        print(
            f"{name:19} least {before:8.2f} -> {after:8.2f} ms, median ratio {row['ratio']:.3f}x  {row['kept']}",
            flush=True,
        )
    if rows:
        print(f"geometric mean of what is kept {prod(r['speedup'] for r in rows) ** (1 / len(rows)):.3f}x")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", required=True, choices=["table2", "table3", "6", "7", "9", "10", "cpu"])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--device", default="v100")
    parser.add_argument("--exhaustive", action="store_true", help="table3: run the exhaustive search too (minutes)")
    parser.add_argument("--runs", type=int, default=7, help="cpu: timed runs of each graph")
    parser.add_argument("--kernels", choices=["ours", "tvm"], default="ours", help="cpu: whose kernels")
    parser.add_argument("-o", "--output", type=Path, help="write the rows as JSON")
    args = parser.parse_args()
    figures: dict[str, Callable[[], list[dict]]] = {
        "table2": lambda: table2(args.networks, args.device),
        "table3": lambda: table3(args.exhaustive),
        "6": lambda: figure6(args.device),
        "7": figure7,
        "9": lambda: figure9(args.device),
        "10": lambda: figure10(args.device),
        "cpu": lambda: cpu(args.networks, args.runs, args.kernels),
    }
    rows = figures[args.figure]()
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
