"""
Fit MobileNetV2 into 256 KiB
============================

MobileNetV2 at 224x224 in 256 KiB of RAM: what each idea brings, and that nothing changes.

.. code-block:: console

    $ python tutorials/02_fit_mobilenetv2_into_256KiB.py

Layer by layer its largest step holds 1,505,280 bytes of activations, six times what the board has. No weight is pruned and
no resolution lowered here, and not one multiply-accumulate is added: only the order in which rows are computed changes.
"""

from __future__ import annotations

import numpy as np

from tvm_cascade import pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import KernelTarget
from tvm_cascade.emit.host import host_program, run_host
from tvm_cascade.emit.placement import place_io
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.report.steps import step_table
from tvm_cascade.report.text import summary
from tvm_cascade.tensor_spec import graph_io
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.zoo.mobilenet import mobilenet_v2

CAP = 256 * 1024
CAN = {"pixels": True, "accumulators": True}  # what the emitter can do

# %%
# The network
# -----------
# With random weights: memory does not depend on them.
prepared = pipeline.prepare(mobilenet_v2(), KernelTarget())
graph = prepared.graph
print(
    f"MobileNetV2: {len(graph.ops)} operators, {graph.macs} multiply-accumulates, {graph.weight_bytes} bytes of weights"
)

# %%
# Layer by layer
# --------------
# As every other tool would run it. The error says what is missing and where.
try:
    plan_graph(graph, rows_alone(layerwise=True, sram=CAP))
except InfeasibleError as why:
    print(f"layer by layer: {why}")

# %%
# What each idea brings
# ---------------------
# Rolling buffers, then outputs that follow their dying inputs, then rings that count pixels. The work stays the same.
for what, options in (
    ("rolling buffers of rows", rows_alone(granularity="row", overlap=False)),
    ("outputs behind dying inputs", rows_alone(granularity="row")),
    ("sums instead of the last map", rows_alone(granularity="row", accumulators=True)),
    ("rings of pixels", rows_alone(**CAN)),
    ("the input asked for row by row", rows_alone(stream_input=True, **CAN)),
):
    plan = plan_graph(graph, options)
    print(f"{what:<32} {plan.peak:>8} bytes  (bound {plan.bound})")

# %%
# Under the cap
# -------------
# The plan that costs least within 256 KiB.
options = rows_alone(sram=CAP, **CAN)
plan = plan_graph(graph, options)
print(f"{summary(plan)}\n\n{step_table(plan)}")

# %%
# The same answers, the same work
# -------------------------------
# Both plans run in this process, built so that they count their multiply-accumulates.


def run(planned_by: PlanOptions, feed: np.ndarray) -> tuple[np.ndarray, int]:
    """Outputs and multiply-accumulates of a plan."""
    plan = plan_graph(graph, planned_by)
    io = place_io(plan, graph_io(plan.graph))
    result = run_host(host_program(pipeline.lower(prepared, plan, counted=True), io), [{io.inputs[0].name: feed}])
    return result.outputs[0][io.outputs[0].name], result.executed_macs


size = graph.tensors[graph.inputs[0]].shape
feed = np.random.default_rng(0).integers(-128, 128, size).astype(np.int8)
plain, work = run(rows_alone(layerwise=True), feed)
cascaded, same_work = run(options, feed)
print(f"equal outputs: {np.array_equal(plain, cascaded)}; multiply-accumulates {work} and {same_work}")
if not np.array_equal(plain, cascaded) or work != same_work or plan.peak > CAP:
    raise SystemExit(1)
