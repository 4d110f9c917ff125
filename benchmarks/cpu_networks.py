"""Networks as ONNX models with random weights, batch normalization folded: the layers of torchvision's models, and transformers.

Of several branches: GoogLeNet (Szegedy et al., 2015), Inception V3 (2016), SqueezeNet 1.1 (Iandola et al., 2016), ShuffleNet
V2 1.0x (Ma et al., 2018). Others: ResNet-18 (He et al., 2016), MobileNetV2 (Sandler et al., 2018), MobileNetV3 Small (Howard
et al., 2019), EfficientNet B0 (Tan and Le, 2019), BERT (Devlin et al., 2019) and ViT (Dosovitskiy et al., 2021), both of few
layers, Whisper's tiny encoder (Radford et al., 2023) and a decoder block of Llama (Touvron et al., 2023), which makes one step
with a cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Writer:
    """Writes one model; tensors are known by name, their channels are kept."""

    def __init__(self, seed: int = 0, wide: int = 3) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._channels = {"input": wide}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of further inputs

    def model(self, size: int | tuple[int, ...], *outputs: str) -> onnx.ModelProto:
        """Return the model of an input `[1][3][size][size]`, or of the shape `size`, and of the further inputs."""
        value = helper.make_tensor_value_info
        shapes = {"input": (1, 3, size, size) if isinstance(size, int) else size, **self._shapes}
        graph = helper.make_graph(
            self._nodes, "network",
            [value(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
            [value(name, TensorProto.FLOAT, None) for name in outputs],
            self._weights,
        )  # fmt: skip
        opset = [helper.make_opsetid("", 17)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opset, ir_version=8))

    def input(self, name: str, *shape: int) -> str:
        """Add an input beside `input`."""
        self._shapes[name], self._channels[name] = shape, shape[-1]
        return name

    def conv(
        self, x: str, channels: int, window: int | tuple[int, int] = 1, stride: int = 1, padding: int | tuple[int, int] = 0,
        groups: int = 1, relu: bool = True,
    ) -> str:  # fmt: skip
        """Convolution with bias and, unless `relu` is false, a rectifier; windows and padding of rows, columns."""
        rows, columns = (window, window) if isinstance(window, int) else window
        top, left = (padding, padding) if isinstance(padding, int) else padding
        shape = (channels, self._channels[x] // groups, rows, columns)
        weights = self._random.standard_normal(shape) * np.sqrt(2 / prod(shape[1:]))
        args = [x, self._constant(weights.astype("float32")), self._constant(np.full(channels, 0.01, "float32"))]
        y = self._emit("Conv", args, channels, strides=[stride] * 2, pads=[top, left] * 2, group=groups)
        return self._emit("Relu", [y], channels) if relu else y

    def chain(self, x: str, *layers: tuple) -> str:
        """Convolutions one behind the other."""
        for layer in layers:
            x = self.conv(x, *layer)
        return x

    def pool(self, kind: str, x: str, window: int, stride: int, padding: int = 0, ceil: bool = False) -> str:
        """`kind`: MaxPool or AveragePool, which counts padding as zeros."""
        more = {"count_include_pad": 1} if kind == "AveragePool" else {}
        attrs = {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [padding] * 4, "ceil_mode": int(ceil)}
        return self._emit(kind, [x], self._channels[x], **attrs, **more)

    def concat(self, *parts: str) -> str:
        """Concatenation along the channels."""
        return self._emit("Concat", list(parts), sum(self._channels[p] for p in parts), axis=1)

    def halves(self, x: str) -> tuple[str, str]:
        """Both halves of the channels."""
        half = self._channels[x] // 2
        names = [f"t{len(self._nodes)}_{k}" for k in (0, 1)]
        sizes = self._constant(np.array([half, half]))
        self._nodes.append(helper.make_node("Split", [x, sizes], names, axis=1))
        self._channels |= dict.fromkeys(names, half)
        return names[0], names[1]

    def shuffle(self, x: str, size: int) -> str:
        """Channels of two groups, in turn; `size` is that of the map."""
        channels = self._channels[x]
        y = self._emit("Reshape", [x, self._constant(np.array([1, 2, channels // 2, size, size]))], channels)
        y = self._emit("Transpose", [y], channels, perm=[0, 2, 1, 3, 4])
        return self._emit("Reshape", [y, self._constant(np.array([1, channels, size, size]))], channels)

    def classify(self, x: str, classes: int = 1000) -> str:
        """Mean over pixels and a dense layer."""
        y = self._emit("Flatten", [self.mean(x)], self._channels[x])
        weights = self._random.standard_normal((classes, self._channels[x])) * 0.05
        return self._emit("Gemm", [y, self._constant(weights.astype("float32"))], classes, transB=1)

    def mean(self, x: str) -> str:
        """Mean over pixels."""
        return self._emit("GlobalAveragePool", [x], self._channels[x])

    def channels(self, x: str) -> int:
        """Return the channels of a tensor; of tokens, their width."""
        return self._channels[x]

    def apply(self, kind: str, *args: str, **attrs: Any) -> str:
        """Emit an operator whose result has the channels of its first argument."""
        return self._emit(kind, list(args), self._channels[args[0]], **attrs)

    def sigmoid(self, x: str) -> str:
        """Emit a sigmoid."""
        return self.apply("Sigmoid", x)

    def silu(self, x: str) -> str:
        """Emit SiLU as PyTorch exports it."""
        return self.apply("Mul", x, self.sigmoid(x))

    def relu(self, x: str) -> str:
        """Emit a rectifier."""
        return self.apply("Relu", x)

    def relu6(self, x: str) -> str:
        """Emit a rectifier with results up to 6."""
        return self.apply("Clip", x, self._number(0), self._number(6))

    def hard_sigmoid(self, x: str) -> str:
        """Emit a hard sigmoid as PyTorch exports it."""
        return self.apply("HardSigmoid", x, alpha=1 / 6)

    def hard_swish(self, x: str) -> str:
        """Emit a hard swish."""
        return self.apply("HardSwish", x)

    def excited(self, x: str, squeezed: int, inner: Callable[[str], str], gate: Callable[[str], str]) -> str:
        """Emit squeeze and excitation: channels are multiplied by gates, which two layers make of their means."""
        scale = self.conv(inner(self.conv(self.mean(x), squeezed, relu=False)), self._channels[x], relu=False)
        return self.apply("Mul", x, gate(scale))

    def product(self, x: str, columns: int) -> str:
        """Emit a dense layer of tokens, without bias."""
        weights = self._random.standard_normal((self._channels[x], columns)) * self._channels[x] ** -0.5
        return self._emit("MatMul", [x, self._constant(weights.astype("float32"))], columns)

    def linear(self, x: str, columns: int) -> str:
        """Emit a dense layer of tokens, with bias."""
        weights = self._random.standard_normal((self._channels[x], columns)) * self._channels[x] ** -0.5
        y = self._emit("MatMul", [x, self._constant(weights.astype("float32"))], columns)
        return self._emit("Add", [y, self._constant(np.full(columns, 0.01, "float32"))], columns)

    def norm(self, x: str) -> str:
        """Emit a layer normalization of each token."""
        wide = self._channels[x]
        scale, bias = (self._constant(np.full(wide, v, "float32")) for v in (1.1, 0.01))
        return self.apply("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def gelu(self, x: str) -> str:
        """Emit GELU by Erf as PyTorch exports it."""
        erf = self.apply("Erf", self.apply("Div", x, self._number(2**0.5)))
        half = self.apply("Mul", x, self.apply("Add", erf, self._number(1)))
        return self.apply("Mul", half, self._number(0.5))

    def feed_forward(self, x: str, wide: int) -> str:
        """Emit two dense layers with GELU between them."""
        return self.linear(self.gelu(self.linear(x, wide)), self._channels[x])

    def attention(self, x: str, tokens: int, heads: int) -> str:
        """Emit self-attention and the dense layer behind it."""
        wide = self._channels[x]
        depth = wide // heads
        split = self._constant(np.array([1, tokens, heads, depth]))
        q, k, v = (
            self.apply("Transpose", self.apply("Reshape", self.linear(x, wide), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = self.apply("Mul", self.apply("MatMul", q, k), self._number(depth**-0.5))
        mixed = self.apply(
            "Transpose", self.apply("MatMul", self.apply("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3]
        )
        return self.linear(self.apply("Reshape", mixed, self._constant(np.array([1, tokens, wide]))), wide)

    def conv1d(self, x: str, channels: int, stride: int) -> str:
        """Emit a convolution along time of three taps with bias."""
        weights = self._random.standard_normal((channels, self._channels[x], 3)) * (3 * self._channels[x]) ** -0.5
        args = [x, self._constant(weights.astype("float32")), self._constant(np.full(channels, 0.01, "float32"))]
        return self._emit("Conv", args, channels, strides=[stride], pads=[1, 1])

    def rms_norm(self, x: str) -> str:
        """Emit a root-mean-square normalization of each token."""
        mean = self.apply("ReduceMean", self.apply("Mul", x, x), axes=[-1], keepdims=1)
        root = self.apply("Reciprocal", self.apply("Sqrt", self.apply("Add", mean, self._number(1e-6))))
        return self.apply("Mul", self.apply("Mul", x, root), self._constant(np.full(self._channels[x], 1.1, "float32")))

    def cached(self, past: str, x: str) -> str:
        """Emit a cache with the entries of this step behind it."""
        return self.apply("Concat", past, x, axis=2)

    def head(self, x: str, count: int, depth: int) -> str:
        """Emit the only token of a layer as heads `[1][count][1][depth]`."""
        y = self._emit("Reshape", [x, self._constant(np.array([1, 1, count, depth]))], depth)
        return self.apply("Transpose", y, perm=[0, 2, 1, 3])

    def rotated(self, x: str, cos: str, sin: str) -> str:
        """Emit a rotary embedding of halves of heads, as PyTorch exports it."""
        half, axis = self._channels[x] // 2, self._constant(np.array([3]))
        low, high = (
            self.apply("Slice", x, *(self._constant(np.array([v])) for v in (at, at + half)), axis) for at in (0, half)
        )
        turned = self._emit("Concat", [self.apply("Neg", high), low], 2 * half, axis=-1)
        return self.apply("Add", self.apply("Mul", x, cos), self.apply("Mul", turned, sin))

    def repeated(self, x: str, times: int, shape: Sequence[int]) -> str:
        """Emit each head of a cache of this shape some times."""
        one, heads, length, depth = shape
        y = self.apply("Unsqueeze", x, self._constant(np.array([2])))
        y = self.apply("Expand", y, self._constant(np.array([one, heads, times, length, depth])))
        return self.apply("Reshape", y, self._constant(np.array([one, heads * times, length, depth])))

    def attended(self, q: str, k: str, v: str) -> str:
        """Emit the attention of one token's heads over caches `[1][heads][length][depth]`."""
        scores = self.apply("MatMul", q, self.apply("Transpose", k, perm=[0, 1, 3, 2]))
        weights = self.apply("Softmax", self.apply("Mul", scores, self._number(self._channels[k] ** -0.5)), axis=-1)
        y = self.apply("Transpose", self._emit("MatMul", [weights, v], self._channels[v]), perm=[0, 2, 1, 3])
        return y

    def joined(self, x: str, wide: int) -> str:
        """Emit the heads of one token as a token."""
        return self._emit("Reshape", [x, self._constant(np.array([1, 1, wide]))], wide)

    def positioned(self, x: str, tokens: int) -> str:
        """Emit tokens with embeddings of their positions."""
        table = self._random.standard_normal((1, tokens, self._channels[x])).astype("float32")
        return self.apply("Add", x, self._constant(table))

    def tokens(self, x: str, pixels: int) -> str:
        """Emit a map of so many pixels as tokens behind one of the class, with embeddings of their positions."""
        wide = self._channels[x]
        y = self.apply("Reshape", x, self._constant(np.array([1, wide, pixels])))
        y = self.apply("Transpose", y, perm=[0, 2, 1])
        first, position = (
            self._constant(self._random.standard_normal((1, rows, wide)).astype("float32")) for rows in (1, pixels + 1)
        )
        return self.apply("Add", self._emit("Concat", [first, y], wide, axis=1), position)

    def _number(self, value: float) -> str:
        return self._constant(np.array(value, "float32"))

    def _constant(self, value: np.ndarray) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def _emit(self, kind: str, inputs: Sequence[str], channels: int, **attrs: Any) -> str:
        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        self._channels[name] = channels
        return name


