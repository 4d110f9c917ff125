"""The builder's networks: what runs, what is counted, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvm_cascade.errors import UsageError
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.reference import Compiled


def everything(net: Net) -> tvm.IRModule:
    """One of each operator that both types have."""
    x = net.input((1, 16, 16, 3) if net.layout == "NHWC" else (1, 3, 16, 16))
    x = net.batch_norm(net.conv(x, 8, 3, 2, activation="relu"))
    y = net.separable(net.depthwise(x, 3, activation="relu6"), 8, 5)
    z = net.conv(x, 8, 3, groups=1, dilation=2, padding=2)
    x = net.concat([net.add(y, z, "relu"), net.mul(y, net.sigmoid(z)), net.tanh(y), net.relu(z)])
    x = net.avg_pool(net.max_pool(x, 3, 2, "same"), 3, 1, "same")
    logits = net.dense(net.flatten(net.global_pool(x)), 10)
    return net.finish([logits, net.softmax(logits)])


def run(mod: tvm.IRModule, x: np.ndarray) -> list[np.ndarray]:
    return Compiled(mod)(x)


def test_layouts_compute_alike_in_kind_and_are_deterministic() -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 16, 3)).astype("float32")
    one = run(everything(Net("float32", seed=1)), x)
    other = run(everything(Net("float32", "NCHW", seed=1)), np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    assert one[1].shape == other[1].shape == (1, 10)
    tvm.ir.assert_structural_equal(everything(Net("float32", seed=1)), everything(Net("float32", seed=1)))
    np.testing.assert_allclose(one[1].sum(), 1, rtol=1e-5)


def test_a_depthwise_convolution_with_several_outputs_a_channel_lowers() -> None:
    net = Net("int8", seed=3)
    mod = net.finish(net.depthwise(net.input((1, 7, 6, 4)), 3, multiplier=2))
    low = LowerQuantized()(mod)
    assert float_remains(low) == ()
    x = np.random.default_rng(0).integers(-128, 128, (1, 7, 6, 4)).astype("int8")
    ours, floats = run(low, x)[0], run(mod, x)[0]
    assert ours.shape == (1, 7, 6, 8)
    assert int(np.abs(ours.astype(int) - floats).max()) <= 1  # the islands themselves compute in floats


@pytest.mark.parametrize("scales", ["shared", "varied"])
def test_islands_lower_without_floats(scales: str) -> None:
    mod = everything(Net("int8", seed=2, scales="varied" if scales == "varied" else "shared"))
    low = LowerQuantized()(mod)
    assert float_remains(low) == ()
    x = np.random.default_rng(0).integers(-128, 128, (1, 16, 16, 3)).astype("int8")
    logits, probabilities = run(low, x)
    assert logits.dtype == probabilities.dtype == np.int8
    assert len(np.unique(logits)) > 3


def test_work_and_weights_are_counted() -> None:
    net = Net("int8")
    x = net.conv(net.input((1, 8, 8, 4)), 8, 3, 2)
    net.dense(net.flatten(net.depthwise(x, 3)), 5)
    assert net.weights == 9 * 4 * 8 + 9 * 8 + 128 * 5
    assert net.macs == 16 * 9 * 4 * 8 + 16 * 9 * 8 + 128 * 5


def test_what_int8_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="int8 networks are NHWC"):
        Net("int8", "NCHW")
    net = Net("int8")
    x = net.input((4, 4))
    with pytest.raises(UsageError, match="use dense"):
        net.matmul(x, x)
