"""The runner of a network's stages for a bench, and the analytic model for this bench."""

from __future__ import annotations

from pathlib import Path

from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.measured.measure import CpuRunner, NetworkRunner
from tvm_cascade.measured.measure_cuda import CudaRunner
from tvm_cascade.parallel.units import UnitGraph
from tvm_cascade.runtime.bench import Bench
from tvm_cascade.staging.kernels.records import TunedKernels
from tvm_cascade.staging.program.graph import StageGraph


def runner_on(
    bench: Bench,
    net: StageGraph,
    units: UnitGraph,
    metaschedule: str | Path | None = None,
    streams: int | None = None,
) -> NetworkRunner:
    """Make a runner for a network read for the bench's target.

    `metaschedule`: folder with records of tuned kernels to measure. `streams`: for a GPU; None: one per unit.
    """
    if bench.target.startswith("cuda"):
        return CudaRunner(net, units, bench, metaschedule, streams)
    return CpuRunner(net, units, tuned=TunedKernels(metaschedule, bench.target), bench=bench)


def analytic_of(bench: Bench) -> AnalyticCost:
    """Return the analytic model for a processor with the bench's threads, or for a GPU."""
    gpu = bench.target.startswith("cuda")
    return AnalyticCost(find_device(None, "cuda") if gpu else find_device("cpu", "llvm", bench.workers))
