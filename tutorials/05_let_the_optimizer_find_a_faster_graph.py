"""
Let the optimizer find a faster graph
=====================================

Substitutions that first cost something and then pay.

.. code-block:: console

    $ python tutorials/05_let_the_optimizer_find_a_faster_graph.py [--out DIR]

Runs in half a minute, without a GPU: costs come from descriptions of devices, but for a small network that is measured. The
command line does the same for a model's file: ``tvm-cascade optimize MODEL``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.errors import InfeasibleError, MissingToolError
from tvm_cascade.optimizing.module import load_optimized, optimize_module, save_optimized
from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.substitution.costs import Figure, Latency, cudnn
from tvm_cascade.substitution.metaflow import SearchOptions, search
from tvm_cascade.substitution.picture import describe, draw
from tvm_cascade.substitution.report import format_report, format_steps
from tvm_cascade.substitution.rules import PAPER_RULES, rules
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.zoo import inception, rnn, squeezenet_bypass

parser = argparse.ArgumentParser(description="Let the optimizer find a faster graph.")
parser.add_argument("--out", type=Path, default=Path("graph-out"))
out = parser.parse_known_args()[0].out
out.mkdir(parents=True, exist_ok=True)

# %%
# A detour that pays: 4, 5, 4, 3 operators
# ----------------------------------------
# ``x * y + (1 - x) * z``, the heart of a simple recurrent unit: three element-wise operators can replace its four, but only by
# way of five. ``alpha`` says how much dearer than the best graph a graph may be that the search still looks at.


def blend() -> tvm.IRModule:
    """x * y + (1 - x) * z."""
    net = Net("float32")
    x, y, z = (net.input((1, 1024), name) for name in "xyz")
    one = type(x)(relax.const(np.ones((), "float32")), ())
    rest = type(x)(net._emit(relax.op.subtract(one.expr, x.expr)), x.shape)
    return net.finish(net.add(net.mul(x, y), net.mul(rest, z)))


dag = read_function(blend()["main"]).dag
algebra = rules("distribute", "reorder_sum", "factor")
for alpha in (1.0, 1.3):
    found = search(dag, Figure("launches"), algebra, SearchOptions(alpha=alpha))
    print(f"alpha {alpha}: {found.cost_before:.0f} -> {found.cost_after:.0f} operators")
    print("\n".join(format_steps(found.steps)) or "     nothing, as every way begins uphill")

# %%
# One network, two devices, two graphs
# ------------------------------------
# The best graph depends on the device: MetaFlow's Figure 7.
dag = read_function(inception.inception_e()["main"]).dag
for device in (find_device("v100"), find_device("k80")):
    cost = Latency("latency", cudnn(device), model=AnalyticCost(device))
    found = search(dag, cost, (*PAPER_RULES, *rules("fold_bias")))
    print(f"{device.name}: {found.cost_before:.3f} -> {found.cost_after:.3f} ms, {found.graphs} graphs visited")
    print("      " + ", ".join(describe(n) for n in found.dag.nodes if n.kind == "conv2d"))

# %%
# A whole network, from Relax to Relax
# ------------------------------------
# SqueezeNet with bypasses. The new network computes the same scores.


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


mod = squeezenet_bypass.squeezenet_v1("complex", size=64)
done = optimize_module(mod, target="cuda")
print(format_report(done.report, limit=8))
x = np.random.default_rng(0).random((1, 3, 64, 64), "float32")
before, after = run(mod, x), run(done.mod, x)
print(f"largest difference of the scores: {np.abs(before - after).max():.1e}")
assert np.allclose(before, after, atol=1e-5)

# %%
# Latency, but under a cap on activations
# ---------------------------------------
least = optimize_module(mod, target="cuda", cost="peak").report["after"]["peak_bytes"]  # type: ignore[index]
free = done.report["after"]["peak_bytes"]  # type: ignore[index]
print(f"least of all: {least:,} bytes; without a cap {free:,}")
cap = (free + least) // 2
try:
    held = optimize_module(mod, target="cuda", cost=f"latency,peak<={cap}").report
    print(f"cap {cap:,}: {held['cost_after']:.4f} ms with {held['after']['peak_bytes']:,} bytes")  # type: ignore
except InfeasibleError as error:
    print(f"cap {cap:,}: {error}")

# %%
# This machine decides
# --------------------
# A recurrent network: kernels are measured here, and the whole networks have the last word.
words = rnn.rnntc(steps=4, hidden=256)
ran = optimize_module(words, target="llvm", cost="learned", seconds=3).report["measured"]
assert isinstance(ran, dict)
each = ", ".join(f"{name} {ms:.3f} ms" for name, ms in ran["milliseconds"].items())
print(f"{each}; kept: {ran['kept']}, {ran['measurements']} kernels measured")

# %%
# For other tools
# ---------------
# A Relax module in a file, the same as ONNX, and a picture of both graphs.
saved = save_optimized(done, out / "squeezenet.zip")
tvm.ir.assert_structural_equal(load_optimized(saved), done.mod)
print(f"{saved}: a Relax module; read it with load_optimized")
for write in (
    lambda: save_optimized(done, out / "squeezenet.onnx"),
    lambda: draw(done.read.dag, done.result.dag, out / "squeezenet.svg"),
):
    try:
        print(write())
    except MissingToolError as error:
        print(f"left out: {error}")
