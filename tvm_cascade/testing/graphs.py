"""TVM-free `Graph`s of well-known networks and of random operators, for tests and benchmarks of the algorithms.

    b = Builder()
    x = b.input(96, 96, 1)
    x = b.conv(x, 8, kernel=3, stride=2)
    graph = b.finish(b.dense(b.flatten(b.global_pool(x)), 2))

NHWC, one byte an element unless `dtype` says otherwise; weights are counted as int8 with an int32 bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import IDENTITY, Graph, Op, Tensor, Window


def same(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Output extent and leading padding of TFLite's SAME."""
    out = -(-size // stride)
    return out, max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0) // 2


@dataclass
class Builder:
    """Appends operators to a graph; every method returns the index of its output tensor."""

    dtype: str = "int8"
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def tensor(self, shape: Sequence[int], rows: int | None = 1, columns: int | None = 2) -> int:
        index = len(self.tensors)
        self.tensors.append(Tensor(index, f"t{index}", tuple(shape), self.dtype, rows, columns))
        return index

    def input(self, height: int, width: int, channels: int) -> int:
        self.inputs.append(self.tensor((1, height, width, channels)))
        return self.inputs[-1]

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        windows: Sequence[Window | None],
        columns: Sequence[Window | None],
        **more: Any,
    ) -> int:
        index = len(self.ops)
        self.ops.append(
            Op(index, f"{kind}{index}", kind, tuple(inputs), tuple(outputs), tuple(windows), tuple(columns), **more)
        )
        return outputs[0]

    def window(
        self,
        kind: str,
        x: int,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int],
        *,
        valid: bool = False,
        dilation: int | tuple[int, int] = 1,
        per_tap: int = 1,
        in_place: bool = False,
    ) -> int:
        """A stencil with `per_tap` multiply-accumulates for each tap of each output pixel."""
        _, h, w, _ = self.tensors[x].shape
        (kh, kw), (sh, sw), (dh, dw) = (_pair(v) for v in (kernel, stride, dilation))
        (oh, ph), (ow, pw) = same(h, kh, sh, dh), same(w, kw, sw, dw)
        if valid:
            oh, ph = (h - (kh - 1) * dh - 1) // sh + 1, 0
            ow, pw = (w - (kw - 1) * dw - 1) // sw + 1, 0
        out = self.tensor((1, oh, ow, channels))
        rows, columns = Window(kh, sh, dh, ph), Window(kw, sw, dw, pw)
        taps = _taps(rows, oh, h) * _taps(columns, ow, w)
        more: dict[str, Any] = {"macs": taps * per_tap, "in_place": (0,) if in_place else ()}
        more["attrs"] = {"groups": 1, "accumulator": "int32"} if "conv2d" in kind else {}
        return self.op(kind, [x], [out], [rows], [columns], **more)

    def conv(self, x: int, channels: int, kernel: int | tuple[int, int] = 1, stride: int | tuple[int, int] = 1, *,
             valid: bool = False, dilation: int | tuple[int, int] = 1) -> int:  # fmt: skip
        per_tap = channels * self.tensors[x].shape[3]
        return self.window("conv2d", x, channels, kernel, stride, valid=valid, dilation=dilation, per_tap=per_tap)

    def depthwise(self, x: int, kernel: int | tuple[int, int] = 3, stride: int | tuple[int, int] = 1, *,
                  valid: bool = False) -> int:  # fmt: skip
        channels = self.tensors[x].shape[3]
        return self.window("depthwise_conv2d", x, channels, kernel, stride, valid=valid, per_tap=channels)

    def max_pool(self, x: int, kernel: int, stride: int, *, valid: bool = False) -> int:
        return self.window("max_pool2d", x, self.tensors[x].shape[3], kernel, stride, valid=valid, per_tap=0)

    def relu(self, x: int) -> int:
        return self.window("relu", x, self.tensors[x].shape[3], 1, 1, per_tap=0, in_place=True)

    def add(self, x: int, y: int) -> int:
        out = self.tensor(self.tensors[x].shape)
        return self.op("add", [x, y], [out], [IDENTITY] * 2, [IDENTITY] * 2, in_place=(0, 1))

    def concat(self, parts: Sequence[int]) -> int:
        """Along the channels."""
        _, h, w, _ = self.tensors[parts[0]].shape
        out = self.tensor((1, h, w, sum(self.tensors[p].shape[3] for p in parts)))
        return self.op("concat", parts, [out], [IDENTITY] * len(parts), [IDENTITY] * len(parts))

    def split(self, x: int, parts: int) -> list[int]:
        """Along the channels, into equal parts."""
        _, h, w, c = self.tensors[x].shape
        out = [self.tensor((1, h, w, c // parts)) for _ in range(parts)]
        self.op("split", [x], out, [IDENTITY], [IDENTITY])
        return out

    def resize(self, x: int, factor: int) -> int:
        """Nearest neighbour, enlarged by a whole factor."""
        _, h, w, c = self.tensors[x].shape
        out = self.tensor((1, h * factor, w * factor, c))
        grow = Window(1, 1, denominator=factor)
        return self.op("resize", [x], [out], [grow], [grow])

    def global_pool(self, x: int) -> int:
        _, h, w, c = self.tensors[x].shape
        out = self.tensor((1, 1, 1, c))
        return self.op("mean", [x], [out], [Window.whole(h)], [Window.whole(w)],
                       kernels=KernelFootprints(accumulator_bytes=4 * c))  # fmt: skip

    def flatten(self, x: int) -> int:
        out = self.tensor((1, self.tensors[x].bytes), None, None)
        return self.op("reshape", [x], [out], [None], [None], opaque="a view", view=True, view_offsets=(0,))

    def dense(self, x: int, units: int) -> int:
        out = self.tensor((1, units), None, None)
        size = self.tensors[x].bytes
        return self.op("dense", [x], [out], [None], [None], opaque="every output reads every input",
                       kernels=KernelFootprints(accumulator_bytes=4 * units), macs=size * units,
                       weight_bytes=(size + 4) * units)  # fmt: skip

    def softmax(self, x: int) -> int:
        out = self.tensor(self.tensors[x].shape, None, None)
        return self.op("softmax", [x], [out], [None], [None], opaque="a sum over the whole input")

    def finish(self, *outputs: int, name: str = "main") -> Graph:
        return Graph(tuple(self.tensors), tuple(self.ops), tuple(self.inputs), outputs, name)


def without_io(graph: Graph) -> Graph:
    """The same graph with inputs and outputs of no bytes, for figures that leave them out."""
    io = {*graph.inputs, *graph.outputs}
    tensors = tuple(replace(t, shape=(*t.shape[:-1], 0)) if t.index in io else t for t in graph.tensors)
    return replace(graph, tensors=tensors)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _taps(window: Window, outputs: int, size: int) -> int:
    """Taps inside of the tensor, over all outputs: what a kernel that skips padding multiplies."""
    return sum(0 <= window.first(y) + k * window.dilation < size for y in range(outputs) for k in range(window.extent))


def mobilenet_v1(height: int, width: int, channels: int, *, alpha: float = 1.0, classes: int = 1000) -> Graph:
    """MobileNetV1 (Howard et al., 2017, table 1)."""
    b = Builder()
    x = b.conv(b.input(height, width, channels), int(32 * alpha), 3, 2)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for wide, stride in plan:
        x = b.conv(b.depthwise(x, 3, stride), int(wide * alpha))
    return b.finish(b.softmax(b.dense(b.flatten(b.global_pool(x)), classes)), name="mobilenet_v1")


def _round8(value: float) -> int:
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def mobilenet_v2(
    height: int, width: int, channels: int, *, alpha: float = 1.0, classes: int = 1000, plain: bool = False
) -> Graph:
    """MobileNetV2 (Sandler et al., 2018, table 2), with its residual adds.

    `plain` truncates scaled channels to integers, the last ones too, as MCUNet's and msf-CNN's variants do.
    """
    b = Builder()

    def scaled(wide: int) -> int:
        return int(wide * alpha) if plain else _round8(wide * alpha)

    x = b.conv(b.input(height, width, channels), scaled(32), 3, 2)
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for grow, wide, repeats, first_stride in blocks:
        for k in range(repeats):
            before, stride = x, first_stride if k == 0 else 1
            wide_in = b.tensors[x].shape[3]
            x = b.conv(x, wide_in * grow) if grow > 1 else x
            x = b.conv(b.depthwise(x, 3, stride), scaled(wide))
            if stride == 1 and b.tensors[x].shape == b.tensors[before].shape:
                x = b.add(before, x)
    x = b.conv(x, scaled(1280) if plain else max(1280, scaled(1280)))
    return b.finish(b.dense(b.flatten(b.global_pool(x)), classes), name="mobilenet_v2")


def vgg16(size: int = 224, classes: int = 1000) -> Graph:
    """VGG-16 (Simonyan and Zisserman, 2015, configuration D)."""
    b = Builder()
    x = b.input(size, size, 3)
    for wide, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = b.conv(x, wide, 3)
        x = b.max_pool(x, 2, 2)
    return b.finish(b.dense(b.dense(b.dense(b.flatten(x), 4096), 4096), classes), name="vgg16")


def ds_cnn() -> Graph:
    """The keyword spotter of MLPerf Tiny: 49x10x1, 64 channels."""
    b = Builder()
    x = b.conv(b.input(49, 10, 1), 64, (10, 4), 2)
    for _ in range(4):
        x = b.conv(b.depthwise(x), 64)
    return b.finish(b.softmax(b.dense(b.flatten(b.global_pool(x)), 12)), name="ds_cnn")


def resnet8() -> Graph:
    """The image classifier of MLPerf Tiny: 32x32x3, three residual blocks."""
    b = Builder()
    x = b.conv(b.input(32, 32, 3), 16, 3)
    for wide, stride in ((16, 1), (32, 2), (64, 2)):
        y = b.conv(b.conv(x, wide, 3, stride), wide, 3)
        x = b.add(x if stride == 1 else b.conv(x, wide, 1, stride), y)
    return b.finish(b.softmax(b.dense(b.flatten(b.global_pool(x)), 10)), name="resnet8")
