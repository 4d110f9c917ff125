"""Networks with their images' channels last: the same values, and images in no other layout."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.layout.channels_last import images_last
from tvm_cascade.staging.program.graph import simplify, stage_graph
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.testing.quick_build import quick_run
from tvm_cascade.testing.random_images import random_images
from tvm_cascade.testing.zoo.inception import inception_e
from tvm_cascade.testing.zoo.squeezenet import squeezenet


def _given(mod: tvm.IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]


def _kinds(mod: tvm.IRModule) -> list[str]:
    return [op.kind for op in stage_graph(mod).graph.ops]


@pytest.mark.parametrize("seed", [*range(8), 17])
def test_random_networks(seed: int) -> None:
    mod = simplify(random_images(seed, steps=6, batch=1 + seed % 2, channels=(4, 6, 8)))
    data = _given(mod)
    for a, b in zip(quick_run(images_last(mod), *data), quick_run(mod, *data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize(
    "make", [lambda: inception_e(width=0.0625), lambda: squeezenet(size=64)], ids=["inception", "squeezenet"]
)
def test_networks(make) -> None:  # type: ignore[no-untyped-def]
    mod = simplify(make())
    last, data = images_last(mod), _given(mod)
    for a, b in zip(quick_run(last, *data), quick_run(mod, *data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())
    moved = [k for k in _kinds(last) if k == "permute_dims"]
    results = [relax.op.permute_dims] * len(stage_graph(mod).graph.outputs)
    assert len(moved) <= 1 + len(results)  # of the image, and of results that are images
    moves = {"permute_dims", "reshape"}  # a transpose of one pixel, or one channel, is a view
    assert sorted({*_kinds(last)} - moves) == sorted({*_kinds(mod)} - moves)


def test_weights_that_are_computed() -> None:
    """As importers leave them: a reshaped constant, a constant bound to a name."""
    rng = np.random.default_rng(3)
    held = rng.standard_normal((4, 27)).astype("float32")
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = builder.emit(relax.op.reshape(relax.const(held, "float32"), (4, 3, 3, 3)))
            bias = builder.emit(relax.op.reshape(relax.const(held[:, 0], "float32"), (1, 4, 1, 1)))
            y = builder.emit(relax.op.nn.conv2d(builder.emit(relax.op.nn.relu(x)), weight, padding=1))
            out = builder.emit_output(builder.emit(relax.op.add(y, bias)))
        builder.emit_func_output(out)
    mod = builder.get()
    data = rng.standard_normal((1, 3, 8, 8)).astype("float32")
    for a, b in zip(quick_run(images_last(mod), data), quick_run(mod, data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert "permute_dims" in _kinds(images_last(mod)) and stage_network(mod, "cuda").graph.ops


def test_a_network_without_images_stays_as_it_is() -> None:
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.nn.relu(x)))
        builder.emit_func_output(out)
    mod = builder.get()
    assert images_last(mod) is mod


def test_what_is_no_network_is_refused_as_for_other_targets() -> None:
    """Symbolic extents, and a module without `main`."""
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 3, 8, 8), "float32"))
    w = relax.const(np.ones((4, 3, 3, 3), "float32"), "float32")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, w, padding=1))
            out = builder.emit_output(builder.emit(relax.op.nn.relu(y)))
        builder.emit_func_output(out)
    for mod in (builder.get(), tvm.IRModule({})):
        for target in ("llvm", "cuda -arch=sm_90"):
            with pytest.raises(GraphError):
                stage_network(mod, target)


def test_only_cuda_has_channels_last() -> None:
    mod = inception_e(width=0.0625)
    layouts = {
        target: {str(c.attrs.data_layout) for c in stage_network(mod, target).calls if hasattr(c.attrs, "data_layout")}
        for target in ("llvm", "cuda -arch=sm_90")
    }
    assert layouts == {"llvm": {"NCHW"}, "cuda -arch=sm_90": {"NHWC"}}
