"""Small networks of one operator each, of every family of kernels: what rates are counted with, and estimates checked.

Turns differ in shapes: rates come from some of them, checks from another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
import tvm
from tvm.ir import IRModule

from tvm_cascade.frontend import load
from tvm_cascade.passes import LowerQuantized
from tvm_cascade.passes.operator_names import operator_names
from tvm_cascade.passes.split_channels import with_channel_groups
from tvm_cascade.testing import estimate_int16
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.operator_cases import OPERATORS
from tvm_cascade.testing.streaming import wake_word
from tvm_cascade.testing.tflite import ModelWriter

SHAPES = ((1, 14, 12, 16), (1, 7, 10, 24), (1, 5, 6, 40), (1, 11, 9, 12))  # by turn
CHECKED = len(SHAPES) - 1  # the turn that no rate comes from

Build = Callable[[Net, Value], Value]
LAYERS: Mapping[str, Build] = MappingProxyType(
    {
        "conv 3x3": lambda n, x: n.conv(x, 20, 3, activation="relu"),
        "conv 3x3, stride 2": lambda n, x: n.conv(x, 24, 3, 2, activation="relu"),
        "conv 1x1": lambda n, x: n.conv(x, 28, 1, activation="relu"),
        "conv 5x3, dilated": lambda n, x: n.conv(x, 8, (5, 3), dilation=2),
        "depthwise 3x3": lambda n, x: n.depthwise(x, 3, activation="relu"),
        "depthwise 5x5, stride 2": lambda n, x: n.depthwise(x, 5, 2),
        "depthwise, multiplier": lambda n, x: n.depthwise(x, 3, multiplier=2),
        "dense": lambda n, x: n.dense(n.flatten(x), 18, activation="relu"),
        "dense, units by four": lambda n, x: n.dense(n.flatten(n.avg_pool(x, 2)), 20),
        "dense of few inputs": lambda n, x: n.dense(n.flatten(n.global_pool(x)), 8),
        "max pool": lambda n, x: n.max_pool(x, 2),
        "max pool, overlapping": lambda n, x: n.max_pool(x, 3, 1, padding="same"),
        "average pool": lambda n, x: n.avg_pool(x, 2),
        "global pool": lambda n, x: n.global_pool(x),
        "add": lambda n, x: n.add(x, n.conv(x, x.shape[3], 1)),
        "mul": lambda n, x: n.mul(x, n.conv(x, x.shape[3], 1)),
        "concat": lambda n, x: n.concat([x, n.conv(x, 8, 1)]),
        "relu": lambda n, x: n.relu(x),
        "sigmoid": lambda n, x: n.sigmoid(x),
        "tanh": lambda n, x: n.tanh(x),
        "softmax": lambda n, x: n.softmax(n.reshape(x, (1, x.shape[1] * x.shape[2] * 4, x.shape[3] // 4))),
    }
)
FIRST: Mapping[str, tuple[int, Build]] = MappingProxyType(  # layers of few channels, with their number
    {
        "conv of 3 channels": (3, lambda n, x: n.conv(x, 20, 3, 2, activation="relu")),
        "conv of 1 channel": (1, lambda n, x: n.conv(x, 24, (4, 3), activation="relu")),
        "dense of 12 inputs": (12, lambda n, x: n.dense(n.flatten(n.global_pool(x)), x.shape[1] + 3)),
        "conv of 12 channels": (12, lambda n, x: n.conv(x, 16, 3, activation="relu")),
    }
)
_FLOAT_LAYERS = {name: LAYERS[name] for name in LAYERS if name not in ("depthwise 5x5, stride 2",)}


def layers(turn: int) -> Iterator[tuple[str, IRModule]]:
    """Networks of the layers of a turn, in int8 and float32, by name."""
    dtypes: tuple[Literal["int8", "float32"], ...] = ("int8", "float32")
    for dtype, listed in zip(dtypes, (LAYERS, _FLOAT_LAYERS), strict=True):
        for name, build in listed.items():
            net = Net(dtype, seed=turn)
            yield f"{name} {dtype}", net.finish(build(net, net.input(SHAPES[turn])))
        for name, (channels, build) in FIRST.items():
            net = Net(dtype, seed=turn)
            yield f"{name} {dtype}", net.finish(build(net, net.input((*SHAPES[turn][:3], channels))))
    yield "channels in groups", in_groups(turn)
    yield "lstm", of_writer(lambda w: lstm(w, steps=4 + turn, depth=8 - turn, units=24 + 12 * turn))
    for name, write in _OTHERS.items():
        yield name, of_writer(lambda w, write=write: write(w, turn))
    for name, build in estimate_int16.layers(SHAPES[turn]).items():
        yield name, of_writer(build)
    yield "kept states", of_file(wake_word(12 + 4 * turn, 8 + 8 * turn, (3, 5 - turn % 2)))


def in_groups(turn: int) -> IRModule:
    """An inverted bottleneck that makes its wide channels in groups."""
    net, (n, rows, columns, _) = Net("int8", seed=turn), SHAPES[turn]
    y = net.conv(net.input((n, rows, columns, 4 + 2 * turn)), 48 - 8 * turn, 1, activation="relu6")
    y = net.conv(net.depthwise(y, 3, activation="relu6"), 10 - 2 * turn, 1)
    lower: Any = LowerQuantized()
    lowered = lower(net.finish(y))
    *_, last = operator_names(lowered["main"]).values()
    return with_channel_groups(lowered, {last: 2 + 2 * (turn % 2)})


def operators(turn: int) -> Iterator[tuple[str, IRModule]]:
    """Networks of `operator_cases`, drawn at random; those that are refused are left out."""
    for k, (name, generate) in enumerate(OPERATORS.items()):
        rng = np.random.default_rng([turn, k])
        yield f"{name} drawn", of_writer(lambda w, rng=rng, generate=generate: generate(rng, "int8", w))


def wide() -> IRModule:
    """Rows of 48 pixels, of which few are left at the end: stripes save memory."""
    net = Net("int8", seed=7)
    x = net.conv(net.input((1, 8, 48, 4)), 8, kernel=3, stride=2, activation="relu")
    y = net.conv(x, 24, kernel=1, activation="relu")
    y = net.conv(net.depthwise(y, kernel=3), 8, kernel=1)
    x = net.max_pool(net.add(x, y), kernel=(2, 2), stride=(2, 2))
    return net.finish(net.conv(x, 6, kernel=3))


def narrow() -> IRModule:
    """Small maps, whose layers run all rows in one step."""
    net = Net("int8", seed=5)
    x = net.conv(net.input((1, 12, 10, 8)), 24, kernel=3, activation="relu")
    x = net.conv(net.depthwise(x, kernel=3), 20, kernel=1)
    y = net.conv(net.conv(x, 32, kernel=1, activation="relu"), 20, kernel=1)
    return net.finish(net.softmax(net.dense(net.flatten(net.global_pool(net.add(x, y))), 5)))


def separable(dtype: Literal["int8", "float32"], size: int = 20) -> IRModule:
    """Depthwise separable layers, a residual addition, a global pool."""
    net = Net(dtype, seed=3)
    x = net.conv(net.input((1, size, size, 3)), 12, 3, 2, activation="relu")
    x = net.separable(x, 20, 3, activation="relu")
    y = net.separable(x, 20, 3, activation="relu")
    x = net.separable(net.add(x, y), 32, 3, 2, activation="relu")
    return net.finish(net.softmax(net.dense(net.flatten(net.global_pool(x)), 10)))


def bottleneck() -> IRModule:
    """An inverted bottleneck, whose wide tensor channel tiling makes in groups."""
    net = Net("int8", seed=2)
    x = net.conv(net.input((1, 16, 16, 4)), 8, 3, activation="relu")
    y = net.conv(x, 48, 1, activation="relu6")
    y = net.conv(net.depthwise(y, 3, activation="relu6"), 8, 1)
    return net.finish(net.conv(net.add(x, y), 6, 1))


def tall() -> IRModule:
    """Narrow rows, which are smallest at addresses of their own."""
    net = Net("int8", seed=4)
    x = net.conv(net.input((1, 25, 5, 4)), 16, 3, activation="relu")
    for _ in range(2):
        x = net.conv(net.depthwise(x, 3, activation="relu"), 16, 1, activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 6))


def planes() -> IRModule:
    """Channels first on both sides: both transposes take the bytes of their inputs."""
    net, axes, relax = Net("int8", seed=9), ((0, 2, 3, 1), (0, 3, 1, 2)), cast("Any", tvm.relax)
    x = net.input((1, 3, 15, 14))
    image = Value(net._emit(relax.op.permute_dims(x.expr, axes[0])), (1, 15, 14, 3), x.scale, x.zero_point)
    y = net.conv(net.conv(image, 8, 3, padding="same", activation="relu"), 3, 3, padding="same")
    return net.finish(Value(net._emit(relax.op.permute_dims(y.expr, axes[1])), x.shape, y.scale, y.zero_point))


def summed() -> IRModule:
    """A global pool, which sums the pixels as they are made."""
    net = Net("int8", seed=6)
    x = net.separable(net.conv(net.input((1, 18, 14, 3)), 24, 3, 2, activation="relu"), 32, 3, activation="relu")
    return net.finish(net.dense(net.flatten(net.global_pool(x)), 8))


def elementwise() -> IRModule:
    """Branches of element-wise operators and tables, joined."""
    net = Net("int8", seed=1, scales="varied")
    x = net.input((1, 15, 13, 10))
    y = net.add(net.sigmoid(x), net.tanh(x))
    return net.finish(net.max_pool(net.concat([net.mul(x, y), net.relu(y)]), 3, 2))


@dataclass(frozen=True)
class Firmware:
    """A network and the planning options of a form of kernels."""

    mod: Callable[[], IRModule]
    options: Mapping[str, Any] = field(default_factory=dict)


STRIPES = MappingProxyType({"granularity": "row", "overlap": False, "max_macs": 1.6, "max_time": 100.0})
FIRMWARE: Mapping[str, Firmware] = MappingProxyType(
    {
        "rows": Firmware(lambda: separable("int8"), {"granularity": "row"}),
        "pixels": Firmware(lambda: separable("int8"), {"granularity": "pixel", "max_time": 100.0}),
        "several rows": Firmware(narrow, {"layerwise": True}),
        "stripes": Firmware(wide, STRIPES),
        "groups of channels": Firmware(bottleneck, {"max_macs": 2.0, "max_time": 100.0}),
        "row addresses": Firmware(tall),
        "hybrid": Firmware(lambda: of_writer(hybrid)),
        "int16": Firmware(lambda: of_writer(estimate_int16.whole)),
        "transposes in place": Firmware(planes),
        "kept states": Firmware(lambda: of_file(wake_word(24, 40))),
        "few instructions": Firmware(lambda: of_file(wake_word(8, 8))),
        "sums": Firmware(summed, {"granularity": "row"}),
        "element-wise": Firmware(elementwise),
        "element-wise by pixels": Firmware(elementwise, {"granularity": "pixel", "max_time": 100.0}),
        "lstm": Firmware(lambda: of_writer(lambda w: lstm(w, steps=9, depth=5, units=40))),
        "float rows": Firmware(lambda: separable("float32"), {"granularity": "row"}),
        "float pixels": Firmware(lambda: separable("float32"), {"granularity": "pixel", "max_time": 100.0}),
    }
)


def of_writer(write: Callable[[ModelWriter], Any]) -> IRModule:
    """The network of a file that `write` writes."""
    writer = ModelWriter()
    write(writer)
    return of_file(writer.finish())


def of_file(data: bytes) -> IRModule:
    """The network of a `.tflite` file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.tflite"
        path.write_bytes(data)
        return load(path)