def googlenet() -> onnx.ModelProto:
    """GoogLeNet at 224 x 224."""
    w = Writer()

    def pool(x: str) -> str:
        return w.pool("MaxPool", x, 3, 2, ceil=True)

    def block(x: str, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> str:
        parts = [w.chain(x, (inner,), (outer, 3, 1, 1)) for inner, outer in (three, five)]
        return w.concat(w.conv(x, one), *parts, w.conv(w.pool("MaxPool", x, 3, 1, 1), pooled))

    x = pool(w.conv("input", 64, 7, 2, 3))
    x = pool(w.chain(x, (64,), (192, 3, 1, 1)))
    x = block(x, 64, (96, 128), (16, 32), 32)
    x = pool(block(x, 128, (128, 192), (32, 96), 64))
    x = block(x, 192, (96, 208), (16, 48), 64)
    x = block(x, 160, (112, 224), (24, 64), 64)
    x = block(x, 128, (128, 256), (24, 64), 64)
    x = block(x, 112, (144, 288), (32, 64), 64)
    x = block(x, 256, (160, 320), (32, 128), 128)
    x = w.pool("MaxPool", x, 2, 2, ceil=True)
    x = block(x, 256, (160, 320), (32, 128), 128)
    return w.model(224, w.classify(block(x, 384, (192, 384), (48, 128), 128)))


def inception_v3() -> onnx.ModelProto:
    """Inception V3 at 299 x 299."""
    w = Writer()

    def mean(x: str) -> str:
        return w.pool("AveragePool", x, 3, 1, 1)

    def largest(x: str) -> str:
        return w.pool("MaxPool", x, 3, 2)

    x = w.chain("input", (32, 3, 2), (32, 3), (64, 3, 1, 1))
    x = largest(w.chain(largest(x), (80,), (192, 3)))
    for pooled in (32, 64, 64):
        x = w.concat(
            w.conv(x, 64), w.chain(x, (48,), (64, 5, 1, 2)), w.chain(x, (64,), (96, 3, 1, 1), (96, 3, 1, 1)),
            w.conv(mean(x), pooled),
        )  # fmt: skip
    x = w.concat(w.conv(x, 384, 3, 2), w.chain(x, (64,), (96, 3, 1, 1), (96, 3, 2)), largest(x))
    across, down = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    for c in (128, 160, 160, 192):
        x = w.concat(
            w.conv(x, 192), w.chain(x, (c,), (c, *across), (192, *down)),
            w.chain(x, (c,), (c, *down), (c, *across), (c, *down), (192, *across)), w.conv(mean(x), 192),
        )  # fmt: skip
    x = w.concat(
        w.chain(x, (192,), (320, 3, 2)), w.chain(x, (192,), (192, *across), (192, *down), (192, 3, 2)), largest(x)
    )
    for _ in range(2):
        three, double = w.conv(x, 384), w.chain(x, (448,), (384, 3, 1, 1))
        wide = [w.conv(y, 384, k, 1, p) for y in (three, double) for k, p in (((1, 3), (0, 1)), ((3, 1), (1, 0)))]
        x = w.concat(w.conv(x, 320), *wide, w.conv(mean(x), 192))
    return w.model(299, w.classify(x))


def squeezenet() -> onnx.ModelProto:
    """SqueezeNet 1.1 at 224 x 224."""
    w = Writer()
    x = w.pool("MaxPool", w.conv("input", 64, 3, 2), 3, 2, ceil=True)
    for k, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        small = w.conv(x, squeezed)
        x = w.concat(w.conv(small, 4 * squeezed), w.conv(small, 4 * squeezed, 3, 1, 1))
        x = w.pool("MaxPool", x, 3, 2, ceil=True) if k in (1, 3) else x
    return w.model(224, w.mean(w.conv(x, 1000)))


def resnet18() -> onnx.ModelProto:
    """Build ResNet-18 at 224 x 224."""
    w = Writer()
    x = w.pool("MaxPool", w.conv("input", 64, 7, 2, 3), 3, 2, 1)
    for channels in (64, 128, 256, 512):
        for k in range(2):
            stride = 2 if k == 0 and channels > 64 else 1
            given = w.conv(x, channels, 1, stride, relu=False) if stride == 2 else x
            inner = w.conv(w.conv(x, channels, 3, stride, 1), channels, 3, 1, 1, relu=False)
            x = w.relu(w.apply("Add", inner, given))
    return w.model(224, w.classify(x))


def shufflenet_v2() -> onnx.ModelProto:
    """ShuffleNet V2 1.0x at 224 x 224."""
    w = Writer()
    x, size = w.pool("MaxPool", w.conv("input", 24, 3, 2, 1), 3, 2, 1), 56
    for channels, repeats in ((116, 4), (232, 8), (464, 4)):
        half, size = channels // 2, size // 2
        for k in range(repeats):
            stride = 2 if k == 0 else 1
            left, right = (x, x) if k == 0 else w.halves(x)
            inner = w.conv(right, half)
            inner = w.conv(w.conv(inner, half, 3, stride, 1, half, relu=False), half)
            if k == 0:
                left = w.conv(w.conv(left, w._channels[left], 3, 2, 1, w._channels[left], relu=False), half)
            x = w.shuffle(w.concat(left, inner), size)
    return w.model(224, w.classify(w.conv(x, 1024)))


def efficientnet_b0() -> onnx.ModelProto:
    """Build EfficientNet B0 at 224 x 224, SiLU as a sigmoid and a product."""
    w = Writer()
    x = w.silu(w.conv("input", 32, 3, 2, 1, relu=False))
    blocks = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
              (6, 320, 1, 1, 3))  # fmt: skip
    for expansion, channels, repeats, first, window in blocks:
        for k in range(repeats):
            given, wide, stride = x, w.channels(x) * expansion, first if k == 0 else 1
            x = w.silu(w.conv(x, wide, relu=False)) if expansion > 1 else x
            x = w.silu(w.conv(x, wide, window, stride, window // 2, wide, relu=False))
            x = w.excited(x, max(1, w.channels(given) // 4), w.silu, w.sigmoid)
            x = w.conv(x, channels, relu=False)
            x = w.apply("Add", x, given) if stride == 1 and w.channels(given) == channels else x
    return w.model(224, w.classify(w.silu(w.conv(x, 1280, relu=False))))


def mobilenet_v2() -> onnx.ModelProto:
    """Build MobileNetV2 1.0 at 224 x 224."""
    w = Writer()
    x = w.relu6(w.conv("input", 32, 3, 2, 1, relu=False))
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, channels, repeats, first in blocks:
        for k in range(repeats):
            given, wide, stride = x, w.channels(x) * expansion, first if k == 0 else 1
            x = w.relu6(w.conv(x, wide, relu=False)) if expansion > 1 else x
            x = w.conv(w.relu6(w.conv(x, wide, 3, stride, 1, wide, relu=False)), channels, relu=False)
            x = w.apply("Add", x, given) if stride == 1 and w.channels(given) == channels else x
    return w.model(224, w.classify(w.relu6(w.conv(x, 1280, relu=False))))


def mobilenet_v3_small() -> onnx.ModelProto:
    """Build MobileNetV3 Small at 224 x 224."""
    w = Writer()
    x = w.hard_swish(w.conv("input", 16, 3, 2, 1, relu=False))
    blocks = (
        (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1), (5, 96, 40, True, True, 2),
        (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1), (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1),
        (5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
    )  # fmt: skip
    for window, wide, channels, excited, hard, stride in blocks:
        given, act = x, w.hard_swish if hard else w.relu
        x = act(w.conv(x, wide, relu=False)) if wide != w.channels(x) else x
        x = act(w.conv(x, wide, window, stride, window // 2, wide, relu=False))
        x = w.excited(x, (wide // 4 + 4) // 8 * 8, w.relu, w.hard_sigmoid) if excited else x
        x = w.conv(x, channels, relu=False)
        x = w.apply("Add", x, given) if stride == 1 and w.channels(given) == channels else x
    x = w.mean(w.hard_swish(w.conv(x, 576, relu=False)))
    x = w.hard_swish(w.conv(x, 1024, relu=False))
    return w.model(224, w.conv(x, 1000, relu=False))


def _bert(layers: int, wide: int, heads: int, tokens: int) -> onnx.ModelProto:
    w = Writer(wide=wide)
    x = w.norm("input")
    for _ in range(layers):
        x = w.norm(w.apply("Add", x, w.attention(x, tokens, heads)))
        x = w.norm(w.apply("Add", x, w.feed_forward(x, 4 * wide)))
    return w.model((1, tokens, wide), x)


def bert_tiny() -> onnx.ModelProto:
    """Build BERT's encoder behind its embeddings: 2 layers, 128 wide, 2 heads, 128 tokens; GELU by Erf, as PyTorch exports it."""
    return _bert(2, 128, 2, 128)


def bert_base_layer() -> onnx.ModelProto:
    """Build one layer of BERT-base behind its embeddings: 768 wide, 12 heads, 3072 hidden, 128 tokens; GELU by Erf."""
    return _bert(1, 768, 12, 128)


def vit_tiny() -> onnx.ModelProto:
    """Build four layers of ViT-Tiny at 224 x 224: patches of 16 x 16, 196 tokens and one of the class, 192 wide, 3 heads."""
    w = Writer()
    x = w.tokens(w.conv("input", 192, 16, 16, relu=False), 196)
    for _ in range(4):
        x = w.apply("Add", x, w.attention(w.norm(x), 197, 3))
        x = w.apply("Add", x, w.feed_forward(w.norm(x), 768))
    return w.model(224, w.linear(w.norm(x), 1000))


def whisper_tiny_encoder(frames: int = 3000, layers: int = 4) -> onnx.ModelProto:
    """Build Whisper's tiny encoder: 80 mel bands of 3000 frames, 1500 tokens, 384 wide, 6 heads, four layers."""
    w = Writer(wide=80)
    x = w.gelu(w.conv1d(w.gelu(w.conv1d("input", 384, 1)), 384, 2))
    x = w.positioned(w.apply("Transpose", x, perm=[0, 2, 1]), frames // 2)
    for _ in range(layers):
        x = w.apply("Add", x, w.attention(w.norm(x), frames // 2, 6))
        x = w.apply("Add", x, w.feed_forward(w.norm(x), 1536))
    return w.model((1, 80, frames), w.norm(x))


def whisper_tiny_layer() -> onnx.ModelProto:
    """Build Whisper's tiny encoder with 300 frames and one layer, which callgrind counts in minutes."""
    return whisper_tiny_encoder(300, 1)


def llama_block() -> onnx.ModelProto:
    """Build a step of a decoder block of Llama: 512 wide, 8 heads of 64 in two groups, 1408 hidden, 127 tokens cached."""
    w, past, (heads, groups, depth) = Writer(wide=512), 127, (8, 2, 64)
    keys, values = (w.input(name, 1, groups, past, depth) for name in ("past_keys", "past_values"))
    cos, sin = (w.input(name, 1, 1, 1, depth) for name in ("cos", "sin"))
    x = w.rms_norm("input")
    q, k, v = (w.head(w.product(x, n * depth), n, depth) for n in (heads, groups, groups))
    keys, values = w.cached(keys, w.rotated(k, cos, sin)), w.cached(values, v)
    shape = (1, groups, past + 1, depth)
    mixed = w.attended(w.rotated(q, cos, sin), *(w.repeated(c, heads // groups, shape) for c in (keys, values)))
    y = w.apply("Add", "input", w.product(w.joined(mixed, heads * depth), 512))
    x = w.rms_norm(y)
    gated = w.apply("Mul", w.silu(w.product(x, 1408)), w.product(x, 1408))
    return w.model((1, 1, 512), w.apply("Add", y, w.product(gated, 512)), keys, values)


def in_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize products dynamically by ONNX Runtime: activations uint8 as the network runs, weights int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        quantize_dynamic(model, Path(folder) / "model.onnx", weight_type=QuantType.QInt8)
        return onnx.load(Path(folder) / "model.onnx")


def by_bits(model: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Store the weights of products in so many bits by ONNX Runtime, symmetric, with scales for blocks of 32."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer: Any = MatMulNBitsQuantizer(model, bits=bits, block_size=32, is_symmetric=True)
    quantizer.process()
    return quantizer.model.model


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "googlenet": googlenet,
    "inception_v3": inception_v3,
    "squeezenet_1_1": squeezenet,
    "shufflenet_v2": shufflenet_v2,
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3_small": mobilenet_v3_small,
    "efficientnet_b0": efficientnet_b0,
    "bert_tiny": bert_tiny,
    "bert_base_layer": bert_base_layer,
    "vit_tiny": vit_tiny,
    "whisper_tiny_encoder": whisper_tiny_encoder,
    "whisper_tiny_layer": whisper_tiny_layer,
    "llama_block": llama_block,
    "bert_tiny_int8": lambda: in_integers(bert_tiny()),
    "llama_block_int8": lambda: in_integers(llama_block()),
    "llama_block_4bits": lambda: by_bits(llama_block(), 4),
    "llama_block_8bits": lambda: by_bits(llama_block(), 8),
}


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Draw inputs of a model from a standard normal distribution."""
    random = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
