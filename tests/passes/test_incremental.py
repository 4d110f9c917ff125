"""Networks of one frame, run frame after frame beside the network of the whole window."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax as _relax

import tvm_cascade
from tvm_cascade.errors import GraphError, InfeasibleError, UsageError
from tvm_cascade.frontend import io_spec, load, load_frame
from tvm_cascade.importers.sliding import Frame
from tvm_cascade.passes.extract_graph import extract_graph, extract_order_graph
from tvm_cascade.passes.plan_network import lower_integers
from tvm_cascade.passes.sliding.incremental import Incremental, frame_module
from tvm_cascade.sliding import frame_frontier
from tvm_cascade.testing import time_series
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.quick_build import quick_build

relax: Any = _relax  # its nodes get their fields at run time


def causal(net: Net) -> Any:
    x = net.conv(net.input((1, 24, 1, 6)), 8, (3, 1), padding="valid", activation="relu")
    y = net.depthwise(x, (3, 1), padding="valid", dilation=(2, 1))
    y = net.conv(y, 8, 1)
    return net.dense(net.flatten(net.global_pool(net.sigmoid(y))), 5)


def same_and_branches(net: Net) -> Any:
    x = net.conv(net.input((1, 20, 4, 3)), 8, 3, activation="relu")
    y = net.add(x, net.depthwise(x, 3))
    y = net.concat([net.max_pool(y, 3, 1, "same"), net.conv(y, 4, 1)])
    return [net.dense(net.flatten(net.global_pool(y)), 3), y]


def strided(net: Net) -> Any:
    x = net.conv(net.input((1, 33, 6, 1)), 6, (4, 3), stride=2, padding="same", activation="relu6")
    y = net.avg_pool(net.conv(x, 6, (3, 1), padding="valid"), (2, 1), (1, 1))
    return net.softmax(net.dense(net.flatten(y), 4))


def split_rows(net: Net) -> Any:
    x = net.reshape(net.input((1, 60)), (1, 20, 3, 1))
    return net.dense(net.flatten(net.conv(x, 4, 3)), 4)


def long_mean(net: Net) -> Any:
    """Means and a pool whose sums run: of columns too, with rows at the border, behind a view."""
    x = net.conv(net.input((1, 44, 2, 3)), 6, 3, activation="relu")
    y = net.reshape(net.conv(x, 4, (3, 1), padding="valid"), (1, 42, 1, 8))
    return [net.dense(net.flatten(net.global_pool(x)), 3), net.avg_pool(x, (44, 2), (1, 1)), net.global_pool(y)]


CASES = [
    (causal, "int8", 1), (causal, "float32", 2), (same_and_branches, "int8", 1), (same_and_branches, "float32", 3),
    (strided, "int8", 2), (strided, "int8", 3), (split_rows, "int8", 3),
    (long_mean, "int8", 1), (long_mean, "int8", 3), (long_mean, "float32", 1),
]  # fmt: skip


def module(build: Callable[[Net], Any], dtype: Any) -> Any:
    net = Net(dtype, scales="varied" if dtype == "int8" else "shared")
    return net.finish(build(net))


def runner(mod: Any) -> Callable[..., list[np.ndarray]]:
    machine = relax.VirtualMachine(quick_build(lower_integers(mod)), tvm.cpu())

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        made = machine["main"](*map(tvm.runtime.tensor, arrays))
        return [made.numpy()] if hasattr(made, "numpy") else [m.numpy() for m in made]

    return run


def random_rows(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype("int8") if dtype == "int8" else rng.standard_normal(shape).astype("f4")


def compare(
    mod: Any,
    hop: int,
    frames: int,
    dtype: str,
    resets: Collection[int] = (),
    most_state: int | None = None,
    axis: int = 1,
    made: Frame | None = None,
) -> None:
    """Frames from a clear state, and again from the frames `resets` on: what an application does after a gap."""
    made = made or frame_module(mod, hop, most_state, axis)
    whole, frame = runner(mod), runner(made.mod)
    shapes = [tuple(int(d) for d in p.ty.shape.values) for p in made.mod["main"].params]
    kinds = [str(p.ty.dtype) for p in made.mod["main"].params]
    window = [int(d) for d in mod["main"].params[0].ty.shape.values]
    rows = window[axis]
    stream = random_rows(np.random.default_rng(hop), (*window[:axis], frames * hop, *window[axis + 1 :]), dtype)
    compared, start, states = 0, 0, []
    for number in range(frames):
        if number == 0 or number in (resets or (frames // 2,)):
            start, states = number * hop, [np.zeros(s, k) for s, k in zip(shapes[1:], kinds[1:], strict=True)]
        end = (number + 1) * hop
        result = frame(stream.take(range(end - hop, end), axis), *states)
        states = result[len(result) - len(states) :]
        if end - start < rows:
            continue
        compared += 1
        for got, wanted in zip(result, whole(stream.take(range(end - rows, end), axis)), strict=False):
            if dtype == "int8":
                np.testing.assert_array_equal(got, wanted, err_msg=f"frame {number}")
            else:
                np.testing.assert_allclose(got, wanted, atol=1e-4, err_msg=f"frame {number}")
    assert compared > frames // 4


@pytest.mark.parametrize(("build", "dtype", "hop"), CASES)
def test_frames_are_whole_windows(build: Callable[[Net], Any], dtype: str, hop: int) -> None:
    compare(module(build, dtype), hop, 140, dtype)


@pytest.mark.parametrize(("build", "hop"), [(causal, 1), (strided, 3), (long_mean, 1)])
def test_thousands_of_frames_with_gaps(build: Callable[[Net], Any], hop: int) -> None:
    """Some gaps come before the window is full, some right behind one another."""
    resets = {*np.random.default_rng(hop).choice(3000, 40, replace=False).tolist(), 1500, 1501}
    compare(module(build, "int8"), hop, 3000, "int8", resets)


@pytest.mark.parametrize("stored", [False, True])
def test_time_may_be_the_last_axis(stored: bool, tmp_path: Path) -> None:
    """As convolutions of ONNX over time have it, [1, channels, time]; of floats, or between quantize and dequantize."""
    pytest.importorskip("onnx")
    from tvm_cascade.testing.onnx_layers import Layers

    layers = Layers()

    def conv(x: str, shape: tuple[int, int, int], dilation: int) -> str:
        weights = layers.weight(shape, 0)
        bias = layers.constant(layers.rng.uniform(-1, 1, shape[0]).astype("float32"))
        made = layers.node("Conv", x, weights, bias, kernel_shape=[3], dilations=[dilation])
        made = layers.node("Relu", made)
        return layers.stored(made, 0.02) if stored else made

    x = layers.stored("x", 0.02) if stored else "x"
    y = conv(conv(x, (8, 6, 3), 1), (8, 8, 3), 2)
    y = layers.node("Flatten", layers.node("GlobalAveragePool", y))
    y = layers.node("Gemm", layers.stored(y, 0.01) if stored else y, layers.weight((8, 4)))
    layers.save(tmp_path / "m.onnx", y, (1, 6, 20), 2)
    mod = load(tmp_path / "m.onnx")
    plan = frame_module(mod, 2, axis=2).plan
    assert plan.macs == plan.least_macs == 2 * 8 * 3 * (6 + 8) + 8 * 4
    compare(mod, 2, 50, "float32", axis=2)
    if not stored:
        tvm_cascade.compile(mod, target="host", hop=2, axis=2, output=tmp_path / "p")
        np.savez(tmp_path / "f.npz", x=np.random.default_rng(0).standard_normal((14, 6, 2)).astype("f4"))
        done = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=tmp_path / "m.onnx")
        assert done.match and done.frames == 14
    with pytest.raises(UsageError, match=r"--axis 3: the input is \[1, 6, 20\], whose last axis is 2"):
        tvm_cascade.plan(mod, hop=2, axis=3)
    with pytest.raises(UsageError, match="--axis 'rows': give time, which is axis 1, or the number"):
        tvm_cascade.plan(mod, hop=2, axis="rows")


@pytest.mark.parametrize("tail", [1, 3])
@pytest.mark.parametrize("stored", [False, True])
def test_the_last_rows_of_a_causal_network(stored: bool, tail: int, tmp_path: Path) -> None:
    """`x[:, :, -n:]`, flattened, into a dense layer: states hold what the convolutions reach back to, and the tail."""
    pytest.importorskip("onnx")
    from tvm_cascade.testing.onnx_layers import Layers

    layers = Layers()
    y = layers.stored("x", 0.02) if stored else "x"
    for _ in range(3):
        y = layers.node("Relu", layers.node("Conv", y, layers.weight((8, 8, 3), 0), kernel_shape=[3], pads=[2, 0]))
        y = layers.stored(y, 0.02) if stored else y
    at = [layers.constant(np.array([v], "int64")) for v in (32 - tail, 32, 2)]
    y = layers.node("Flatten", layers.node("Slice", y, *at))
    layers.save(tmp_path / "m.onnx", layers.node("Gemm", y, layers.weight((8 * tail, 4))), (1, 8, 32), 2)
    mod = load(tmp_path / "m.onnx")
    made = load_frame(mod, 1, axis=2)
    assert made.plan.macs == 3 * 8 * 8 * 3 + 8 * tail * 4
    rows = 3 * 3 + (tail if tail > 1 else 0)
    assert made.plan.state_bytes == rows * 8 * (1 if stored else 4)
    compare(mod, 1, 100, "float32", axis=2, made=made)
    if not stored:
        assert made.mod["main"].params[1].name == "x_state"
    plan = tvm_cascade.plan(mod, target="cortex-m4", hop=1, axis=2)
    assert plan.peak_bytes <= made.plan.state_bytes + 128  # time is the last axis of the file, and of no state


def test_attention_of_the_last_row_over_a_window(tmp_path: Path) -> None:
    """Keys and values of earlier rows are kept, and the query of the last row alone is computed."""
    pytest.importorskip("onnx")
    from tvm_cascade.testing.onnx_layers import Layers

    layers = Layers()
    q, k, v = (layers.node("MatMul", "x", layers.weight((8, 8))) for _ in range(3))
    q = layers.node("Slice", q, *(layers.constant(np.array([n], "int64")) for n in (15, 16, 1)))
    scores = layers.node("MatMul", q, layers.node("Transpose", k, perm=[0, 2, 1]))
    y = layers.node("MatMul", layers.node("Softmax", scores, axis=-1), v)
    layers.save(tmp_path / "m.onnx", y, (1, 16, 8), 3)
    mod = load(tmp_path / "m.onnx")
    made = load_frame(mod, 1)
    assert made.plan.state_bytes == 2 * 16 * 8 * 4 and [p.params[0].ty.shape[1] for p in [made.mod["main"]]] == [1]
    compare(mod, 1, 50, "float32", made=made)


def test_less_state_for_more_work() -> None:
    """Every point of the frontier can be asked for, computes the same, and a byte less is the next one's."""
    mod = module(causal, "int8")
    first = frame_module(mod, 1).plan
    plans = frame_frontier(first.network, 1)
    assert len(plans) > 2 and plans[0].state_bytes == first.state_bytes
    for plan in plans[1:]:
        made = frame_module(mod, 1, plan.state_bytes)
        assert (made.plan.state_bytes, made.plan.macs) == (plan.state_bytes, plan.macs)
        compare(mod, 1, 80, "int8", most_state=plan.state_bytes)
    with pytest.raises(InfeasibleError, match="raise --hop-state"):
        frame_module(mod, 1, plans[-1].state_bytes - 1)
    with pytest.raises(UsageError, match="give --hop too"):
        tvm_cascade.plan(mod, hop_state="1KiB")
    assert tvm_cascade.plan(mod, hop=1, hop_state=plans[1].state_bytes).macs == plans[1].macs