def float_lstm(writer: ModelWriter, turn: int, dtype: str = "float32") -> None:
    """A float LSTM, of int8 weights where `dtype` says so."""
    rng, units, depth = np.random.default_rng(turn), 10 + 6 * turn, 8 - turn
    inputs = [writer.activation((1, 4 + turn, depth), "float32"), *([-1] * 23)]
    for k in range(4):
        for at, columns in ((1, depth), (5, units)):
            inputs[at + k] = writer.constant(rng.integers(-9, 10, (units, columns)).astype(dtype), 0.01)
        inputs[12 + k] = writer.constant(rng.standard_normal(units).astype("float32"))
    inputs[18:20] = [writer.tensor((1, units), "float32", variable=True) for _ in range(2)]
    options: dict[str, Any] = {"fusedActivationFunction": 4, "timeMajor": False, "cellClip": 0.0, "projClip": 0.0}
    out, table = writer.tensor((1, 4 + turn, units), "float32"), "UnidirectionalSequenceLSTMOptions"
    writer.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [out], table, **options)


def hybrid_dense(writer: ModelWriter, turn: int, few: bool = False) -> None:
    """A product of floats by int8 weights; of `few` inputs, where what is done once a row and once a unit weighs most."""
    depth, units = (5 + 4 * turn, 8 + 3 * turn) if few else (60 + 44 * turn, 30 - 5 * turn)
    weights = writer.constant(np.random.default_rng(turn).integers(-9, 10, (units, depth)).astype("int8"), 0.01)
    x, out = writer.activation((1, depth), "float32"), writer.tensor((1, units), "float32")
    how: dict[str, Any] = {"asymmetricQuantizeInputs": bool(turn % 2)}
    writer.operator("FULLY_CONNECTED", [x, weights, -1], [out], "FullyConnectedOptions", **how)


