"""The network for `stages`: in a precision, Conv1d as a single row and, for CUDA, with channels last."""

from __future__ import annotations

import tvm

from tvm_cascade.cost.precision import require_architecture
from tvm_cascade.errors import UsageError
from tvm_cascade.passes.layout.channels_last import images_last, in_one_row
from tvm_cascade.staging.program.graph import StageGraph, simplify, stage_graph
from tvm_cascade.staging.program.integers import with_integer_kernels
from tvm_cascade.staging.program.norms import with_whole_norms
from tvm_cascade.staging.program.precision import FP32, TF32, in_precision
from tvm_cascade.staging.program.transposes import with_plain_transposes


def stage_network(mod: tvm.IRModule, target: str, precision: str = FP32) -> StageGraph:
    """Read the graph of `mod` for a target, `llvm` or `cuda ...`.

    Raises the errors of `stage_graph` and `in_precision`, and `UsageError` for a precision without arithmetic on the
    target's architecture.
    """
    if precision == TF32 and not target.startswith("cuda"):
        raise UsageError("--precision tf32 is of tensor cores: give --target cuda, or fp32")
    for word in target.split():
        if word.startswith("-arch="):
            require_architecture(precision, word.removeprefix("-arch="))
    mod = with_plain_transposes(in_one_row(mod))
    laid_out = images_last(simplify(mod)) if target.startswith("cuda") else with_integer_kernels(with_whole_norms(mod))
    return in_precision(stage_graph(laid_out), precision)
