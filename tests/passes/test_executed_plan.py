"""Plans are run on random data beside their network: what is misread is found by `compile` and by the Relax pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import PlanOptions, plan_graph
from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.errors import ValidationError
from tvm_cascade.graph import Tensor
from tvm_cascade.passes import executed_plan
from tvm_cascade.passes.executed_plan import NotExecutedError, check_executed
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.schedules.kernels import pixel_kernel
from tvm_cascade.schedules.tir import te, tirx
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.random_models.operators import Operators

relax: Any = _relax  # its nodes get their fields at run time


def _network(shape: tuple[int, ...], write: Callable[[Any, Any], Any], dtype: str = "float32") -> tvm.IRModule:
    builder: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(write(builder.emit, x))
        builder.emit_func_output(out)
    return builder.get()


def _gathers(columns: int) -> tvm.IRModule:
    """Gathers of a flattened plane: an input of rank 3, counted in rows, and an output of rank 4, counted in pixels."""
    indices = [np.random.default_rng(k).integers(0, columns, (2, 3)) for k in range(2)]

    def write(emit: Any, x: Any) -> Any:
        plane = emit(relax.op.reshape(x, (1, 2, columns)))
        taken = [emit(relax.op.take(plane, relax.const(i), axis=2)) for i in indices]
        return emit(relax.op.nn.relu(emit(relax.op.add(*taken))))

    return _network((1, 2, 2, columns // 2), write)


def _reshaped_broadcast(size: int) -> tvm.IRModule:
    """A view whose rows are as many, of as many bytes, as those of the broadcast tensor, but run across them."""

    def write(emit: Any, x: Any) -> Any:
        wide = emit(relax.op.broadcast_to(emit(relax.op.expand_dims(x, 2)), (1, size, 2, size, 2)))
        return emit(relax.op.nn.softmax(emit(relax.op.reshape(wide, (1, 2 * size, size, 2))), axis=1))

    return _network((1, size, size, 2), write)


def _misread_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of pixels take tensors of rank 3 for streams of pixels, which the driver counts in rows."""

    def columns(shape: tuple[int, ...], axis: int | None) -> int | None:
        return axis + 1 if axis is not None and len(shape) > axis + 1 else None

    monkeypatch.setattr(pixel_kernel, "column_axis", columns)


def _misread_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is taken for one plane, so that views are thought to keep the rows of what they see."""
    monkeypatch.setattr(Tensor, "planes", property(lambda _: 1))


# sizes that no other test has: what is misread may stay in caches of kernels and plans
FAULTS = pytest.mark.parametrize(
    ("misread", "network", "size"),
    [(_misread_pixels, _gathers, 34), (_misread_planes, _reshaped_broadcast, 6)],
    ids=["pixels", "planes"],
)


@FAULTS
def test_a_misread_plan_is_not_compiled(
    misread: Callable[[pytest.MonkeyPatch], None],
    network: Callable[[int], tvm.IRModule],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    misread(monkeypatch)
    with pytest.raises(ValidationError, match=r"the plan is wrong .* please report it, and compile with --layerwise"):
        api.compile(network(size), output=tmp_path / "out", target="host")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    api.compile(network(size + 6), output=tmp_path / "right", target="host")


@FAULTS
def test_what_executes_a_plan_needs_no_replay(
    misread: Callable[[pytest.MonkeyPatch], None],
    network: Callable[[int], tvm.IRModule],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    misread(monkeypatch)
    prepared = pipeline.prepare(network(size + 2), KernelTarget())
    with pytest.raises(ValidationError, match="differs from the network without a plan"):
        check_executed(prepared, plan_graph(prepared.graph, PlanOptions()))


@FAULTS
def test_the_pipeline_leaves_to_tvm_what_is_misread(
    misread: Callable[[pytest.MonkeyPatch], None],
    network: Callable[[int], tvm.IRModule],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mod = network(size + 4)
    x = np.random.default_rng(3).standard_normal([int(d) for d in mod["main"].params[0].ty.shape]).astype(np.float32)
    want = quick_run(mod, x)[0]
    misread(monkeypatch)
    with caplog.at_level(logging.WARNING, logger="tvm_cascade"):
        built = tvm.compile(mod, "llvm", relax_pipeline=cascade_pipeline(objective="bytes"))
    assert "a plan is wrong" in caplog.text
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)


def _quantized() -> tvm.IRModule:
    net = Net("int8")
    wide = net.conv(net.input((1, 12, 12, 3)), 8, 3)
    narrow = net.depthwise(wide, 3)
    return net.finish(net.softmax(net.dense(net.flatten(net.add(wide, narrow)), 5)))


@pytest.mark.parametrize("core", ["host", "cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32"])
def test_kernels_of_every_core_run_here(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for other machines are run as they are emitted, their instructions written for this one."""
    compared: list[str] = []
    check = executed_plan._Comparison.check

    def counted(self: Any, tensor: Tensor, got: np.ndarray) -> None:
        compared.append(tensor.name)
        check(self, tensor, got)

    monkeypatch.setattr(executed_plan._Comparison, "check", counted)
    monkeypatch.setattr(executed_plan, "run_apart", lambda check, _declined: check())  # which tells what it compared
    prepared = pipeline.prepare(_quantized(), kernel_target(core))
    for options in (PlanOptions(), PlanOptions(layerwise=True), PlanOptions(stream_input=True)):
        plan = plan_graph(prepared.graph, options)
        compared.clear()
        check_executed(prepared, plan)
        assert prepared.graph.tensors[prepared.graph.outputs[0]].name in compared
    assert len(compared) >= 1