def hybrid_conv(writer: ModelWriter, turn: int) -> None:
    """A convolution of floats by int8 weights."""
    (n, rows, columns, depth), channels = SHAPES[turn], 20 - 3 * turn
    data = np.random.default_rng(turn).integers(-9, 10, (channels, 3, 3, depth)).astype("int8")
    weights = writer.tensor(data.shape, "int8", np.full(channels, 0.01), data=data)
    bias = writer.constant(np.zeros(channels, "float32"))
    x, out = writer.activation(SHAPES[turn], "float32"), writer.tensor((n, rows, columns, channels), "float32")
    window: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    writer.operator("CONV_2D", [x, weights, bias], [out], "Conv2DOptions", **window)


def hybrid_depthwise(writer: ModelWriter, turn: int, odd: bool = False) -> None:
    """A depthwise convolution of floats by int8 weights; of an `odd` number of channels, which vectors do not take."""
    shape = (*SHAPES[turn][:3], 5 + 2 * turn) if odd else SHAPES[turn]
    depth = shape[-1]
    data = np.random.default_rng(turn).integers(-9, 10, (1, 3, 3, depth)).astype("int8")
    weights = writer.tensor(data.shape, "int8", np.full(depth, 0.01), axis=3, data=data)
    bias = writer.constant(np.zeros(depth, "float32"))
    x, out = writer.activation(shape, "float32"), writer.tensor(shape, "float32")
    window: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    table = "DepthwiseConv2DOptions"
    writer.operator("DEPTHWISE_CONV_2D", [x, weights, bias], [out], table, depthMultiplier=1, **window)


