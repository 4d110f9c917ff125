"""What is read off an operator's stages against what its scheduled kernels do, for every operator that is imported."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_cascade.cores import kernel_target
from tvm_cascade.errors import CascadeError
from tvm_cascade.frontend import load
from tvm_cascade.graph import IDENTITY
from tvm_cascade.passes import windows
from tvm_cascade.passes.extract_graph import analyse
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.passes.prepare_graph import prepare_graph
from tvm_cascade.passes.relax_ops import Source, read_function
from tvm_cascade.schedules.kernels import kernel
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.assembly import Assembly
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import pixel_kernel
from tvm_cascade.schedules.kernels.row_kernel import row_kernel
from tvm_cascade.schedules.kernels.stages import computes_parts, stages_of
from tvm_cascade.schedules.rules.emit import KernelBuilder
from tvm_cascade.schedules.tir import te
from tvm_cascade.testing import activation_cases, choice_cases, move_cases, operator_cases, weighted_cases
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.tflite import ModelWriter

FAMILIES: tuple[Any, ...] = (operator_cases, activation_cases, choice_cases, move_cases, weighted_cases)


@pytest.fixture
def kernels_are_built_once() -> None:
    """What is staged is counted here: every test builds its own."""


def sources(family: Any, path: Path) -> list[Source]:
    """A network of each operator of a family, for every type that it has."""
    made: list[Source] = []
    lower: Any = LowerQuantized()
    for name, generate in family.OPERATORS.items():
        for dtype in ("int8", "uint8", "int16", "float32"):
            writer = ModelWriter()
            try:
                generate(np.random.default_rng(len(made) + len(name)), dtype, writer)
                path.write_bytes(writer.finish())
                made.append(read_function(lower(load(path)), "main"))
            except (CascadeError, KeyError, ValueError, OverflowError):  # the operator lacks this type
                continue
    return made


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__.rpartition(".")[2])
def test_graphs_are_those_of_built_kernels(family: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, work and reasons are the same where all rows are asked and all kernels built; few operators need that."""
    found, asked = sources(family, tmp_path / "one.tflite"), Counter[bool]()

    def counted(func: Any) -> Any:
        stages = stages_of(func)
        asked[stages is not None] += 1
        return stages

    module = sys.modules["tvm_cascade.passes.extract_graph"]
    monkeypatch.setattr(module, "stages_of", counted)
    quick = [analyse(s) for s in found]
    monkeypatch.setattr(module, "stages_of", lambda _func: None)
    monkeypatch.setattr(windows, "is_affine", lambda _index: False)
    built = [analyse(s) for s in found]
    assert [e.graph for e in quick] == [e.graph for e in built]
    assert [[o and o.access for o in e.operators] for e in quick] == [
        [o and o.access for o in e.operators] for e in built
    ]
    assert len(found) > 2 * len(family.OPERATORS) and asked[True] > 6 * asked[False]


def test_planning_builds_no_kernel_that_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Performance schedules serve all of this network: no generic kernel is built, and none is written in full."""
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 8, 8, 3)), 8, kernel=3)
    mod = LowerQuantized()(net.finish([net.dense(net.flatten(net.global_pool(net.add(x, net.depthwise(x)))), 4)]))
    calls = Counter[str]()
    staged, named = Assembly.staged, KernelBuilder.kernel

    def count_staged(self: Assembly, func: Any) -> Any:
        calls["generic"] += 1
        return staged(self, func)

    def count_written(self: KernelBuilder, emit: Any, rows: int = 1, form: Any = None) -> Any:
        calls["chosen"] += 1
        return named(self, lambda: (calls.update(["written"]), emit()), rows, form)

    monkeypatch.setattr(Assembly, "staged", count_staged)
    monkeypatch.setattr(KernelBuilder, "kernel", count_written)
    monkeypatch.setattr(kernel, "_FORMS", {})  # functions that other tests wrote are not written again
    prepared = prepare_graph(mod, kernel_target("cortex-m4"))
    assert (
        calls["chosen"] == len([k for k in prepared.kernels if k is not None]) > 4
        and not calls["generic"]
        and not calls["written"]
    )
    assert [k is not None and k.func is k.func for k in prepared.kernels].count(True) == calls["written"] > 0
    assert prepared.extracted.operators[0] is not None
    first = prepared.extracted.operators[0]
    assert first.kernel.func is first.kernel.func and calls["generic"] == 1


COLUMN = te.reduce_axis((0, 4), "column")


@pytest.mark.parametrize(
    ("last", "by_rows", "by_pixels"),
    [
        (lambda t: lambda n, y, x, c: t[n, y, x, c] * t[n, y, x, c], True, True),
        (lambda t: lambda n, y, x, c: te.sum(t[n, y, COLUMN, c], axis=COLUMN), True, False),
        (lambda t: lambda n, y, x, c: t[n, y, x, c] * t[n, 5 - y, x, c], False, False),
        (lambda t: lambda n, y, x, c: t[n, y, x, c] * t[n, te.max(y - 1, 0), x, c], False, False),
    ],
)
def test_parts_need_parts_of_every_stage(last: Any, by_rows: bool, by_pixels: bool) -> None:
    x = te.placeholder((1, 6, 4, 2), "float32", name="x")
    t = te.compute(x.shape, lambda *i: te.exp(x(*i)), "t")
    func = te.create_prim_func([x, te.compute(x.shape, last(t), "y")], index_dtype_override="int32")
    stages = stages_of(func)
    assert stages is not None and len(stages) == 2
    assert computes_parts(stages, func.params, (1,)) is by_rows
    assert computes_parts(stages, func.params, (1, 2)) is by_pixels
    access = RowAccess((IDENTITY,), (1,), (1,), None, (IDENTITY,))
    assert row_kernel(func, (), access).whole is not by_rows
    assert isinstance(pixel_kernel(func, (), access), RowKernel) is by_pixels
