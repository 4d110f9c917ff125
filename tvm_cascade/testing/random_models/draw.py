"""`draw`: a random network from a seed.

Operators read any earlier operand, late ones more often, so that there are branches, residual sums and several readers. Two
fifths of the networks are mostly of windows over images, two fifths mostly of views (reshape, transpose, slice, gather by
constants, expand) of any rank, a fifth of windows along signals, between views as Keras writes them. Layers may share
weights; any operand, an input too, may be an output, also twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from tvm_cascade.testing.random_models.model import FORMS, OPSETS, STORED, Operand, RandomModel, Shape, Step

LARGEST = 1200  # elements of an operand
_MOST_OUTPUTS = 5


def draw(
    seed: int, door: str | None = None, form: str | None = None, steps: int | None = None, opset: int | None = None
) -> RandomModel:
    """Return the network of `seed`; door, form, number of operators and opset are drawn where they are not given."""
    rng = np.random.default_rng([seed, 1])
    door = door or str(rng.choice(["tflite", "onnx"]))
    form = form or str(rng.choice(FORMS[door]))
    opset = opset or _opset(rng, form)
    drawer = _Drawer(np.random.default_rng([seed, 2]), door, form, opset)
    drawer.signals = np.random.default_rng([seed, 7]).random() < 0.2
    return drawer.network(seed, steps or int(np.random.default_rng([seed, 6]).integers(2, 14)))


def draw_operators(
    seed: int, count: int, door: str, form: str, opset: int | None = None, but: Sequence[str] = ()
) -> RandomModel:
    """Return `count` independent operators, each with inputs of its own, as one network; none of the kinds in `but`."""
    rng = np.random.default_rng([seed, 1])
    drawer = _Drawer(np.random.default_rng([seed, 2]), door, form, opset or _opset(rng, form))
    return drawer.operators(seed, count, but)


def _opset(rng: np.random.Generator, form: str) -> int:
    """Draw an opset; 10 is the first with quantized operators."""
    return int(rng.integers(10 if form != "float32" else OPSETS.start, OPSETS.stop))


class _Drawer:
    def __init__(self, rng: np.random.Generator, door: str, form: str, opset: int) -> None:
        self.rng, self.door, self.form, self.opset = rng, door, form, opset
        self.operands: list[Operand] = []
        self.steps: list[Step] = []
        self.inputs: list[int] = []
        self.live: list[int] = []  # operands that operators may read
        self.layers: list[tuple[Any, int]] = []  # what weights depend on, and their seed
        self.channel, self.rows = (3, 1) if door == "tflite" else (1, 2)
        self.quantized = form != "float32"
        self.stored = STORED.get(form, form)  # type of stored numbers
        self.views = rng.random() < 0.5
        self.signals = False  # windows go along operands of three axes
        self.further = form == "float32"  # quantizers leave these operators float

    # Whole networks.

    def network(self, seed: int, count: int) -> RandomModel:
        for _ in range(1 + (self.chance(0.3)) + (self.chance(0.1))):
            self.live.append(self.input(self.first_shape()))
        tries = 0
        while len(self.steps) < count and tries < 40 * count:
            tries += 1
            self.live += self.grow(self.recent())
        return self.finish(seed)

    def operators(self, seed: int, count: int, but: Sequence[str]) -> RandomModel:
        outputs: list[int] = []
        while len(outputs) < count:
            self.views = self.chance(0.5)
            shape, before = self.first_shape(), (len(self.operands), len(self.inputs), len(self.steps))
            self.live = [self.input(shape) for _ in range(2)]
            made = self.grow(self.live[0])
            if not made or {s.kind for s in self.steps[before[2] :]} & set(but):
                del self.operands[before[0] :], self.inputs[before[1] :], self.steps[before[2] :]
                continue
            read = {t for s in self.steps[before[2] :] for t in s.inputs}
            self.inputs = [t for t in self.inputs if t < before[0] or t in read]
            outputs += [t for s in self.steps[before[2] :] for t in s.outputs if t not in read]
        return self.model(seed, outputs)

    def first_shape(self) -> Shape:
        if self.signals:
            steps, channels = self.int(8, 81), self.int(1, 9)
            return (1, steps, channels) if self.channel == 3 else (1, channels, steps)
        if self.views and self.chance(0.5):
            rank = int(self.pick((1, 2, 3, 3, 4)))
            return tuple(self.int(1, 8) for _ in range(rank))
        image = [1, self.int(3, 13), self.int(2, 12), self.int(1, 7)]
        if self.chance(0.05):
            image[0] = 2
        n, h, w, c = image
        return (n, h, w, c) if self.channel == 3 else (n, c, h, w)

    def finish(self, seed: int) -> RandomModel:
        read = {t for step in self.steps for t in step.inputs}
        made = [t for step in self.steps for t in step.outputs]
        ends = [t for t in made if t not in read][-_MOST_OUTPUTS:]
        outputs = [*ends, *(t for t in made if t in read and self.chance(0.08))]
        if self.chance(0.06):
            outputs.append(int(self.pick(self.inputs)))
        if self.chance(0.03) and outputs and self.door != "pt2":
            outputs.append(outputs[0])
        order = self.rng.permutation(len(outputs)) if self.chance(0.3) else range(len(outputs))
        return self.model(seed, [outputs[int(k)] for k in order] or self.inputs[:1])

    def model(self, seed: int, outputs: Sequence[int]) -> RandomModel:
        sides = (tuple(self.operands), tuple(self.inputs), tuple(self.steps), tuple(outputs))
        return RandomModel(seed, self.door, self.form, self.opset, *sides)

    # Draws.

    def int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def recent(self) -> int:
        return self.live[-1] if self.chance(0.55) else int(self.pick(self.live))

    def shape(self, x: int) -> Shape:
        return self.operands[x].shape

    # Operands.

    def operand(self, shape: Sequence[int], scale: float | None = None, zero_point: int | None = None) -> int:
        """Add a real operand; without a scale it gets one under which values of about unit variance fill the type."""
        if scale is None:
            scale, zero_point = self.quantization()
        self.operands.append(Operand(tuple(shape), "real", scale, zero_point or 0))
        return len(self.operands) - 1

    def quantization(self) -> tuple[float, int]:
        steps = {"int16": 8000.0}.get(self.form, 32.0)
        zero = 0 if self.form == "int16" else self.int(-40, 41) + (128 if self.stored == "uint8" else 0)
        return float(np.float32(self.rng.uniform(0.7, 1.8) / steps)), zero

    def input(self, shape: Shape) -> int:
        self.inputs.append(self.operand(shape))
        return self.inputs[-1]

    def like(self, x: int, shape: Sequence[int]) -> int:
        """Add an operand of the quantization of another."""
        return self.operand(shape, self.operands[x].scale, self.operands[x].zero_point)

    def requantized(self, x: int, like: int) -> int:
        """Return `x` in the quantization of `like`, by an operator of its own where they differ."""
        a, b = self.operands[x], self.operands[like]
        if not self.quantized or (a.scale, a.zero_point) == (b.scale, b.zero_point):
            return x
        return self.add("requantize", [x], [self.like(like, a.shape)])[0]

    def add(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], **attrs: Any) -> list[int]:
        self.steps.append(Step(kind, tuple(inputs), tuple(outputs), attrs))
        return list(outputs)

    # Operators.

    def grow(self, x: int) -> list[int]:
        """Add one operator that reads `x`; return its outputs, none where the one that was drawn does not fit."""
        image = len(self.shape(x)) == 4
        windows = _WINDOWS if image else ()
        kinds = (*_ANY, *_VIEWS, *_VIEWS, *_VIEWS) if self.views else (*windows, *windows, *_ANY, *_VIEWS[::2])
        kinds = (*(_signal,) * 16, *_ANY, *_VIEWS[::3]) if self.signals else kinds
        kinds = _FURTHER if self.further and self.chance(0.2) else kinds
        made = self.pick(kinds)(self, x)
        return [t for t in made if self.operands[t].kind == "real"]

    def spatial(self, x: int) -> tuple[int, int, int, int]:
        """Return batch, rows, columns and channels."""
        shape = self.shape(x)
        return shape[0], shape[self.rows], shape[self.rows + 1], shape[self.channel]

    def image(self, n: int, h: int, w: int, c: int) -> Shape:
        return (n, h, w, c) if self.channel == 3 else (n, c, h, w)

    def window(self, x: int, most: int, dilated: bool = True) -> dict[str, Any] | None:
        """Draw kernel, stride, dilation and padding; None where nothing of `x` is left."""
        _, h, w, _ = self.spatial(x)
        kernel = (self.int(1, most + 1), self.int(1, most + 1)) if self.chance(0.6) else (self.pick((1, 3)),) * 2
        kernel = (1, kernel[1]) if self.signals else kernel
        stride = (self.int(1, 4), self.int(1, 3)) if self.chance(0.4) else (1, 1)
        dilation = (self.int(1, 3), self.int(1, 3)) if dilated and self.chance(0.2) else (1, 1)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        padding = str(self.pick(("same", "same", "valid") if self.door == "tflite" else ("same", "valid", "explicit")))
        pads = [0, 0, 0, 0]
        if padding == "same":
            for k, (size, span, step) in enumerate(zip((h, w), spans, stride, strict=True)):
                total = max((-(-size // step) - 1) * step + span - size, 0)
                pads[k], pads[k + 2] = total // 2, total - total // 2
        elif padding == "explicit":
            limits = [max(1, min(s, k)) for s, k in zip(spans, kernel, strict=True)] * 2
            pads = [self.int(0, limit) for limit in limits]
            if self.door == "pt2":
                pads[2:] = pads[:2]
        if self.door == "pt2" and pads[:2] != pads[2:]:
            return None
        sizes = [(n + pads[k] + pads[k + 2] - spans[k]) // stride[k] + 1 for k, n in enumerate((h, w))]
        if min(sizes) < 1 or spans[0] > h + pads[0] + pads[2] or spans[1] > w + pads[1] + pads[3]:
            return None
        made = {"kernel": kernel, "stride": stride, "dilation": dilation, "padding": padding}
        return made | {"pads": tuple(pads), "size": tuple(sizes)}

    def activation(self) -> str | None:
        return self.pick((None, None, "relu", "relu6"))

    def layer(self, *form: Any) -> int:
        """Return a seed of weights; that of an earlier layer of the same form now and then."""
        alike = [seed for known, seed in self.layers if known == form]
        seed = self.pick(alike) if alike and self.chance(0.4) else self.int(0, 1 << 30)
        self.layers.append((form, seed))
        return seed


Kind = Callable[[_Drawer, int], list[int]]


def _conv(d: _Drawer, x: int) -> list[int]:
    window, (n, _, _, c) = d.window(x, 4), d.spatial(x)
    if window is None:
        return []
    groups = int(d.pick([g for g in range(1, c + 1) if c % g == 0])) if d.chance(0.15) else 1
    if groups > 1 and d.form in ("uint8", "int16"):
        groups = 1
    channels = groups * d.int(1, 9 if groups == 1 else 4)
    terms = prod(window["kernel"]) * (c // groups)
    seed = d.layer("conv", window["kernel"], c, groups, channels)
    out = d.operand(d.image(n, window["size"][0], window["size"][1], channels))
    how = {"channels": channels, "groups": groups, "terms": terms, "weights": seed, "bias": d.chance(0.8)}
    return d.add("conv", [x], [out], **window, **how, activation=d.activation())


def _depthwise(d: _Drawer, x: int) -> list[int]:
    window, (n, _, _, c) = d.window(x, 4), d.spatial(x)
    if window is None or c == 1:
        return []
    channels = c * (2 if d.chance(0.15) else 1)
    seed = d.layer("depthwise", window["kernel"], c, channels)
    out = d.operand(d.image(n, window["size"][0], window["size"][1], channels))
    how = {"channels": channels, "groups": c, "terms": prod(window["kernel"]), "weights": seed, "bias": d.chance(0.8)}
    return d.add("depthwise", [x], [out], **window, **how, activation=d.activation())


def _deconv(d: _Drawer, x: int) -> list[int]:
    n, h, w, c = d.spatial(x)
    kernel, stride = (d.int(1, 4), d.int(1, 4)), (d.int(1, 3), d.int(1, 3))
    size, channels = tuple((e - 1) * s + max(k, s) for e, s, k in zip((h, w), stride, kernel, strict=True)), d.int(1, 5)
    if any(k < s for k, s in zip(kernel, stride, strict=True)) or prod(size) * channels > LARGEST:
        return []
    seed = d.layer("deconv", kernel, c, channels)
    how = {"kernel": kernel, "stride": stride, "channels": channels, "terms": max(1, prod(kernel) * c // prod(stride))}
    return d.add(
        "deconv",
        [x],
        [d.operand(d.image(n, size[0], size[1], channels))],
        **how,
        size=size,
        weights=seed,
        bias=d.chance(0.5),
    )


def _pool(d: _Drawer, x: int) -> list[int]:
    window, (n, _, _, c) = d.window(x, 3, dilated=False), d.spatial(x)
    if window is None or any(p >= k for p, k in zip(window["pads"], window["kernel"] * 2, strict=True)):
        return []
    if d.door == "pt2" and any(2 * p > k for p, k in zip(window["pads"], window["kernel"] * 2, strict=True)):
        return []
    kind = d.pick(("max_pool", "avg_pool"))
    out = d.like(x, d.image(n, window["size"][0], window["size"][1], c))
    counts = d.chance(0.5) and d.door != "tflite"
    return d.add(kind, [x], [out], **window, count_include_pad=counts)


def _global(d: _Drawer, x: int) -> list[int]:
    n, _, _, c = d.spatial(x)
    return d.add("reduce", [x], [d.operand(d.image(n, 1, 1, c))], op="mean", axes=(d.rows, d.rows + 1), keepdims=True)


def _gate(d: _Drawer, x: int) -> list[int]:
    """Multiply an image by a sigmoid of its means, as squeeze and excitation does."""
    (mean,) = _global(d, x)
    (gate,) = _apply(d, mean, "sigmoid")
    return _joined(d, "mul", x, gate)


def _signal(d: _Drawer, x: int) -> list[int]:
    """Move a window along an operand of three axes, between views, and often add constants or multiply by them."""
    shape, first = d.shape(x), len(d.steps)
    if len(shape) != 3:
        return []
    row = (shape[0], 1, *shape[1:]) if d.channel == 3 else (*shape[:2], 1, shape[2])
    (image,) = d.add("reshape", [x], [d.like(x, row)], shape=row)
    made = d.pick((_conv, _conv, _depthwise, _pool))(d, image)
    if not made or d.spatial(made[0])[1] != 1:
        del d.steps[first:]
        return []
    n, _, w, c = d.spatial(made[0])
    back = (n, w, c) if d.channel == 3 else (n, c, w)
    made = d.add("reshape", made, [d.like(made[0], back)], shape=back)
    return _with_constant(d, made[0], str(d.pick(("add", "add", "mul", "sub")))) if d.chance(0.5) else made


def _resize(d: _Drawer, x: int) -> list[int]:
    n, h, w, c = d.spatial(x)
    size = (h * d.int(1, 4), w * d.int(1, 4)) if d.chance(0.5) else (d.int(1, 2 * h + 1), d.int(1, 2 * w + 1))
    mode = d.pick(("nearest", "linear"))
    if d.door != "tflite" and (d.form != "float32" or d.opset < 11):
        size, mode = (h * d.int(1, 4), w * d.int(1, 4)), "nearest"
    if prod(size) * c > LARGEST:
        return []
    corners = d.pick(("asymmetric", "half_pixel", "align_corners"))
    if d.opset < 11 and d.door == "onnx":
        corners = "asymmetric"
    if mode == "nearest" and d.door != "tflite":
        corners = "asymmetric"
    return d.add("resize", [x], [d.like(x, d.image(n, *size, c))], size=size, mode=mode, corners=corners)


def _blocks(d: _Drawer, x: int) -> list[int]:
    n, h, w, c = d.spatial(x)
    b = int(d.pick((2, 2, 3)))
    if d.form == "int16":
        return []
    if c % (b * b) == 0:
        return d.add("depth_to_space", [x], [d.like(x, d.image(n, h * b, w * b, c // (b * b)))], block=b)
    if h % b == 0 and w % b == 0:
        return d.add("space_to_depth", [x], [d.like(x, d.image(n, h // b, w // b, c * b * b))], block=b)
    return []


def _dense(d: _Drawer, x: int) -> list[int]:
    shape, units = d.shape(x), d.int(1, 12)
    if len(shape) < 2 or prod(shape[:-1]) * units > LARGEST:
        return []
    if len(shape) > 2 and d.chance(0.5):
        (x,) = d.add("reshape", [x], [d.like(x, (shape[0], prod(shape[1:])))], shape=(shape[0], prod(shape[1:])))
        shape = d.shape(x)
    seed = d.layer("dense", shape[-1], units)
    how = {"units": units, "terms": shape[-1], "weights": seed, "bias": d.chance(0.8)}
    return d.add("dense", [x], [d.operand((*shape[:-1], units))], **how, activation=d.activation())


def _matmul(d: _Drawer, x: int) -> list[int]:
    """Multiply two computed operands; the second is one of a fitting shape, or `x` transposed."""
    shape = d.shape(x)
    if len(shape) not in (2, 3, 4) or d.form in ("uint8", "int16") or d.form == "qlinear":
        return []
    fits = [
        t
        for t in d.live
        if len(d.shape(t)) == len(shape) and d.shape(t)[:-2] == shape[:-2] and d.shape(t)[-2] == shape[-1]
    ]
    if fits and d.chance(0.6):
        y = int(d.pick(fits))
    else:
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        (y,) = d.add("transpose", [x], [d.like(x, [shape[a] for a in axes])], axes=axes)
    out = (*shape[:-1], d.shape(y)[-1])
    if prod(out) > LARGEST:
        return []
    scale, zero = d.quantization()
    return d.add("matmul", [x, y], [d.operand(out, float(np.float32(scale * sqrt(shape[-1]))), zero)])


_FIXED = {"sigmoid": (1 / 256, -128), "tanh": (1 / 128, 0), "softmax": (1 / 256, -128)}  # of int8, by TFLite


def _fixed(d: _Drawer, op: str, shape: Shape) -> int:
    if not d.quantized or op not in _FIXED or d.door != "tflite":
        return d.operand(shape)
    if d.form == "int16":
        return d.operand(shape, 1 / 32768, 0)
    scale, zero = _FIXED[op]
    return d.operand(shape, scale, zero + (128 if d.form == "uint8" else 0))


def _apply(d: _Drawer, x: int, op: str) -> list[int]:
    return d.add("unary", [x], [_fixed(d, op, d.shape(x))], op=op)


def _unary(d: _Drawer, x: int) -> list[int]:
    ops = ["relu", "relu", "relu6", "sigmoid", "tanh", "leaky_relu"]
    if d.form in ("int8", "float32") or d.form.startswith("qdq"):
        ops += ["hard_swish", "abs"]
    if d.form == "float32":
        ops += ["neg", "square", "root", "exp_tanh", "sin"]
    return _apply(d, x, str(d.pick(ops)))


def _softmax(d: _Drawer, x: int) -> list[int]:
    rank = len(d.shape(x))
    if rank == 0 or d.shape(x)[-1] == 1:
        return []
    axis = rank - 1 if d.door == "tflite" or (d.door == "onnx" and d.opset < 13) or d.chance(0.6) else d.int(0, rank)
    if d.shape(x)[axis] == 1:  # ones alone, of which norms see the rounding
        return []
    return d.add("softmax", [x], [_fixed(d, "softmax", d.shape(x))], axis=axis)


def _binary(d: _Drawer, x: int) -> list[int]:
    op = str(d.pick(("add", "add", "add", "sub", "mul", "maximum", "minimum")))
    if op in ("maximum", "minimum") and d.form == "qlinear":
        op = "add"
    shape = d.shape(x)
    fits = [t for t in d.live if _broadcasts(d.shape(t), shape)]
    if op in ("maximum", "minimum") and d.door == "onnx" and d.opset < 8:  # broadcast nothing
        fits = [t for t in fits if d.shape(t) == shape]
    if d.chance(0.25) or not fits:
        return _with_constant(d, x, op)
    return _joined(d, op, x, int(d.pick(fits)))


def _broadcasts(small: Shape, large: Shape) -> bool:
    if len(small) > len(large):
        return False
    return all(a in (1, b) for a, b in zip(small[::-1], large[::-1], strict=False))


def _joined(d: _Drawer, op: str, x: int, y: int) -> list[int]:
    if op in ("maximum", "minimum"):
        y = d.requantized(y, x)
        out = d.like(x, d.shape(x))
    else:
        out = d.operand(d.shape(x))
    inputs = [y, x] if d.chance(0.5) else [x, y]
    return d.add("binary", inputs, [out], op=op, activation=d.activation() if op in ("add", "sub", "mul") else None)


def _with_constant(d: _Drawer, x: int, op: str) -> list[int]:
    shape = d.shape(x)
    if op in ("maximum", "minimum"):
        op = "add"
    if d.form == "float32" and d.chance(0.2):
        op = "div"
    small = tuple(e if d.chance(0.5) else 1 for e in shape)[int(d.int(0, len(shape) + 1)) if d.chance(0.3) else 0 :]
    how = {"op": op, "constant": small, "weights": d.int(0, 1 << 30), "left": bool(d.chance(0.4) and op != "div")}
    activation = d.activation() if d.signals and op in ("add", "sub", "mul") else None
    return d.add("binary", [x], [d.operand(shape)], **how, activation=activation)


def _reduce(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if not shape:
        return []
    op = str(d.pick(("mean", "mean", "max", "min", "sum") if d.form == "float32" else ("mean", "mean", "max", "min")))
    if d.form in ("qlinear",) and op != "mean":
        op = "mean"
    axes = tuple(sorted(d.rng.choice(len(shape), d.int(1, len(shape) + 1), replace=False).tolist()))
    keep = d.chance(0.5) or len(axes) == len(shape)
    out = [1 if k in axes else e for k, e in enumerate(shape) if keep or k not in axes]
    made = d.like(x, out) if op in ("max", "min") else d.operand(out)
    return d.add("reduce", [x], [made], op=op, axes=axes, keepdims=keep)


def _choose(d: _Drawer, x: int) -> list[int]:
    """Take the lesser or the other of two operands, by a comparison and a choice."""
    fits = [t for t in d.live if d.shape(t) == d.shape(x) and t != x]
    if not fits or d.form == "qlinear" or (d.door == "onnx" and d.opset < 9) or d.form == "int16":
        return []
    y = d.requantized(int(d.pick(fits)), x)
    return d.add("choose", [x, y], [d.like(x, d.shape(x))])


def _argmax(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if len(shape) < 2 or d.form in ("int16", "qlinear") or d.form.startswith("qdq"):
        return []
    axis = d.int(0, len(shape))
    out = [e for k, e in enumerate(shape) if k != axis]
    d.operands.append(Operand(tuple(out), "index"))
    return d.add("argmax", [x], [len(d.operands) - 1], axis=axis)


def _concat(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if not shape:
        return []
    axis = d.channel if len(shape) == 4 and d.chance(0.6) else d.int(0, len(shape))
    others = [k for k in range(len(shape)) if k != axis]
    fits = [t for t in d.live if len(d.shape(t)) == len(shape) and all(d.shape(t)[k] == shape[k] for k in others)]
    parts = [x, *(int(d.pick(fits)) for _ in range(d.int(1, 4)))]
    total = sum(d.shape(t)[axis] for t in parts)
    if total * prod(shape) // shape[axis] > LARGEST:
        return []
    parts = [parts[int(k)] for k in d.rng.permutation(len(parts))]
    parts = [d.requantized(t, parts[0]) for t in parts]
    out = [total if k == axis else e for k, e in enumerate(shape)]
    return d.add("concat", parts, [d.like(parts[0], out)], axis=axis)


def _cell(d: _Drawer, x: int) -> list[int]:
    """Concatenate branches of one operand that are computed for that."""
    parts = [t for _ in range(d.int(2, 4)) for t in (_conv if d.chance(0.7) else _pool)(d, x)]
    n, h, w, _ = d.spatial(x)
    parts = [t for t in parts if d.spatial(t)[1:3] == (h, w)]
    if len(parts) < 2:
        return parts
    parts = [d.requantized(t, parts[0]) for t in parts]
    total = sum(d.spatial(t)[3] for t in parts)
    made = d.add("concat", parts, [d.like(parts[0], d.image(n, h, w, total))], axis=d.channel)
    return [*(parts if d.chance(0.2) else []), *made]


def _stack(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    fits = [t for t in d.live if d.shape(t) == shape]
    parts = [x, *(int(d.pick(fits)) for _ in range(d.int(0, 3)))]
    if len(shape) > 3 or len(parts) * prod(shape) > LARGEST:
        return []
    parts = [d.requantized(t, x) for t in parts]
    axis = d.int(0, len(shape) + 1)
    return d.add("stack", parts, [d.like(x, (*shape[:axis], len(parts), *shape[axis:]))], axis=axis)


def _split(d: _Drawer, x: int) -> list[int]:
    axes = [k for k, e in enumerate(d.shape(x)) if e > 1]
    if not axes:
        return []
    axis = int(d.pick(axes))
    extent, shape = d.shape(x)[axis], d.shape(x)
    at = sorted({d.int(1, extent) for _ in range(d.int(1, 3))})
    sizes = tuple(b - a for a, b in zip((0, *at), (*at, extent), strict=True))
    outs = [d.like(x, [s if k == axis else e for k, e in enumerate(shape)]) for s in sizes]
    return d.add("split", [x], outs, axis=axis, sizes=sizes)


def _slice(d: _Drawer, x: int) -> list[int]:
    begin, end, step = [], [], []
    for extent in d.shape(x):
        a, b = sorted((d.int(0, extent), d.int(0, extent)))
        whole = d.chance(0.5)
        begin.append(0 if whole else a)
        end.append(extent if whole else b + 1)
        step.append(d.int(1, 4) if d.chance(0.3) else 1)
    if not begin or (d.door == "onnx" and d.opset < 10 and max(step) > 1):
        return []
    shape = [-(-(b - a) // s) for a, b, s in zip(begin, end, step, strict=True)]
    return d.add("slice", [x], [d.like(x, shape)], begin=tuple(begin), end=tuple(end), step=tuple(step))


def _gather(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if not shape:
        return []
    axis = d.int(0, len(shape))
    dims = tuple(d.int(1, 6) for _ in range(int(d.pick((1, 1, 1, 2))))) if d.chance(0.9) else ()
    if len(dims) + len(shape) - 1 > 4:
        dims = dims[:1]
    out = (*shape[:axis], *dims, *shape[axis + 1 :])
    if prod(out) > LARGEST or not out:
        return []
    indices = d.rng.integers(0, shape[axis], dims).tolist()
    return d.add("gather", [x], [d.like(x, out)], axis=axis, indices=indices)


def _pad(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    widths = tuple((d.int(0, 3), d.int(0, 3)) if d.chance(0.5) else (0, 0) for _ in shape)
    out = [e + a + b for e, (a, b) in zip(shape, widths, strict=True)]
    if not shape or prod(out) > LARGEST:
        return []
    mirrored = all(max(w) < e for w, e in zip(widths, shape, strict=True)) and d.chance(0.3) and d.form != "qlinear"
    if d.door == "pt2" and mirrored:
        return []
    return d.add("pad", [x], [d.like(x, out)], widths=widths, mode="reflect" if mirrored else "constant")


def _transpose(d: _Drawer, x: int) -> list[int]:
    axes = tuple(int(a) for a in d.rng.permutation(len(d.shape(x))))
    return d.add("transpose", [x], [d.like(x, [d.shape(x)[a] for a in axes])], axes=axes) if len(axes) > 1 else []


def _reshape(d: _Drawer, x: int) -> list[int]:
    size, rank = d.operands[x].size, int(d.pick((1, 2, 3, 4, 4)))
    shape: list[int] = []
    for _ in range(rank - 1):
        left = size // prod(shape)
        shape.append(int(d.pick([f for f in range(1, left + 1) if left % f == 0])))
    shape.append(size // prod(shape))
    order = [shape[int(k)] for k in d.rng.permutation(rank)]
    return d.add("reshape", [x], [d.like(x, order)], shape=tuple(order))


def _expand(d: _Drawer, x: int) -> list[int]:
    """Broadcast an operand to a larger shape, behind a reshape that makes axes of extent 1 now and then."""
    shape = list(d.shape(x))
    if d.chance(0.5) and len(shape) < 4:
        shape.insert(d.int(0, len(shape) + 1), 1)
        (x,) = d.add("reshape", [x], [d.like(x, shape)], shape=tuple(shape))
    out = [d.int(1, 5) if e == 1 and d.chance(0.7) else e for e in shape]
    if d.chance(0.2) and len(out) < 4:
        out.insert(0, d.int(1, 4))
    if out == shape or prod(out) > LARGEST or (d.door == "onnx" and d.opset < 8):
        return []
    return d.add("expand", [x], [d.like(x, out)], shape=tuple(out))


def _tile(d: _Drawer, x: int) -> list[int]:
    times = tuple(d.int(1, 4) if d.chance(0.4) else 1 for _ in d.shape(x))
    out = [e * t for e, t in zip(d.shape(x), times, strict=True)]
    return d.add("tile", [x], [d.like(x, out)], times=times) if out and prod(out) <= LARGEST else []


def _reverse(d: _Drawer, x: int) -> list[int]:
    rank = len(d.shape(x))
    if not rank or (d.door == "onnx" and d.opset < 10):
        return []
    axes = tuple(sorted(d.rng.choice(rank, d.int(1, rank + 1), replace=False).tolist()))
    if d.door == "tflite":  # neighbours alone
        axes = tuple(range(axes[0], axes[0] + min(len(axes), rank - axes[0])))
    return d.add("reverse", [x], [d.like(x, d.shape(x))], axes=axes)


def _layer_norm(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if len(shape) < 2 or d.door == "tflite" or (d.door == "onnx" and d.opset < 17):
        return []
    how = {"axis": d.int(1, len(shape)), "weights": d.int(0, 1 << 30), "bias": d.chance(0.7)}
    return d.add("layer_norm", [x], [d.operand(shape)], **how)


def _group_norm(d: _Drawer, x: int) -> list[int]:
    """Normalize groups of channels; a group for each is an instance normalization."""
    shape = d.shape(x)
    if len(shape) < 3 or d.door == "tflite" or prod(shape[2:]) < 2:
        return []
    groups = shape[1] if d.door == "onnx" else int(d.pick([g for g in range(1, shape[1] + 1) if shape[1] % g == 0]))
    return d.add("group_norm", [x], [d.operand(shape)], groups=groups, weights=d.int(0, 1 << 30))


def _smooth(d: _Drawer, x: int) -> list[int]:
    ops = ("gelu", "logs", "elu", "softplus", "erf")[: 2 if d.door == "tflite" else 5]
    ops = ("elu", "softplus", "logs") if d.door == "onnx" and d.opset < 9 else ops
    return _apply(d, x, str(d.pick(ops)))


def _prelu(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if len(shape) != 4:
        return []
    return d.add("prelu", [x], [d.operand(shape)], weights=d.int(0, 1 << 30))


def _cumsum(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if not shape or (d.door == "onnx" and d.opset < 11):
        return []
    plain = d.door == "pt2"
    how = {"exclusive": not plain and d.chance(0.4), "reverse": not plain and d.chance(0.4)}
    return d.add("cumsum", [x], [d.operand(shape)], axis=d.int(0, len(shape)), **how)


def _top_k(d: _Drawer, x: int) -> list[int]:
    """Take the largest values; their places are an output of their own."""
    shape = d.shape(x)
    if not shape or (d.door == "onnx" and d.opset < 11):
        return []
    axis = len(shape) - 1 if d.door == "tflite" else d.int(0, len(shape))
    k = d.int(1, shape[axis] + 1)
    values = d.operand([k if a == axis else e for a, e in enumerate(shape)])
    return d.add("top_k", [x], [values], axis=axis, k=k)


def _edge_pad(d: _Drawer, x: int) -> list[int]:
    shape = d.shape(x)
    if d.door == "tflite" or len(shape) not in (3, 4):
        return []
    inner = [(d.int(0, 3), d.int(0, 3)) for _ in shape[2:]]
    widths = ((0, 0), (0, 0), *inner)
    out = [e + a + b for e, (a, b) in zip(shape, widths, strict=True)]
    return d.add("pad", [x], [d.operand(out)], widths=widths, mode="edge") if prod(out) <= LARGEST else []


def _sequence_conv(d: _Drawer, x: int) -> list[int]:
    """Convolve or pool along the last of three axes."""
    shape = d.shape(x)
    if len(shape) != 3 or d.door == "tflite":
        return []
    n, c, length = shape
    kernel, stride, pad = d.int(1, 4), d.int(1, 3), d.int(0, 2)
    pad = min(pad, kernel // 2)
    size = (length + 2 * pad - kernel) // stride + 1
    if kernel > length + 2 * pad or size < 1:
        return []
    window = {"kernel": (kernel,), "stride": (stride,), "dilation": (1,), "pads": (pad, pad)}
    if d.chance(0.3):
        kind = str(d.pick(("max_pool", "avg_pool")))
        return d.add(kind, [x], [d.operand((n, c, size))], **window, count_include_pad=d.chance(0.5))
    groups = c if d.chance(0.3) else 1
    channels = c if groups > 1 else d.int(1, 9)
    how = {"channels": channels, "groups": groups, "terms": kernel * c // groups, "bias": d.chance(0.8)}
    seed = d.layer("conv1", kernel, c, groups, channels)
    out = d.operand((n, channels, size))
    return d.add("conv", [x], [out], **window, **how, weights=seed, activation=d.activation())


def _recurrent(d: _Drawer, x: int) -> list[int]:
    """Run an LSTM or a GRU over the first of three axes."""
    shape = d.shape(x)
    if len(shape) != 3 or d.door == "tflite" or shape[0] > 8:
        return []
    units, kind = d.int(1, 6), str(d.pick(("lstm", "gru")))
    how = {"op": kind, "units": units, "weights": d.int(0, 1 << 30)}
    return d.add("recurrent", [x], [d.operand((shape[0], shape[1], units))], **how)


def _lookup(d: _Drawer, x: int) -> list[int]:
    """Look rows of a table up by the places of largest elements."""
    shape = d.shape(x)
    if len(shape) < 2 or (d.door == "onnx" and d.opset < 8):
        return []
    axis, depth = d.int(0, len(shape)), d.int(1, 6)
    rows = tuple(e for k, e in enumerate(shape) if k != axis)
    if prod(rows) * depth > LARGEST or len(rows) > 3:
        return []
    how = {"axis": axis, "rows": shape[axis], "depth": depth, "weights": d.int(0, 1 << 30)}
    return d.add("lookup", [x], [d.operand((*rows, depth))], **how)


def _attend(d: _Drawer, x: int) -> list[int]:
    """Attend to an operand of three axes, by three dense layers."""
    shape = d.shape(x)
    if len(shape) != 3 or shape[1] < 2:
        return []
    width = d.int(1, 6)
    parts = []
    for _ in range(3):
        how = {"units": width, "terms": shape[-1], "weights": d.layer("dense", shape[-1], width), "bias": d.chance(0.5)}
        parts += d.add("dense", [x], [d.operand((*shape[:-1], width))], **how, activation=None)
    q, k, v = parts
    (turned,) = d.add("transpose", [k], [d.operand((shape[0], width, shape[1]))], axes=(0, 2, 1))
    (scores,) = d.add("matmul", [q, turned], [d.operand((shape[0], shape[1], shape[1]))])
    (shares,) = d.add("softmax", [scores], [d.operand((shape[0], shape[1], shape[1]))], axis=2)
    return d.add("matmul", [shares, v], [d.operand((*shape[:-1], width))])


_WINDOWS: tuple[Kind, ...] = (
    _conv, _conv, _conv, _depthwise, _depthwise, _deconv, _pool, _pool, _global, _gate, _resize, _blocks, _cell, _cell,
)  # fmt: skip
_ANY: tuple[Kind, ...] = (
    _dense, _matmul, _unary, _unary, _softmax, _binary, _binary, _binary, _reduce, _choose, _argmax, _concat, _concat,
)  # fmt: skip
_VIEWS: tuple[Kind, ...] = (
    _reshape,
    _split,
    _transpose,
    _slice,
    _gather,
    _pad,
    _expand,
    _tile,
    _reshape,
    _reverse,
    _stack,
)
_FURTHER: tuple[Kind, ...] = (
    _layer_norm, _layer_norm, _group_norm, _smooth, _smooth, _prelu, _cumsum, _top_k, _edge_pad, _sequence_conv,
    _sequence_conv, _recurrent, _lookup, _attend, _attend,
)  # fmt: skip
KINDS = tuple(kind.__name__.lstrip("_") for kind in dict.fromkeys((*_WINDOWS, *_ANY, *_VIEWS, *_FURTHER)))
