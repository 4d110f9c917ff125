"""
The example of Arm's RFC "Cascade scheduling"
=============================================

By hand, with the schedule primitives ``stripe`` and ``rolling_buffer``, and by the planner.

.. code-block:: console

    $ python tutorials/07_the_rfc_example.py

A 26x26x3 image goes through a 3x3 convolution to 32 channels and a 1x1 convolution to 8. The map between them, 24x24x32,
is the largest tensor of the network and never needed whole: sixteen stripes of 6x6 need a sixteenth of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te

from tvm_cascade import pipeline
from tvm_cascade.cascading import plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules import buffer_bytes, rolling_buffer, stripe
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.plan_options import rows_alone

# %%
# The network
# -----------
# Convolution A, then convolution B, in TVM's tensor expressions: int8 in, int8 out, sums in int32.


def convolution(x: Any, weights: Any, name: str) -> Any:
    kh, kw, depth, channels = (int(d) for d in weights.shape)
    n, h, w, _ = (int(d) for d in x.shape)
    ry, rx, rc = (te.reduce_axis((0, e), v) for e, v in ((kh, "ry"), (kw, "rx"), (depth, "rc")))

    def product(b: Any, y: Any, q: Any, f: Any) -> Any:
        value = x[b, y + ry, q + rx, rc].astype("int32") * weights[ry, rx, rc, f].astype("int32")
        return te.sum(value, axis=[ry, rx, rc])

    acc: Any = te.compute((n, h - kh + 1, w - kw + 1, channels), product, name=f"{name}_acc")
    return te.compute(acc.shape, lambda b, y, q, f: (acc[b, y, q, f] >> 9).astype("int8"), name=name)


def network(second: int) -> Any:
    """Convolution A, then convolution B with a kernel of `second` x `second`."""
    x, w = te.placeholder((1, 26, 26, 3), "int8", "x"), te.placeholder((3, 3, 3, 32), "int8", "w")
    v = te.placeholder((second, second, 32, 8), "int8", "v")
    return te.create_prim_func([x, w, v, convolution(convolution(x, w, "a"), v, "b")], index_dtype_override="int32")


# %%
# Every form is compiled and compared with the plain one on the same values.


def run(func: Any, feed: list[np.ndarray]) -> np.ndarray:
    shape = tuple(int(d) for d in func.params[-1].ty.shape)
    out = tvm.runtime.tensor(np.zeros(shape, "int8"))
    tvm.compile(func, tvm.target.Target("llvm"))(*(tvm.runtime.tensor(a) for a in feed), out)
    return out.numpy()


def show(title: str, func: Any, feed: list[np.ndarray], want: np.ndarray) -> bool:
    equal = np.array_equal(run(func, feed), want)
    print(f"  {title:<36} {buffer_bytes(func)['a']:>7} bytes between A and B   equal: {equal}")
    return equal


# %%
# By hand
# -------
# ``stripe`` cuts the output of B into pieces, and makes of A only what a piece reads. A 3x3 convolution B reads what lies
# around a stripe too: of stripes of one row it would compute two of three rows of A again, and ``rolling_buffer`` keeps these.
rng = np.random.default_rng(0)
x, w = (rng.integers(-128, 128, s).astype("int8") for s in ((1, 26, 26, 3), (3, 3, 3, 32)))
right = True
for kernel in (1, 3):
    func = network(kernel)
    feed = [x, w, rng.integers(-128, 128, (kernel, kernel, 32, 8)).astype("int8")]
    want = run(func, feed)
    print(f"B is {kernel}x{kernel}:")
    right &= show("layer by layer", func, feed, want)
    side = 6 if kernel == 1 else 11  # of 24 or 22 columns
    right &= show(f"stripes of {side}x{side}", stripe(func, side, side), feed, want)
    rows = stripe(func, 1)
    right &= show("stripes of one row", rows, feed, want)
    if kernel > 1:
        right &= show("stripes of one row, rolling", rolling_buffer(rows, "a"), feed, want)

# %%
# Two levels
# ----------
# First the cascade, then the performance of each sub-operator: what the RFC calls hierarchical scheduling. Here the sums of A
# are vectorized inside of its stripes.
func = network(1)
sch: Any = s_tir.Schedule(stripe(func, 6, 6))
sums = sch.get_sblock("a_acc")
*_, channels, ry, rx, rc = sch.get_loops(sums)
sch.reorder(ry, rx, rc, channels)
sch.vectorize(channels)
sch.decompose_reduction(sums, ry)
feed = [rng.integers(-128, 128, tuple(int(d) for d in p.ty.shape)).astype("int8") for p in func.params[:3]]
right &= show("stripes of 6x6, scheduled", sch.mod["main"], feed, run(func, feed))

# %%
# By the planner
# --------------
# The same network as a Relax module: the planner finds rows, and pixels, by itself. These are the bytes of the whole arena:
# input, output and counters are in it.
net = Net("int8")
mod = net.finish(net.conv(net.conv(net.input((1, 26, 26, 3)), 32, 3, padding="valid"), 8, 1))
graph = pipeline.prepare(mod, KernelTarget()).graph
between = graph.ops[0].outputs[0]
peaks = []
for title, options in (
    ("layer by layer", rows_alone(layerwise=True)),
    ("rings of rows", rows_alone(granularity="row", overlap=False)),
    ("rings of pixels", rows_alone(pixels=True, overlap=False)),
    ("output behind the dying input", rows_alone(pixels=True)),
):
    plan = plan_graph(graph, options)
    peaks.append(plan.peak)
    print(f"  {title:<36} {plan.peak:>7} bytes, {plan.storages[between].size} of them between A and B")
    assert plan.macs == plan.baseline_macs
if not right or peaks != sorted(peaks, reverse=True) or peaks[-1] > peaks[0] / 3:
    raise SystemExit(1)