def test_the_fewest_bytes_for_a_tenth_more_work_are_kept() -> None:
    mod = time_series.causal("int8")
    made = frame_module(mod, 4, axis=2).plan
    plans = frame_frontier(made.network, 4)
    assert made.state_bytes < plans[0].state_bytes and sum(made.work) <= 1.1 * sum(plans[0].work)
    assert all(sum(p.work) > 1.1 * sum(plans[0].work) for p in plans if p.state_bytes < made.state_bytes)
    assert frame_module(mod, 4, 1 << 20, axis=2).plan.work == plans[0].work


def test_sums_of_integers_run_and_those_of_floats_do_not() -> None:
    for dtype, sums in (("int8", 3), ("float32", 0)):
        made = frame_module(module(long_mean, dtype), 1)
        assert len(made.plan.totals) == len([n for n in made.states if n.endswith("_sum")]) == sums
    plan = tvm_cascade.plan(module(long_mean, "int8"), hop=1)
    frame = plan.frame
    assert frame is not None and list(frame["running_sums"].values()) == [24, 24, 32]
    assert frame["additions"] < frame["frontier"][3]["additions"] and "running sums" in plan.to_text(details=True)


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "ReduceSum"])
def test_running_sums_of_onnx_are_rounded_once(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tvm_cascade.testing.onnx_layers import Layers

    layers = Layers()
    y = layers.node(
        "Relu", layers.node("Conv", layers.stored("x", 0.02), layers.weight((8, 6, 3), 0), kernel_shape=[3])
    )
    more = {} if kind == "GlobalAveragePool" else {"keepdims": 1}
    axes = () if kind == "GlobalAveragePool" else (layers.constant(np.array([2], "int64")),)
    y = layers.stored(layers.node(kind, layers.stored(y, 0.02), *axes, **more), 0.013 if axes == () else 0.6)
    layers.save(tmp_path / "m.onnx", layers.node("Flatten", y), (1, 6, 66), 2)
    mod = load(tmp_path / "m.onnx")
    made = load_frame(mod, 1, axis=2)
    assert len(made.plan.totals) == 1
    compare(mod, 1, 300, "float32", axis=2, made=made)


def over_all_rows(net: Net) -> Any:
    """A mean and a maximum of rows, some of which depend on padding, and a mean over columns too."""
    x = net.conv(net.input((1, 61, 2, 3)), 6, (3, 1), padding="same", activation="relu")
    y = net.conv(x, 4, (4, 1), padding="valid")
    pooled = net.add(net.global_pool(x), net.max_pool(x, (61, 2), (1, 1)))
    return [net.dense(net.flatten(net.global_pool(y)), 3), net.dense(net.flatten(pooled), 2)]


@pytest.mark.parametrize("hop", [3, 8, 29, 40])
def test_reductions_over_all_rows_by_hops(hop: int) -> None:
    """Of floats: hops that divide the rows of a map and others, and one of more than half of them."""
    mod = module(over_all_rows, "float32")
    compare(mod, hop, 4 * (61 // hop + 2), "float32", made=load_frame(mod, hop))


def test_a_mean_keeps_a_row_for_every_hop() -> None:
    """61 rows by hops of 10: two parts of six hops, and the part in front; rows in their place were 61 and 51."""
    net = Net("float32")
    x = net.conv(net.input((1, 64, 1, 5)), 8, (4, 1), padding="valid", activation="relu")
    mod = net.finish(net.dense(net.flatten(net.global_pool(x)), 3))
    kept = {i.name: i.shape for i in io_spec(load_frame(mod, 10).mod).inputs[1:]}
    sums = sorted(shape[1] for shape in kept.values() if shape[-1] == 8)
    assert sums == [6, 7]
    assert max(prod(shape) for shape in kept.values()) <= 13 * 5


def test_rows_move_up_in_their_states() -> None:
    """One operator a state writes it in place, and whoever reads the rows reads them there: no tensor beside holds them."""
    graph = extract_order_graph(lower_integers(frame_module(module(causal, "int8"), 1).mod))
    kinds = [op.kind for op in graph.ops]
    assert kinds.count("assign_state") == len(graph.states) == 3 and "concat" not in kinds
    assert all(graph.consumers[after] for _, after in graph.states)


def test_rows_that_are_outputs_are_read_in_their_state() -> None:
    """The rows of a map of which all are an output lie in the arena once, and so do those of a view of it."""
    for shape in ((1, 34, 8, 12), (1, 34, 96)):
        net = Net("int8")
        x = net.conv(net.input((1, 40, 8, 1)), 8, (5, 1), padding="valid", activation="relu")
        made = net.conv(net.conv(x, 8, (3, 1), padding="valid"), 12, 1)
        plan = tvm_cascade.plan(net.finish(net.reshape(made, shape)), target="cortex-m4", hop=1)
        assert plan.frame is not None and plan.frame["state_bytes"] > 34 * 8 * 12
        assert plan.peak_bytes <= plan.frame["state_bytes"] + 3 * 8 * 12


def test_a_frame_of_a_causal_network_takes_a_twentieth() -> None:
    """Of the multiply-accumulates and of the instructions of a window: maps of one row have the kernels of all others."""
    net = Net("int8")
    x = net.conv(net.input((1, 64, 1, 16)), 32, (3, 1), padding="valid", activation="relu")
    for dilation in (1, 2):
        x = net.depthwise(x, (3, 1), padding="valid", dilation=(dilation, 1))
        x = net.conv(x, 32, 1, activation="relu")
    mod = net.finish(net.dense(net.flatten(net.global_pool(x)), 6))
    graph = extract_graph(lower_integers(frame_module(mod, 1).mod)).graph
    assert {t.row_axis for t in graph.tensors if len(t.shape) == 4} == {1}
    made = tvm_cascade.plan(mod, target="cortex-m4", hop=1)
    frame, instructions = made.frame, made.estimated_instructions
    assert frame is not None and 20 * frame["macs"] <= frame["whole_macs"]
    assert 20 * instructions <= frame["whole_estimated_instructions"]


def test_the_pass_leaves_its_module_and_says_how_many_states_there_are() -> None:
    mod = module(causal, "int8")
    before = mod.clone()
    made = Incremental(hop=1)(mod)
    assert tvm_ffi.structural_equal(before, mod)
    assert len(made["main"].params) == 1 + int(made["main"].attrs["cascade_states"]) == 4


def test_what_reuses_nothing_is_refused() -> None:
    net = Net("int8")
    x = net.input((1, 16, 16, 3))
    for _ in range(3):
        x = net.conv(x, 4, stride=2)
    image = net.finish(net.dense(net.flatten(net.global_pool(x)), 2))
    with pytest.raises(UsageError, match=r"nothing of a frame .*conv2d .* ends it: it .*; valid or causal padding"):
        frame_module(image, 1)
    net = Net("int8")
    with pytest.raises(UsageError, match=r"matmul .* reads all rows at once"):
        frame_module(net.finish(net.dense(net.input((1, 40)), 3)), 4)
    with pytest.raises(UsageError, match="a hop of 24 rows leaves none of the window"):
        frame_module(module(causal, "int8"), 24)


def test_what_is_no_window_is_refused() -> None:
    net = Net("int8")
    two = net.finish(net.add(net.input((1, 8, 8, 2)), net.input((1, 8, 8, 2))))
    with pytest.raises(GraphError, match="has 2"):
        frame_module(two, 1)
    net = Net("int8")
    batch = net.finish(net.conv(net.input((2, 8, 8, 2)), 3))
    with pytest.raises(GraphError, match="not one window of rows"):
        frame_module(batch, 1)
