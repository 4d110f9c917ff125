"""dlight's schedules for kernels on which one of its rules fails."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tvm
from tvm import te
from tvm.s_tir import dlight

from tvm_cascade.errors import GraphError, UsageError
from tvm_cascade.staging.kernels.cuda_default import (
    architecture_of,
    cuda_target,
    frames_without_files_known,
    schedule_cuda,
)

TARGET = "cuda -arch=sm_90"


def attention(tokens: int = 77) -> tvm.IRModule:
    """The weights of one query token: (1, 8, 1, 64) by (1, 8, tokens, 64)."""
    query, key = (
        te.placeholder(shape, "float32", name=name) for shape, name in (((1, 8, 1, 64), "q"), ((1, 8, tokens, 64), "k"))
    )
    d = te.reduce_axis((0, 64), "d")
    weights = te.compute(
        (1, 8, 1, tokens), lambda b, h, i, j: te.sum(query[b, h, i, d] * key[b, h, j, d], d), "weights"
    )
    return tvm.IRModule({"attend": te.create_prim_func([query, key, weights])})


def test_the_attention_of_one_token_has_a_schedule():
    made = schedule_cuda(attention(), TARGET)
    assert "threadIdx.x" in made["attend"].script()


def test_a_rule_that_fails_is_told_and_the_next_is_taken(monkeypatch, caplog):
    def fail(self, func, target, tunable):
        assert len(func.params) == 0, "Not supported yet"

    for rule in (dlight.gpu.Matmul, dlight.gpu.GEMV):
        monkeypatch.setattr(rule, "apply", fail)
    with caplog.at_level(logging.INFO, logger="tvm_cascade"):
        made = schedule_cuda(attention(), TARGET)
    assert "threadIdx.x" in made["attend"].script()
    assert [r.args[0] for r in caplog.records if r.name == "tvm_cascade"] == ["Matmul", "GEMV"]
    assert "Not supported yet" in caplog.text


def test_a_kernel_that_no_rule_schedules_is_refused(monkeypatch):
    for rule in ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback"):
        monkeypatch.setattr(getattr(dlight.gpu, rule), "apply", lambda *_: None)
    with pytest.raises(GraphError, match="kernel attend has no schedule for CUDA"):
        schedule_cuda(attention(), TARGET)


@pytest.mark.parametrize("target", ["cuda", "cuda -arch=90"])
def test_the_architecture_is_never_guessed(target):
    assert architecture_of(TARGET) == "sm_90"
    with pytest.raises(UsageError, match="--arch sm_90"):
        cuda_target(target)


def test_frames_without_files_are_looked_up_and_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of TVM's 248 intrinsics for tensor cores looks at the stack while it is imported."""
    asked: list[str] = []

    class Module(ModuleType):
        def __getattr__(self, name: str) -> str:
            asked.append(name)
            raise AttributeError(name)

    frame = vars(importlib)["_bootstrap"]._find_and_load.__code__
    assert not Path(frame.co_filename).exists()
    monkeypatch.setitem(sys.modules, "tvm_cascade.test.module", Module("module"))
    for cache in ("modulesbyfile", "_filesbymodname"):
        monkeypatch.setattr(inspect, cache, {})
    inspect.getmodule(frame, frame.co_filename)
    assert "__file__" in asked
    asked.clear()
    with frames_without_files_known():
        assert inspect.getmodule(frame, frame.co_filename) is not None and not asked
    assert not inspect.modulesbyfile.keys() & {frame.co_filename}