def hybrid(writer: ModelWriter) -> None:
    """Every operator of floats by int8 weights."""
    for write in (hybrid_conv, hybrid_depthwise, hybrid_dense):
        write(writer, 1)


_OTHERS: Mapping[str, Callable[[ModelWriter, int], None]] = MappingProxyType(
    {
        "lstm float32": float_lstm,
        "lstm hybrid": lambda w, turn: float_lstm(w, turn, "int8"),
        "dense hybrid": hybrid_dense,
        "dense hybrid of few inputs": lambda w, turn: hybrid_dense(w, turn, few=True),
        "conv hybrid": hybrid_conv,
        "depthwise hybrid": hybrid_depthwise,
        "depthwise hybrid of odd channels": lambda w, turn: hybrid_depthwise(w, turn, odd=True),
    }
)


def lstm(writer: ModelWriter, steps: int, depth: int, units: int) -> None:
    """An int8 LSTM with an int16 state of its cell."""
    rng = np.random.default_rng(units)
    inputs = [writer.activation((1, steps, depth), "int8", 0.02, 5), *([-1] * 23)]
    for k in range(4):
        inputs[1 + k] = writer.constant(rng.integers(-127, 128, (units, depth)).astype("int8"), 0.01)
        inputs[5 + k] = writer.constant(rng.integers(-127, 128, (units, units)).astype("int8"), 0.002)
        inputs[12 + k] = writer.constant(rng.integers(-45000, 45000, units).astype("int32"), 0.0002)
    inputs[18] = writer.tensor((1, units), "int8", 1 / 128, variable=True)
    inputs[19] = writer.tensor((1, units), "int16", 2.0**-11, variable=True)
    between = [writer.tensor((1,), "int8", 1 / 128) for _ in range(5)]
    options = {"fusedActivationFunction": 4, "timeMajor": False, "cellClip": 0.0, "projClip": 0.0}
    out = writer.tensor((1, steps, units), "int8", 1 / 128)
    table = "UnidirectionalSequenceLSTMOptions"
    writer.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [out], table, intermediates=between, **options)
