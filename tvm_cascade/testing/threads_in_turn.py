"""Kernels for CUDA on a CPU: the loops of their threads run one after the other."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_cascade.schedules.tir import tvm_ffi


def in_turn(func: Any) -> Any:
    """A scheduled kernel whose threads run in turn: what one may compute that shares memory between loops of all its threads."""

    def turn(loop: Any, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, turn)]))
