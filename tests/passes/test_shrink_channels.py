"""Networks without their dead channels give every bit of the file's: compiled, beside LiteRT and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.frontend import load
from tvm_cascade.passes import LowerQuantized, ShrinkChannels
from tvm_cascade.passes.shrink_channels import file_weight_bytes, shrink_channels
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter

_LOWER: Any = LowerQuantized()
_WINDOW: dict[str, Any] = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
_POOL: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1, "filterHeight": 2, "filterWidth": 2}
_RELU = 1
_TAPS = 10 * 10  # of 3 x 3 windows on 4 x 4 pixels, those on the padding left out


class Net:
    """A `.tflite` network of random layers, some of whose filters are zero and some of whose inputs nobody reads."""

    def __init__(self, seed: int, dtype: str = "int8", dead: float = 0.4, unread: float = 0.2) -> None:
        self.random, self.dtype = np.random.default_rng(seed), dtype
        self.dead, self.unread = dead, unread
        self.writer = ModelWriter()
        self.zero = 0 if dtype == "int8" else 128
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.quanta: dict[int, tuple[float, int]] = {}

    def pick(self, *options):
        return options[int(self.random.integers(len(options)))]

    def value(self, shape: tuple[int, ...], like: int | None = None, activation: bool = False) -> int:
        quantum = (float(self.pick(0.04, 0.05, 0.07)), int(self.pick(-128, -3, 4)) + self.zero)
        quantum = quantum if like is None else self.quanta[like]
        add = self.writer.activation if activation else self.writer.tensor
        made = add(shape, self.dtype, *quantum)
        self.shapes[made], self.quanta[made] = shape, quantum
        return made

    def input(self, *shape: int) -> int:
        return self.value(shape, activation=True)

    def weights(self, shape: tuple[int, ...], outputs: int, inputs: int) -> tuple[int, np.ndarray]:
        low = 0 if self.dtype == "uint8" else -127
        data = self.random.integers(low, low + 255, shape).astype(self.dtype)
        for axis, share in ((outputs, self.dead), (inputs, self.unread)):
            np.moveaxis(data, axis, 0)[self.random.random(shape[axis]) < share] = self.zero
        scales = self.random.uniform(0.002, 0.01, 1 if self.dtype == "uint8" else shape[outputs]).astype("float32")
        scale = scales if scales.size > 1 else float(scales[0])
        return self.writer.tensor(shape, self.dtype, scale, self.zero, axis=outputs, data=data), scales

    def bias(self, x: int, scales: np.ndarray, n: int) -> int:
        data = self.random.integers(-3000, 3000, n).astype("int32")
        return self.writer.tensor((n,), "int32", np.float32(self.quanta[x][0]) * scales, data=data)

    def conv(self, x: int, out: int, k: int = 1, act: int = 0, padding: int = 0) -> int:
        n, h, w, c = self.shapes[x]
        weights, scales = self.weights((out, k, k, c), 0, 3)
        y = self.value((n, h - (k - 1) * padding, w - (k - 1) * padding, out))
        how: dict[str, Any] = {"padding": padding, "fusedActivationFunction": act, **_WINDOW}
        self.writer.operator(
            "CONV_2D", [x, weights, self.bias(x, scales, out)], [y], "Conv2DOptions", inner=True, **how
        )
        return y

    def depthwise(self, x: int, times: int = 1, act: int = 0) -> int:
        n, h, w, c = self.shapes[x]
        weights, scales = self.weights((1, 3, 3, c * times), 3, 0)
        y = self.value((n, h, w, c * times))
        how: dict[str, Any] = {"padding": 0, "fusedActivationFunction": act, "depthMultiplier": times, **_WINDOW}
        operands = [x, weights, self.bias(x, scales, c * times)]
        self.writer.operator("DEPTHWISE_CONV_2D", operands, [y], "DepthwiseConv2DOptions", inner=True, **how)
        return y

    def dense(self, x: int, out: int) -> int:
        weights, scales = self.weights((out, self.shapes[x][1]), 0, 1)
        y, operands = self.value((1, out)), [x, weights, self.bias(x, scales, out)]
        self.writer.operator("FULLY_CONNECTED", operands, [y], "FullyConnectedOptions", inner=True)
        return y

    def op(self, name: str, xs: list[int], shape: tuple[int, ...], like: int | None = None, options: str | None = None,
           **how: Any) -> int:  # fmt: skip
        y = self.value(shape, like)
        self.writer.operator(name, xs, [y], options, inner=True, **how)
        return y

    def step(self, values: list[int]) -> int:
        x = self.pick(*values)
        other = self.pick(*[v for v in values if self.shapes[v] == self.shapes[x]])
        n, h, w, c = self.shapes[x]
        kind = self.pick("conv", "conv", "conv", "depthwise", "depthwise", "add", "mul", "concat", "max", "average", "pad",
                         "relu", "logistic", "requantize")  # fmt: skip
        if kind == "conv":
            return self.conv(x, self.pick(3, 4, 6), self.pick(1, 1, 3), self.pick(0, _RELU, 3))
        if kind == "depthwise":
            return self.depthwise(x, self.pick(1, 1, 2) if c < 5 else 1, self.pick(0, _RELU))
        if kind == "add":
            return self.op(
                "ADD", [x, other], (n, h, w, c), options="AddOptions", fusedActivationFunction=self.pick(0, 1)
            )
        if kind == "mul":
            return self.op("MUL", [x, other], (n, h, w, c), options="MulOptions")
        if kind == "concat" and c < 5 and self.quanta[x] == self.quanta[other]:
            return self.op("CONCATENATION", [x, other], (n, h, w, 2 * c), x, "ConcatenationOptions", axis=3)
        if kind in ("max", "average"):
            name = "MAX_POOL_2D" if kind == "max" else "AVERAGE_POOL_2D"
            return self.op(name, [x], (n, h, w, c), x, "Pool2DOptions", **_POOL)
        if kind == "pad":
            widths = self.writer.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], "int32"))
            padded = self.op("PAD", [x, widths], (n, h + 2, w + 2, c), x, "PadOptions")
            return self.conv(padded, 4, 3, padding=1)
        if kind == "relu":
            return self.op("RELU", [x], (n, h, w, c))
        if kind == "logistic" and self.dtype == "int8":
            y = self.writer.tensor((n, h, w, c), self.dtype, 1 / 256, -128)
            self.shapes[y], self.quanta[y] = (n, h, w, c), (1 / 256, -128)
            self.writer.operator("LOGISTIC", [x], [y], inner=True)
            return y
        return self.op("QUANTIZE", [x], (n, h, w, c))

    def finish(self, path: Path, steps: int = 6) -> bytes:
        values = [self.conv(self.input(1, 4, 4, 3), 4, 3, _RELU)]
        for _ in range(steps):
            values.append(self.step(values[-3:]))
        last = values[-1]
        if self.pick(True, False):
            axes = self.writer.constant(np.array([1, 2], "int32"))
            last = self.op("MEAN", [last, axes], (1, self.shapes[last][3]), options="ReducerOptions")
        size = int(np.prod(self.shapes[last]))
        flat = self.op("RESHAPE", [last, self.writer.constant(np.array([1, size], "int32"))], (1, size), last)
        self.writer.outputs.append(self.dense(self.dense(flat, 5), 3))
        path.write_bytes(self.writer.finish())
        return path.read_bytes()


def _equal(made: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(made, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ("int8", "uint8"))
def test_random_files_give_the_bits_of_litert(tmp_path: Path, dtype: str) -> None:
    removed = 0
    for seed in range(12):
        data = Net(seed, dtype).finish(tmp_path / "m.tflite", 3 + seed % 5)
        mod = load(tmp_path / "m.tflite")
        made, lost = shrink_channels(mod)
        removed += sum(layer.channels for layer in lost)
        run, reference = Compiled(_LOWER(made)), Reference(data)
        for k in range(2):
            arrays = random_inputs(reference.inputs, k)
            _equal(run(*arrays), reference.run(arrays))
    assert removed > 40


def _plant(net: Net, tensor: int, axis: int, zero: list[int]) -> None:
    """Let slices `zero` of weights along an axis be zero, and no other weight."""
    held = net.writer._buffers[tensor]
    data = held.data.view("int8").reshape(tuple(net.writer._tensors[tensor].shape)).copy()
    data[data == 0] = 1
    np.moveaxis(data, axis, 0)[zero] = 0
    held.data = np.frombuffer(data.tobytes(), "uint8")


@pytest.mark.parametrize("kind", ("MEAN", "QUANTIZE", "RELU"))
def test_constants_pass_through_operators_that_rescale(tmp_path: Path, kind: str) -> None:
    net = Net(3, dead=0.0, unread=0.0)
    x = net.conv(net.input(1, 4, 4, 3), 6, 3, padding=1)
    _plant(net, 1, 0, [0, 4])
    if kind == "MEAN":
        axes = net.writer.constant(np.array([1, 2], "int32"))
        y = net.dense(net.op("MEAN", [x, axes], (1, 6), options="ReducerOptions"), 2)
    else:
        y = net.conv(net.op(kind, [x], (1, 2, 2, 6)), 2)
    _plant(net, net.writer._operators[-1].inputs[1], 0, [])
    net.writer.outputs.append(y)
    (tmp_path / "m.tflite").write_bytes(net.writer.finish())
    made, lost = shrink_channels(load(tmp_path / "m.tflite"))
    assert [(layer.channels, layer.of) for layer in lost] == [(2, 6), (0, 2)]
    run, reference = Compiled(_LOWER(made)), Reference((tmp_path / "m.tflite").read_bytes())
    for k in range(3):
        arrays = random_inputs(reference.inputs, k)
        _equal(run(*arrays), reference.run(arrays))


def _two_layers(path: Path, dead: list[int], unread: list[int]) -> None:
    """Write a network of two convolutions, the first of which has dead filters and outputs that the second does not read."""
    net = Net(0, dead=0.0, unread=0.0)
    x = net.input(1, 4, 4, 3)
    a = net.conv(x, 8, 3, _RELU)
    y = net.conv(a, 4, 3, padding=1)
    _plant(net, 1, 0, dead)
    _plant(net, 4, 3, unread)
    for tensor, name in ((a, "first"), (y, "second")):
        net.writer._tensors[tensor].name = name
    net.writer.outputs.append(y)
    path.write_bytes(net.writer.finish())


def test_a_plan_tells_what_was_left_out(tmp_path: Path) -> None:
    _two_layers(tmp_path / "m.tflite", [1, 2], [5])
    plan = tvm_cascade.plan(tmp_path / "m.tflite")
    told: Any = plan.to_dict()
    first, second = 3 * 27 + 3 * 4, 4 * 9 * 3
    assert told["removed"] == [
        {"layer": "first", "channels": 3, "of": 8, "weight_bytes": first},
        {"layer": "second", "channels": 0, "of": 4, "weight_bytes": second},
    ]
    file_weights = 8 * 27 + 8 * 4 + 4 * 72 + 4 * 4
    assert (told["file_weight_bytes"], told["file_macs"]) == (file_weights, _TAPS * 3 * 8 + 4 * 4 * 72)
    assert told["macs"] == told["baseline_macs"] == _TAPS * 3 * 5 + 4 * 4 * 45
    saved = f"{first + second} bytes of weights of {file_weights}"
    assert f"dead channels   3 of 12 left out of 2 layers: {saved}" in plan.to_text(details=True)
    assert {layer["name"] for layer in told["layers"]} == {"first", "second"}
    plan.write_report(tmp_path / "page.html")
    assert f"Dead channels: 3 of 12 left out of 2 layers: {saved}" in (tmp_path / "page.html").read_text()
    whole: Any = tvm_cascade.plan(tmp_path / "m.tflite", shrink=False).to_dict()
    assert whole["removed"] == [] and whole["macs"] == told["file_macs"] == whole["file_macs"]
    assert whole["file_weight_bytes"] == file_weights and whole["weight_bytes"] > told["weight_bytes"]


def test_tensors_at_which_a_network_is_cut_keep_their_channels(tmp_path: Path) -> None:
    _two_layers(tmp_path / "m.tflite", [1, 2], [5])
    for until, from_ in (("first", ()), ((), "first")):
        plan = tvm_cascade.plan(tmp_path / "m.tflite", until=until, from_=from_)
        assert plan.to_dict()["removed"] == []
        (tensor,) = (t for t in plan.plan.graph.tensors if t.name == "first")
        assert tensor.shape == (1, 4, 4, 8)


def test_other_searches_leave_dead_channels_out_too(tmp_path: Path) -> None:
    _two_layers(tmp_path / "m.tflite", [1, 2], [5])
    assert tvm_cascade.order(tmp_path / "m.tflite")["peak_bytes"] == 16 * (3 + 5)
    assert tvm_cascade.order(tmp_path / "m.tflite", shrink=False)["peak_bytes"] == 16 * (3 + 8)


def test_a_compiled_program_of_fewer_channels_gives_the_bits_of_the_file(tmp_path: Path) -> None:
    _two_layers(tmp_path / "m.tflite", [1, 2], [5])
    for _ in range(2):  # the second from the cache
        made = tvm_cascade.compile(tmp_path / "m.tflite", target="host", output=tmp_path / "p")
        assert [layer["layer"] for layer in made.to_dict()["removed"]] == ["first", "second"]
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "m.tflite").match


def test_the_pass_keeps_its_input_and_networks_without_dead_channels(tmp_path: Path) -> None:
    _two_layers(tmp_path / "m.tflite", [], [])
    mod = load(tmp_path / "m.tflite")
    assert shrink_channels(mod) == (mod, ())
    _two_layers(tmp_path / "m.tflite", [0], [])
    mod = load(tmp_path / "m.tflite")
    before = mod.script()
    result = ShrinkChannels().run(mod)
    assert result.modified and mod.script() == before != result.mod.script()
    assert not ShrinkChannels().run(result.mod).modified


def test_the_relax_pipeline_leaves_dead_channels_out(tmp_path: Path) -> None:
    _two_layers(tmp_path / "m.tflite", [1, 2], [5])
    mod, reference = load(tmp_path / "m.tflite"), Reference((tmp_path / "m.tflite").read_bytes())
    for shrink, arena in ((True, 16 * (3 + 5)), (False, 16 * (3 + 8))):
        pipeline = cascade_pipeline(PlanRequest(layerwise=True), shrink=shrink)
        built = pipeline(mod)
        assert abs(int(built.attrs["cascade.arena_bytes"]) - arena) < 64
        arrays = random_inputs(reference.inputs, 0)
        _equal(Compiled(built)(*arrays), reference.run(arrays))


def test_the_bytes_of_a_file_are_those_of_its_constants(tmp_path: Path) -> None:
    net = Net(0, dead=0.0, unread=0.0)
    x = net.input(1, 4, 4, 3)
    ones = net.writer.tensor((1, 4, 4, 2), "int8", *net.quanta[x], data=np.ones((1, 4, 4, 2), "int8"))
    joined = net.op("CONCATENATION", [x, ones], (1, 4, 4, 5), x, "ConcatenationOptions", axis=3)
    net.writer.outputs.append(net.conv(joined, 2))
    (tmp_path / "m.tflite").write_bytes(net.writer.finish())
    assert file_weight_bytes(load(tmp_path / "m.tflite")) == 4 * 4 * 2 + 2 * 5 + 2 * 4
