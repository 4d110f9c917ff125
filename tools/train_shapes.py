"""Train the demo's network with numpy, quantize it to int8 and write `tvm_cascade/testing/data/shapes.tflite`.

    python tools/train_shapes.py            (about ten minutes on one core; deterministic for one numpy build)

A depthwise-separable network with one residual block on 64x64 grey images. Weights are quantized per channel and
symmetric, activations per tensor from their range over calibration images, as the TFLite converter does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tvm_cascade.testing.shapes import CLASSES, dataset

OUT = Path(__file__).parent.parent / "tvm_cascade" / "testing" / "data" / "shapes.tflite"


@dataclass
class Layer:
    """kind: conv, dw, add (with the output of layer `skip`), mean, dense. Weights HWIO, HWC or IO."""

    kind: str
    stride: int = 1
    relu: bool = False
    skip: int = -1
    w: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    b: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


def network(seed: int = 3) -> list[Layer]:
    rng = np.random.default_rng(seed)

    def he(*shape: int, fan: int) -> np.ndarray:
        return (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)

    def conv(k: int, i: int, o: int, stride: int = 1, relu: bool = True) -> Layer:
        return Layer("conv", stride, relu, w=he(k, k, i, o, fan=k * k * i), b=np.zeros(o, np.float32))

    def dw(c: int, stride: int = 1) -> Layer:
        return Layer("dw", stride, True, w=he(3, 3, c, fan=9), b=np.zeros(c, np.float32))

    return [
        conv(3, 1, 8),
        dw(8, 2),
        conv(1, 8, 16),
        dw(16, 2),
        conv(1, 16, 24),
        dw(24, 1),
        conv(1, 24, 24, relu=False),
        Layer("add", relu=True, skip=4),
        dw(24, 2),
        conv(1, 24, 48),
        Layer("mean"),
        Layer("dense", w=he(48, len(CLASSES), fan=48), b=np.zeros(len(CLASSES), np.float32)),
    ]


def pads(size: int, k: int, s: int) -> tuple[int, int, int]:
    out = -(-size // s)
    total = max((out - 1) * s + k - size, 0)
    return out, total // 2, total - total // 2


def patches(x: np.ndarray, k: int, s: int) -> np.ndarray:
    """[n, oh, ow, k, k, c] windows, SAME."""
    oh, t, b = pads(x.shape[1], k, s)
    ow, l, r = pads(x.shape[2], k, s)
    xp = np.pad(x, ((0, 0), (t, b), (l, r), (0, 0)))
    v = np.lib.stride_tricks.sliding_window_view(xp, (k, k), axis=(1, 2))[:, ::s, ::s][:, :oh, :ow]
    return v.transpose(0, 1, 2, 4, 5, 3)


def scatter(d: np.ndarray, shape: tuple[int, ...], k: int, s: int) -> np.ndarray:
    """The gradient of `patches`."""
    n, h, w, c = shape
    oh, t, b = pads(h, k, s)
    ow, l, r = pads(w, k, s)
    g = np.zeros((n, h + t + b + s, w + l + r + s, c), np.float32)
    for i in range(k):
        for j in range(k):
            g[:, i : i + oh * s : s, j : j + ow * s : s] += d[:, :, :, i, j]
    return g[:, t : t + h, l : l + w]


def forward(net: list[Layer], x: np.ndarray) -> list[np.ndarray]:
    """Every layer's output; index 0 is the input."""
    acts = [x]
    for layer in net:
        a = acts[-1]
        if layer.kind == "conv":
            k = layer.w.shape[0]
            y = (
                (a[:, :: layer.stride, :: layer.stride] @ layer.w[0, 0])
                if k == 1
                else np.tensordot(patches(a, k, layer.stride), layer.w, 3)
            )
            y = y + layer.b
        elif layer.kind == "dw":
            y = np.einsum("nhwijc,ijc->nhwc", patches(a, 3, layer.stride), layer.w) + layer.b
        elif layer.kind == "add":
            y = a + acts[layer.skip + 1]
        elif layer.kind == "mean":
            y = a.mean((1, 2))
        else:
            y = a @ layer.w + layer.b
        acts.append(np.maximum(y, 0) if layer.relu else y)
    return acts


def backward(net: list[Layer], acts: list[np.ndarray], grad: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Gradients of weights and biases."""
    pending = {len(net): grad}
    grads = [(np.zeros_like(layer.w), np.zeros_like(layer.b)) for layer in net]
    for i in range(len(net) - 1, -1, -1):
        layer, a, g = net[i], acts[i], pending.pop(i + 1)
        if layer.relu:
            g = g * (acts[i + 1] > 0)
        if layer.kind == "conv":
            k = layer.w.shape[0]
            p = patches(a, k, layer.stride)
            grads[i] = (np.tensordot(p, g, ([0, 1, 2], [0, 1, 2])), g.sum((0, 1, 2)))
            back = scatter(np.tensordot(g, layer.w, ([3], [3])), a.shape, k, layer.stride)
        elif layer.kind == "dw":
            p = patches(a, 3, layer.stride)
            grads[i] = (np.einsum("nhwijc,nhwc->ijc", p, g), g.sum((0, 1, 2)))
            back = scatter(g[:, :, :, None, None] * layer.w, a.shape, 3, layer.stride)
        elif layer.kind == "add":
            pending[layer.skip + 1] = pending.get(layer.skip + 1, 0) + g
            back = g
        elif layer.kind == "mean":
            back = np.broadcast_to(g[:, None, None] / (a.shape[1] * a.shape[2]), a.shape).astype(np.float32)
        else:
            grads[i] = (a.T @ g, g.sum(0))
            back = g @ layer.w.T
        pending[i] = pending.get(i, 0) + back
    return grads


def train(net: list[Layer], epochs: int = 14, batch: int = 32) -> None:
    x, labels = dataset(6000, 1)
    rng = np.random.default_rng(7)
    moments = [[np.zeros_like(v) for v in (layer.w, layer.w, layer.b, layer.b)] for layer in net]
    step = 0
    for epoch in range(epochs):
        order, right = rng.permutation(len(x)), 0
        for i in range(0, len(x), batch):
            pick = order[i : i + batch]
            acts = forward(net, x[pick] - 0.5)
            logits = acts[-1] - acts[-1].max(1, keepdims=True)
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            right += int((p.argmax(1) == labels[pick]).sum())
            p[np.arange(len(pick)), labels[pick]] -= 1
            step += 1
            rate = 4e-3 * min(1, step / 100) * (1 - step / (epochs * (len(x) // batch + 1)))
            for layer, m, (gw, gb) in zip(net, moments, backward(net, acts, p / len(pick)), strict=True):
                for j, (v, g) in enumerate(((layer.w, gw), (layer.b, gb))):
                    m[2 * j] += 0.1 * (g - m[2 * j])
                    m[2 * j + 1] += 0.001 * (g * g - m[2 * j + 1])
                    hat = m[2 * j + 1] / (1 - 0.999**step)
                    v -= (rate * m[2 * j] / (1 - 0.9**step) / (np.sqrt(hat) + 1e-8)).astype(np.float32)
        print(f"epoch {epoch + 1}: {right / len(x):.3f} of the training images", flush=True)


if __name__ == "__main__":
    from quantize_shapes import write

    net = network()
    train(net)
    x, labels = dataset(1000, 2)
    print("float accuracy on unseen images", (forward(net, x - 0.5)[-1].argmax(1) == labels).mean())
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(write(net, x[:200]))
    print(OUT, OUT.stat().st_size, "bytes")
