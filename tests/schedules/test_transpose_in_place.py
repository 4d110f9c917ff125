"""A leading NCHW to NHWC transpose in the bytes of its input."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import api, pipeline
from tvm_cascade.cascading import layerwise, offsets_of, plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import ValidationError
from tvm_cascade.footprints import ROW_KERNEL_ONLY
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.schedules.forms.transpose_in_place import FORM, row_moves
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.plan_options import rows_alone
from tvm_cascade.testing.quick_build import virtual_machine

pytestmark = pytest.mark.usefixtures("quick_host")

relax: Any = _relax
SHAPE = (1, 3, 15, 14)  # NCHW
CAN: dict[str, Any] = {"pixels": True, "accumulators": True, "stripes": True, "in_place": True}


def network(axes: tuple[int, ...] = (0, 2, 3, 1)) -> tvm.IRModule:
    net = Net("int8", seed=9)
    x = net.input(SHAPE, "x")
    turned = net._emit(relax.op.permute_dims(x.expr, list(axes)))
    image = Value(turned, tuple(SHAPE[a] for a in axes), x.scale, x.zero_point)
    y = net.conv(net.depthwise(net.conv(image, 8, 3, 2), 3), 8, 1)
    return net.finish(net.global_pool(net.conv(y, 16, 3, 2)))


@pytest.fixture(scope="module")
def prepared() -> pipeline.Prepared:
    return pipeline.prepare(network(), KernelTarget())


@pytest.mark.parametrize(("planes", "height"), [(3, 5), (2, 2), (4, 4), (16, 7), (3, 224)])
def test_moves_of_rows(planes: int, height: int) -> None:
    rows = np.arange(planes * height + 1)
    for to, source in pairwise(row_moves(planes, height).tolist()):
        rows[to] = rows[source]
    expected = np.arange(planes * height).reshape(planes, height).T.ravel()
    np.testing.assert_array_equal(rows[:-1], expected)


@pytest.mark.parametrize("layer_by_layer", [True, False])
def test_it_takes_the_input_s_place(prepared: pipeline.Prepared, layer_by_layer: bool) -> None:
    options = rows_alone(layerwise=layer_by_layer, **CAN)
    beside = plan_graph(prepared.graph, replace(options, in_place=False))
    plan = plan_graph(prepared.graph, options)
    assert plan.segments[0].in_place == (0,) and plan.segments[0].trace == (0,)
    assert plan.segments[0].scratch_bytes == 2 * 14
    places = offsets_of(plan)
    assert places["tensor 0"] == places["tensor 1"]
    assert plan.peak < beside.peak
    validate(plan)
    x = np.random.default_rng(0).integers(-128, 128, SHAPE).astype("int8")
    machine = virtual_machine(LowerQuantized()(network()))
    run = run_plan(prepared, plan, [x])
    np.testing.assert_array_equal(run.outputs[0], machine["main"](tvm.runtime.tensor(x)).numpy())
    assert run.arena_high_water <= plan.peak


def enlarged() -> tvm.IRModule:
    """The transpose's output and what is made of it take more than input and output: room to lie apart."""
    net = Net("int8", seed=9)
    x = net.input(SHAPE, "x")
    image = Value(net._emit(relax.op.permute_dims(x.expr, [0, 2, 3, 1])), (1, 15, 14, 3), x.scale, x.zero_point)
    return net.finish(net.global_pool(net.conv(image, 16, 3)))


def test_it_takes_the_input_s_place_where_there_is_room_beside() -> None:
    prepared = pipeline.prepare(enlarged(), KernelTarget())
    plan = plan_graph(prepared.graph, rows_alone(layerwise=True, **CAN))
    places, room = offsets_of(plan), plan.graph.tensors[0].bytes
    assert plan.segments[0].in_place == (0,) and plan.peak >= 2 * room + plan.segments[0].scratch_bytes
    assert places["tensor 0"] == places["tensor 1"]
    at = plan.buffers.index("tensor 0")
    scratch = plan.segments[0].scratch_bytes
    taken = [(places["tensor 1"], room), (places["scratch 0"], scratch)]
    free = next(o for o in range(0, plan.peak - room + 1, 4) if all(o + room <= p or p + n <= o for p, n in taken))
    apart = [free if n == at else o for n, o in enumerate(plan.allocation.offsets)]
    with pytest.raises(ValidationError, match="the very bytes that it reads"):
        validate(replace(plan, allocation=replace(plan.allocation, offsets=tuple(apart))))


def test_nothing_goes_over_its_input_that_is_asked_not_to(prepared: pipeline.Prepared) -> None:
    for options in (rows_alone(overlap=False, **CAN), rows_alone(stream_input=True, **CAN)):
        assert not any(s.in_place for s in plan_graph(prepared.graph, options).segments)


def test_beside_its_input_it_is_refused(prepared: pipeline.Prepared) -> None:
    plan = layerwise(prepared.graph, rows_alone(layerwise=True, **CAN))
    offsets = list(plan.allocation.offsets)
    offsets[plan.buffers.index("tensor 1")] += 4
    wrong = replace(plan.allocation, offsets=tuple(offsets), peak=plan.peak + 4)
    with pytest.raises(ValidationError):
        validate(replace(plan, allocation=wrong))


