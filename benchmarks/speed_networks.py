"""Networks on which growth shows, written as int8 `.tflite` files: long chains, many branches, large maps, many operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.testing.tflite import ModelWriter


class Network(ModelWriter):
    """A `ModelWriter` whose operators lie inside of the network; activations are int8 of scale 0.1."""

    def __init__(self, rows: int, channels: int = 3, floats: bool = False) -> None:
        """A square image of int8, or of floats that the first operator quantizes."""
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.image = self.activation((1, rows, rows, channels), "float32" if floats else "int8", 0.1)
        if floats:
            image, self.image = self.image, self.tensor((1, rows, rows, channels), "int8", 0.1)
            self.operator("QUANTIZE", [image], [self.image], "QuantizeOptions", inner=True)

    def shape(self, x: int) -> tuple[int, ...]:
        return tuple(int(d) for d in self._tensors[x].shape)

    def conv(
        self, x: int, channels: int, kernel: int = 1, stride: int = 1, depthwise: bool = False, dilation: int = 1
    ) -> int:
        """A convolution padded as SAME; `depthwise` keeps the number of channels."""
        _, rows, columns, depth = self.shape(x)
        shape = (1, kernel, kernel, depth) if depthwise else (channels, kernel, kernel, depth)
        channels = depth if depthwise else channels
        weights = self.tensor(shape, "int8", 0.01, data=self.rng.integers(-127, 128, shape).astype("int8"))
        bias = self.tensor((channels,), "int32", 0.001, data=self.rng.integers(-99, 99, channels).astype("int32"))
        out = self.tensor((1, -(-rows // stride), -(-columns // stride), channels), "int8", 0.1)
        how: dict[str, Any] = {"padding": 0, "strideH": stride, "strideW": stride}
        how |= {"dilationHFactor": dilation, "dilationWFactor": dilation} | (
            {"depthMultiplier": 1} if depthwise else {}
        )
        name, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
        self.operator(name, [x, weights, bias], [out], options, inner=True, **how)
        return out

    def add(self, x: int, y: int) -> int:
        out = self.tensor(self.shape(x), "int8", 0.1)
        self.operator("ADD", [x, y], [out], "AddOptions", inner=True)
        return out

    def concat(self, parts: list[int]) -> int:
        shape = self.shape(parts[0])
        out = self.tensor((*shape[:-1], sum(self.shape(p)[-1] for p in parts)), "int8", 0.1)
        self.operator("CONCATENATION", parts, [out], "ConcatenationOptions", inner=True, axis=3)
        return out

    def resize(self, x: int, rows: int) -> int:
        """Bilinear, to `rows` x `rows`."""
        size = self.tensor((2,), "int32", data=np.array([rows, rows], "int32"))
        out = self.tensor((1, rows, rows, self.shape(x)[-1]), "int8", 0.1)
        self.operator("RESIZE_BILINEAR", [x, size], [out], "ResizeBilinearOptions", inner=True, alignCorners=True)
        return out

    def bottleneck(
        self, x: int, channels: int, expansion: int, stride: int = 1, kernel: int = 3, dilation: int = 1
    ) -> int:
        """An inverted residual block of MobileNetV2."""
        depth = self.shape(x)[-1]
        y = self.conv(x, depth * expansion) if expansion > 1 else x
        y = self.conv(self.conv(y, 0, kernel, stride, depthwise=True, dilation=dilation), channels)
        return self.add(x, y) if stride == 1 and depth == channels else y

    def done(self, *outputs: int) -> bytes:
        self.outputs.extend(outputs)
        return self.finish()


def chain(count: int = 800) -> bytes:
    """A chain of `count` convolutions of 3 x 3 on 16 x 16 x 8."""
    n = Network(16, 8)
    x = n.image
    for _ in range(count):
        x = n.conv(x, 8, 3)
    return n.done(x)


def branches(count: int = 400) -> bytes:
    """`count` convolutions that read one input, joined by one concat."""
    n = Network(8, 8)
    return n.done(n.concat([n.conv(n.image, 4, 3) for _ in range(count)]))


def deeplab(rows: int = 513) -> bytes:
    """DeepLab v3 on MobileNetV2 of depth multiplier 0.5, output stride 16: about 70 operators, maps of `rows` x `rows`."""
    n = Network(rows)
    x = n.bottleneck(n.conv(n.image, 16, 3, 2), 8, 1)
    for channels, repeats, stride, dilation in (
        (16, 2, 2, 1),
        (16, 3, 2, 1),
        (32, 4, 2, 1),
        (48, 3, 1, 1),
        (80, 3, 1, 2),
        (160, 1, 1, 2),
    ):
        for i in range(repeats):
            x = n.bottleneck(x, channels, 6, stride if i == 0 else 1, dilation=dilation)
    map_rows = n.shape(x)[1]
    pooled = n.tensor((1, 1, 1, n.shape(x)[-1]), "int8", 0.1)
    n.operator(
        "AVERAGE_POOL_2D", [x], [pooled], "Pool2DOptions", inner=True, padding=1,
        strideH=1, strideW=1, filterHeight=map_rows, filterWidth=map_rows,
    )  # fmt: skip
    x = n.concat([n.resize(n.conv(pooled, 256), map_rows), n.conv(x, 256)])
    return n.done(n.resize(n.conv(n.conv(x, 256), 21), rows))


def mcunet(rows: int = 80) -> bytes:
    """Blocks of MCUNet's kind: inverted residuals with kernels of 3, 5 and 7; input and output are floats."""
    n = Network(rows, floats=True)
    x = n.bottleneck(n.conv(n.image, 16, 3, 2), 8, 1)
    stages = (
        (16, 2, (7, 3, 5)),
        (24, 2, (5, 5, 5)),
        (40, 2, (7, 5, 5)),
        (48, 1, (5, 5)),
        (96, 2, (7, 5, 5)),
        (160, 1, (5,)),
    )
    for channels, stride, kernels in stages:
        for i, kernel in enumerate(kernels):
            x = n.bottleneck(x, channels, 4, stride if i == 0 else 1, kernel)
    floats = n.tensor(n.shape(x), "float32")
    n.operator("DEQUANTIZE", [x], [floats], "DequantizeOptions", inner=True)
    return n.done(floats)


