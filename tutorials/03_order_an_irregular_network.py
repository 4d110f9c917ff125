"""
Order an irregular network
==========================

A randomly wired network has thousands of orders, and file order is rarely a good one. This tutorial finds the best one,
proves it, looks at what rewriting adds, and turns the result into an arena.

.. code-block:: console

    $ python tutorials/03_order_an_irregular_network.py

The command line does the same for a model's file: ``tvm-cascade order MODEL``.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.cascading import layerwise, validate
from tvm_cascade.memory.traffic import traffic
from tvm_cascade.ordering import file_order, footprint, greedy, kahn_fifo, order, peak_of
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.order_ops import OrderOps
from tvm_cascade.passes.rewrite_for_memory import RewriteForMemory
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.zoo import randwire

# %%
# A network
# ---------
# One randomly wired stage, int8, as an importer would hand it over. ``extract_graph`` makes plain data of it: the
# algorithms know no TVM.
wiring = randwire.Wiring(n=16, k=4, p=0.75, seed=3)
module = LowerQuantized()(randwire.stage(16, 8, 16, wiring))
graph = extract_graph(module).graph
print(f"{len(graph.ops)} operators, {graph.macs:,} multiply-accumulates")

# %%
# What the usual orders need
# --------------------------
for baseline in (file_order, kahn_fifo, greedy):
    print(f"{baseline.__name__:12} {peak_of(graph, baseline(graph)):7,} bytes")

# %%
# The best order
# --------------
# ``optimal`` says that it is proven; ``bound`` that nothing can be lower.
found = order(graph)
print(f"best order   {found.peak:7,} bytes, bound {found.bound:,}, optimal {found.optimal}, {found.states:,} states")
assert found.peak <= peak_of(graph, kahn_fifo(graph))

# %%
# Where the memory goes: bytes in use step by step, the first ten.
print(footprint(graph, found.order)[:10])

# %%
# The order as a Relax pass
# -------------------------
# The same operators, the same values.
ordered = OrderOps()(module)
x = tvm.runtime.tensor(np.random.default_rng(0).integers(-128, 128, (1, 16, 16, 8)).astype("int8"))
results = []
for mod in (module, ordered):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    results.append(machine["main"](x).numpy())
equal = bool((results[0] == results[1]).all())
print(f"equal outputs: {equal}")
assert equal

# %%
# An arena for it
# ---------------
# Operator by operator: addresses, checked by a validator that shares no code with the planner.
plan = layerwise(extract_graph(ordered).graph)
validate(plan)
print(f"arena        {plan.peak:7,} bytes")

# %%
# With less memory on chip than that, the rest moves to and fro; order decides how much.
for name, row in (("kahn", kahn_fifo(graph)), ("best", found.order)):
    moved = traffic(graph, row, on_chip=6 * 1024)
    print(f"6 KiB on chip, {name}: {moved.bytes:,} bytes moved besides {moved.compulsory:,} that must be")

# %%
# Concats
# -------
# The readers of a concat can read its parts where they lie. ``RewriteForMemory`` does so where it lowers the peak.
net = Net("int8")
image = net.input((1, 16, 16, 8))
parts = [net.conv(image, 16, k) for k in (1, 3, 5)]
concat = LowerQuantized()(net.finish(net.conv(net.concat(parts), 16, 3)))
rewritten = RewriteForMemory()(concat)
before, after = (order(extract_graph(m).graph).peak for m in (concat, rewritten))
print(f"with concat {before:,} bytes, without {after:,}")
assert after < before