def test_a_write_outside_of_the_arena_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = pipeline.prepare(_quantized(), KernelTarget())
    plan = plan_graph(prepared.graph, PlanOptions())
    own = executed_plan._Program.__init__

    def smaller(self: Any, *args: Any) -> None:
        own(self, *args)
        self.room -= 16

    monkeypatch.setattr(executed_plan._Program, "__init__", smaller)
    with pytest.raises(ValidationError, match="writes outside of its memories"):
        check_executed(prepared, plan)


def _looked_up(clamped: bool) -> Any:
    """A PrimFunc `out[i] = table[x[i]]`, of a table of six elements."""
    table, x = te.placeholder((6,), "float32", "table"), te.placeholder((5,), "int32", "x")

    def element(i: Any) -> Any:
        return table[tirx.min(tirx.max(x[i], tirx.const(0, "int32")), tirx.const(5, "int32")) if clamped else x[i]]

    made = te.create_prim_func([x, table, te.compute((5,), element, "looked_up")], index_dtype_override="int32")
    return made.with_attr("global_symbol", "looked_up")


@pytest.mark.parametrize(("clamped", "offset", "runs"), [(True, 99, True), (False, 0, True), (False, 99, False)])
def test_indices_lie_inside_of_what_they_index(clamped: bool, offset: int, runs: bool) -> None:
    """Inputs that are indices are zeros; what is computed from them may lie anywhere, which only clamps mend."""
    builder: Any = relax.BlockBuilder()
    gv = builder.add_func(_looked_up(clamped), "looked_up")
    x = relax.Var("x", relax.TensorType((5,), "int32"))
    table = relax.const(np.arange(6, dtype=np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(relax.op.add(x, relax.const(offset, "int32")))
            taken = builder.emit(relax.op.call_tir(gv, [moved, table], out_ty=relax.TensorType((5,), "float32")))
            out = builder.emit_output(relax.op.nn.relu(taken))
        builder.emit_func_output(out)
    prepared = pipeline.prepare(builder.get(), KernelTarget())
    plan = plan_graph(prepared.graph, PlanOptions())
    if runs:
        check_executed(prepared, plan)
    else:
        with pytest.raises(NotExecutedError, match="reads at indices that are random"):
            check_executed(prepared, plan)


def test_divisors_that_may_be_zero_are_not_run() -> None:
    prepared = pipeline.prepare(
        _network((5,), lambda emit, x: emit(relax.op.floor_divide(x, x)), "int32"), KernelTarget()
    )
    with pytest.raises(NotExecutedError, match="divides integers by what it computes"):
        check_executed(prepared, plan_graph(prepared.graph, PlanOptions()))


def test_large_networks_are_replayed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = pipeline.prepare(_quantized(), KernelTarget())
    plan = plan_graph(prepared.graph, PlanOptions())
    monkeypatch.setattr(executed_plan, "MOST_MACS", plan.macs - 1)
    with pytest.raises(NotExecutedError, match="multiply-accumulates"):
        check_executed(prepared, plan)


def test_sums_of_floats_in_another_order_are_no_fault() -> None:
    assert executed_plan._near(np.float32([1, 2, 3.0001]), np.float32([1, 2, 3]), 0.0)
    assert not executed_plan._near(np.float32([1, 2, 3.01]), np.float32([1, 2, 3]), 0.0)
    assert executed_plan._near(np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), 0.0)
    assert not executed_plan._near(np.float32([0, 1]), np.float32([np.nan, 1]), 0.0)


def test_views_of_a_streamed_input_are_compared_after_it_has_arrived(tmp_path: Path) -> None:
    drawn = (
        ("batch_to_space", "float32", 1015078267),
        ("max_pool2d", "int8", 672172304),
        ("expand_dims", "float32", 953230778),
        ("gather_nd", "float32", 204723610),
        ("space_to_batch", "int16", 152793729),
    )
    path = tmp_path / "operators.tflite"
    path.write_bytes(Operators(0, "tflite", 0, drawn).tflite())
    api.compile(path, target="host", output=tmp_path / "project", stream_input=True)