def wired(count: int = 1000) -> bytes:
    """`count` element-wise sums, each of two of the last eight values (an order problem)."""
    n = Network(4, 8)
    values = [n.image, n.conv(n.image, 8)]
    while len(n._operators) < count:
        i, j = n.rng.integers(1, min(8, len(values)) + 1, 2)
        values.append(n.add(values[-int(i)], values[-int(j)]))
    read = {int(t) for op in n._operators for t in op.inputs}
    return n.done(*[v for v in values if v not in read])


def softmax() -> bytes:
    """One small operator whose scales are computed at run time: an arena of 200 bytes."""
    n = Network(1, 100)
    flat, out = n.tensor((1, 100), "int8", 0.1), n.tensor((1, 100), "int8", 1 / 256, -128)
    n.operator(
        "RESHAPE",
        [n.image, n.tensor((2,), "int32", data=np.array([1, 100], "int32"))],
        [flat],
        "ReshapeOptions",
        inner=True,
        newShape=[1, 100],
    )
    n.operator("SOFTMAX", [flat], [out], "SoftmaxOptions", inner=True, beta=1.0)
    return n.done(out)


NETWORKS: dict[str, Callable[[], bytes]] = {
    **{f"chain_{count}": partial(chain, count) for count in (200, 400, 800)},
    **{f"branches_{count}": partial(branches, count) for count in (100, 200, 400)},
    "deeplab_513": deeplab,
    "mcunet_80": mcunet,
    "wired_1000": wired,
    "softmax_100": softmax,
}


def write(folder: Path) -> dict[str, Path]:
    """Write every network to `folder`; returns their files by name."""
    files = {name: folder / f"{name}.tflite" for name in NETWORKS}
    for name, path in files.items():
        path.write_bytes(NETWORKS[name]())
    return files
