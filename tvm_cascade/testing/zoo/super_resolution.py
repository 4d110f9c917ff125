"""Super-resolution networks, int8 with random weights, as `.tflite` files: what the RFC names beside MobileNet.

`espcn` enlarges by depth_to_space (Shi et al., CVPR 2016, section 3.1: 5x5x64, 3x3x32, 3x3 to r*r channels), `fsrcnn` by
a transposed convolution (Dong et al., ECCV 2016, table 1: 5x5xd, 1x1xs, m times 3x3xs, 1x1xd, 9x9 transposed). Both
work on luminance, one channel. ReLU stands for their tanh and PReLU, as in deployed versions.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from tvm_cascade.testing.tflite import ModelWriter

_SCALE = 0.05  # of every activation
_ZERO = -3
_WEIGHT_STD = 73.0  # of uniform integers in [-127, 127]
_SAME, _RELU, _NONE = 0, 1, 0  # as the schema counts them


class _Chain:
    """A file of one chain of operators."""

    def __init__(self, height: int, width: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.file = ModelWriter()
        self.shape: tuple[int, int, int, int] = (1, height, width, 1)
        self.last = self.file.activation(self.shape, "int8", _SCALE, _ZERO, name="low")

    def conv(self, channels: int, kernel: int, relu: bool = True) -> None:
        """Convolution of stride 1."""
        n, h, w, depth = self.shape
        filters, bias = self._weights(channels, kernel, depth, kernel * kernel * depth)
        out = self._out((n, h, w, channels))
        activation = _RELU if relu else _NONE
        self.file.operator(
            "CONV_2D", [self.last, filters, bias], [out], "Conv2DOptions", padding=_SAME, strideH=1, strideW=1,
            dilationHFactor=1, dilationWFactor=1, fusedActivationFunction=activation, version=3,
        )  # fmt: skip
        self.last = out

    def transposed_conv(self, channels: int, kernel: int, factor: int) -> None:
        """Transposed convolution of stride `factor`."""
        n, h, w, depth = self.shape
        filters, bias = self._weights(channels, kernel, depth, kernel * kernel * depth // factor**2)
        shape = (n, h * factor, w * factor, channels)
        extents = self.file.constant(np.array(shape, "int32"))
        out = self._out(shape)
        self.file.operator(
            "TRANSPOSE_CONV", [extents, filters, self.last, bias], [out], "TransposeConvOptions", padding=_SAME,
            strideH=factor, strideW=factor, version=3,
        )  # fmt: skip
        self.last = out

    def depth_to_space(self, factor: int) -> None:
        n, h, w, depth = self.shape
        out = self._out((n, h * factor, w * factor, depth // factor**2))
        self.file.operator("DEPTH_TO_SPACE", [self.last], [out], "DepthToSpaceOptions", blockSize=factor)
        self.last = out

    def finish(self) -> bytes:
        self.file.outputs[:] = [self.last]
        return self.file.finish()

    def _weights(self, channels: int, kernel: int, depth: int, taps: int) -> tuple[int, int]:
        shape = (channels, kernel, kernel, depth)
        data = self.random.integers(-127, 128, shape).astype("int8")
        scales = (self.random.uniform(0.8, 1.25, channels) / (_WEIGHT_STD * sqrt(taps))).astype("float32")
        filters = self.file.tensor(shape, "int8", scales, axis=0, data=data)
        bias_scales = (scales * np.float32(_SCALE)).astype("float32")
        bias = (self.random.normal(0, 0.2, channels) / bias_scales).round().astype("int32")
        return filters, self.file.tensor((channels,), "int32", bias_scales, axis=0, data=bias)

    def _out(self, shape: tuple[int, int, int, int]) -> int:
        self.shape = shape
        return self.file.tensor(shape, "int8", _SCALE, _ZERO)


def espcn(height: int = 64, width: int = 64, factor: int = 3, seed: int = 0) -> bytes:
    """ESPCN: `height` x `width` x 1 enlarged `factor` times by depth_to_space."""
    net = _Chain(height, width, seed)
    net.conv(64, 5)
    net.conv(32, 3)
    net.conv(factor * factor, 3, relu=False)
    net.depth_to_space(factor)
    return net.finish()


def fsrcnn(
    height: int = 64, width: int = 64, factor: int = 3, seed: int = 0, d: int = 32, s: int = 5, m: int = 1
) -> bytes:
    """FSRCNN(d, s, m), by default the paper's small one: enlarged by a transposed 9x9 convolution."""
    net = _Chain(height, width, seed)
    net.conv(d, 5)
    net.conv(s, 1)
    for _ in range(m):
        net.conv(s, 3)
    net.conv(d, 1)
    net.transposed_conv(1, 9, factor)
    return net.finish()
