"""
Schedule a multi-branch network
===============================

Find out which operators pay to run together, and run them so.

.. code-block:: console

    $ python tutorials/04_schedule_a_multi_branch_network.py [--network inception_e|squeezenet] [--out DIR]

Runs on a CPU. The first half needs no device at all: it plans for a V100 and a K80. Where TVM finds a CUDA device, the
last part builds for it too. The command line does the same for a model's file: ``tvm-cascade stages MODEL``.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("TVM_NUM_THREADS", "2")  # TVM's pool may choose one thread on two cores: stages need them all

import numpy as np
import tvm
from tvm import relax

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, run_stages, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages, has_cuda
from tvm_cascade.runtime.cuda import with_architecture
from tvm_cascade.staging.program.cuda import cuda_target
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages
from tvm_cascade.testing.zoo.inception import inception_e
from tvm_cascade.testing.zoo.squeezenet import squeezenet

NETWORKS = {"inception_e": lambda: inception_e(width=0.25), "squeezenet": lambda: squeezenet(size=127)}

parser = argparse.ArgumentParser(description="Schedule a multi-branch network.")
parser.add_argument("--network", choices=NETWORKS, default="inception_e")
parser.add_argument("--out", type=Path, default=Path("demo-out"))
args = parser.parse_known_args()[0]
args.out.mkdir(parents=True, exist_ok=True)
mod = NETWORKS[args.network]()

# %%
# Units
# -----
# The network as a graph of units: here a convolution with its bias and activation is one.
net = stage_graph(mod)
units = unit_graph(net.graph, "fused")
print(f"{args.network}: {len(net.graph.ops)} operators in {len(units.units)} units")

# %%
# The best schedule depends on the device
# ---------------------------------------
# A small device has less room for company. Pictures of schedules need matplotlib.
for device in ("v100", "k80"):
    picture = args.out / f"{device}.png" if find_spec("matplotlib") else None
    data, text = run_stages(net.graph, "cuda", device, output=args.out / f"{device}.json", picture=picture)
    print(f"\nplanned for a {device}\n{text}")
    print(f"gain over one by one: {data['sequential_ms'] / data['cost_ms']:.2f}x")  # type: ignore[operator]

# %%
# Saved schedules belong to their network. This one is read back, and would be refused for another.
again, _ = run_stages(net.graph, "cuda", "k80", load=args.out / "v100.json")
print(f"the V100's schedule on a K80: {again['cost_ms']:.4f} ms")

# %%
# On this machine
# ---------------
# One operator after the other, against stages. The results are the same bits.
model = AnalyticCost(find_device("cpu2"))
shape = net.graph.tensors[net.graph.inputs[0]].shape
x = np.random.default_rng(0).standard_normal(shape).astype("float32")
results = {}
for variant in ("sequential", "greedy", "parallel"):
    found = schedule(net.graph, model, Options(variant=variant)).schedule
    session = Session(compile_stages(lower_stages(net, units, found, LowerOptions())))
    results[variant] = session.run(x)[0]
    times = session.times_ms([x], 10)
    print(f"{variant:11} {len(found.stages):3d} stages  median {np.median(times):8.3f} ms")
assert all(np.array_equal(r, results["sequential"]) for r in results.values())
print("all results are equal, bit for bit")

# %%
# Inside of TVM's own builds
# --------------------------
# The registered pipeline makes such a program of every function in float32; quantized functions get the smallest arena.
with tvm.target.Target("llvm"):
    lowered = relax.get_pipeline("cascade")(mod)
print(f"the pipeline chose {lowered.attrs['cascade.objective']}")
served = Session(tvm.compile(mod, "llvm", relax_pipeline="cascade")).run(x)[0]
np.testing.assert_allclose(served, results["sequential"], rtol=1e-4, atol=1e-5)

# %%
# For CUDA
# --------
# The same schedule as streams, events and one graph. Built only where there is a device to run it.
#
# On an H200 the schedules of four networks, at batch 1 and with products of float16, take 0.16 to 0.71 ms: 1.9 to 7 times
# less than the best of PyTorch that was measured (``benchmarks/results/gpu.md``). From the command line:
# ``tvm-cascade stages MODEL --target cuda --device h200 --precision fp16 --emit DIR``.
found = schedule(net.graph, AnalyticCost(find_device("v100"))).schedule
target = with_architecture("cuda") if has_cuda() else f"cuda -arch={find_device('h100').arch}"
staged = lower_stages(net, units, found, LowerOptions(target=target))
print(f"{staged['staged'].script().count('StreamSyncFromTo')} events, {len(staged.get_global_vars())} functions")
if has_cuda():
    session = Session(compile_stages(staged, cuda_target(target)), tvm.cuda(0))
    np.testing.assert_allclose(session.run(x)[0], results["sequential"], rtol=1e-4, atol=1e-5)
    print(f"median {np.median(session.times_ms([x], 100)):.4f} ms")
else:
    print("no CUDA device here: the module is ready for `tvm.compile`")