def test_other_permutations_are_left_alone() -> None:
    other = pipeline.prepare(network((0, 3, 2, 1)), KernelTarget())
    assert (other.graph.ops[0].kind, other.graph.ops[0].kernels.in_place_workspace_bytes) == ("transpose", 0)
    site = other.site(0)
    assert site is not None and "no transpose from NCHW to NHWC" in str(FORM.footprint(site, ROW_KERNEL_ONLY))


def image_to_image() -> tvm.IRModule:
    """Channels first on both sides: what a network that makes images looks like when it comes from PyTorch or ONNX."""
    net = Net("int8", seed=9)
    x = net.input(SHAPE, "x")
    image = Value(net._emit(relax.op.permute_dims(x.expr, [0, 2, 3, 1])), (1, 15, 14, 3), x.scale, x.zero_point)
    y = net.conv(net.conv(image, 8, 3, padding="same", activation="relu"), 3, 3, padding="same")
    return net.finish(Value(net._emit(relax.op.permute_dims(y.expr, [0, 3, 1, 2])), SHAPE, y.scale, y.zero_point))


def test_an_image_goes_back_in_place() -> None:
    """Both transposes take the bytes of their inputs: the arena is smaller than beside them, planned and measured."""
    prepared = pipeline.prepare(image_to_image(), KernelTarget())
    last = len(prepared.graph.ops) - 1
    assert prepared.graph.ops[last].kernels.in_place_workspace_bytes == 2 * 14
    options = rows_alone(overlap=True, **CAN)
    plan = plan_graph(prepared.graph, options)
    ops = [
        replace(op, kernels=replace(op.kernels, in_place_workspace_bytes=0)) if op.index == last else op
        for op in prepared.graph.ops
    ]
    before = plan_graph(replace(prepared.graph, ops=tuple(ops)), options)
    assert any(last in s.in_place for s in plan.segments) and plan.peak < before.peak
    validate(plan)
    x = np.random.default_rng(0).integers(-128, 128, SHAPE).astype("int8")
    machine = virtual_machine(LowerQuantized()(image_to_image()))
    run = run_plan(prepared, plan, [x])
    np.testing.assert_array_equal(run.outputs[0], machine["main"](tvm.runtime.tensor(x)).numpy())
    assert run.arena_high_water == plan.peak and run.executed_macs == plan.macs


@pytest.mark.emulator
@pytest.mark.parametrize(("target", "backend"), [("cortex-m4", "c"), ("cortex-m55", "obj")])
def test_firmware_turns_images_in_place(target: str, backend: str, emulator: None, tmp_path: Path) -> None:
    made = api.compile(image_to_image(), target=target, emit=backend, output=tmp_path / "p")
    assert sum(len(s.in_place) for s in made.plan.segments) == 2
    assert api.run(tmp_path / "p", board=made.board).equals_host


def there_and_back(planes: int, samples: int, dtype: Any) -> tvm.IRModule:
    """A signal that comes and goes channels first."""
    net = Net(dtype, seed=9)
    x = net.input((1, planes, 1, samples), "x")
    last = (1, 1, samples, planes)
    signal = Value(net._emit(relax.op.permute_dims(x.expr, [0, 2, 3, 1])), last, x.scale, x.zero_point)
    y = net.conv(signal, planes, (1, 3), activation="relu")
    return net.finish(Value(net._emit(relax.op.permute_dims(y.expr, [0, 3, 1, 2])), x.shape, y.scale, y.zero_point))


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize(("planes", "samples"), [(2, 11), (3, 97), (4, 101), (7, 97), (16, 23), (12, 131)])
def test_signals_of_any_length_turn_in_place(planes: int, samples: int, dtype: Any) -> None:
    """Nothing divides these lengths."""
    mod = there_and_back(planes, samples, dtype)
    prepared = pipeline.prepare(mod, KernelTarget())
    turns = [op.index for op in prepared.graph.ops if op.kind == "transpose"]
    plan = plan_graph(prepared.graph, rows_alone(layerwise=True, **CAN))
    assert len(turns) == 2 and {o for s in plan.segments for o in s.in_place} >= set(turns)
    validate(plan)
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (1, planes, 1, samples)).astype(dtype)
    run = run_plan(prepared, plan, [x])
    want = virtual_machine(LowerQuantized()(mod))["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(
        run.outputs[0], want, rtol=1e-4 if dtype == "float32" else 0, atol=1e-3 if dtype == "float32" else 0
    )
    assert run.arena_high_water <= plan.peak


@pytest.mark.emulator
@pytest.mark.parametrize(("target", "backend"), [("cortex-m4", "c"), ("cortex-m55", "obj")])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_firmware_turns_signals_of_any_length(
    target: str, backend: str, dtype: str, emulator: None, tmp_path: Path
) -> None:
    made = api.compile(there_and_back(7, 97, dtype), target=target, emit=backend, output=tmp_path / "p")
    assert sum(len(s.in_place) for s in made.plan.segments) >= 2
    assert api.run(tmp_path / "p", board=made.board).equals_host
