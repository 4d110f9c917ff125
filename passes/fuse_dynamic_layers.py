"""`fuse_dynamic_layers`: ONNX's dynamically quantized products become hybrid layers, as of a `.tflite` file.

    before: the expressions of `passes.dynamic_quantization`       after: f = R.call_tir(cls.hybrid_factors, (x,))
            b = R.add(y, R.const(...))                                    q = R.call_tir(cls.hybrid_quantize, (x, f))
            c = R.nn.relu(b)                                              c = R.call_tir(cls.hybrid_conv2d, (q, f, w, s, b))

Activations are stored as int8, 128 less than the file's uint8, as are zero points: sums are the same. Tensors that several
products read are stored once. Every number is computed as in the file, in the same order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf, prod

import numpy as np

from tvm_cascade.passes.dynamic_quantization import Dynamic, Product
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import name_of, number_of, shape_of
from tvm_cascade.passes.integer.hybrid import HybridWeights, Stored, Window, lower_conv, lower_dense, lower_stored
from tvm_cascade.passes.integer.untyped import Binding, Module, Value, relax
from tvm_cascade.passes.lower_quantized import why_not_read
from tvm_cascade.passes.main_rewriting import window_of
from tvm_cascade.passes.relax_functions import add_function, bindings_of, substitute, without_dead_code, without_main
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.tir.stored_reals import Storing


def fuse_dynamic_layers(mod: Module) -> Module:
    """Fuse the dynamically quantized layers of `main` in a copy of `mod`; return `mod` without such layers or with an
    unreadable `main`.
    """
    main = mod["main"]
    if why_not_read(main) is not None:
        return mod
    layers = _layers(bindings_of(main), main.body.body)
    if not layers:
        return mod
    builder, renamed = without_main(mod), {p: p for p in main.params}
    writer = _Writer(Emitter(builder, renamed))

    def emit() -> Value:
        for binding in bindings_of(main):
            writer.emitter.name = binding.var.name
            made = layers.get(binding.var) and writer.layer(layers[binding.var])
            if made is None:
                made = builder.emit(substitute(binding.value, renamed), name_hint=binding.var.name)
            renamed[binding.var] = made
        return substitute(main.body.body, renamed)

    add_function(builder, "main", main.params, emit, attrs=dict(main.attrs or {}))
    return without_dead_code(builder.finalize())


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A product and the following operators that its kernel applies."""

    source: Value  # the floats that are quantized
    product: Product
    bias: np.ndarray | None = None  # float32: one, or one an output
    bounds: tuple[float, float] = (-inf, inf)


def _layers(bindings: list[Binding], result: Value) -> dict[Value, _Layer]:
    """Read the layers, by the variable of the last operator."""
    dynamic = Dynamic({b.var: b.value for b in bindings})
    readers = Counter(v for b in bindings for v in relax.analysis.free_vars(b.value))
    readers.update(relax.analysis.free_vars(result))
    layers: dict[Value, _Layer] = {}
    for binding in bindings:
        for operand in getattr(binding.value, "args", ()):
            before = layers.get(operand) if isinstance(operand, relax.Var) and readers[operand] == 1 else None
            more = None if before is None else _with(before, binding.value, operand, dynamic)
            if more is not None:
                del layers[operand]
                layers[binding.var] = more
                break
        layer = _read(binding.value, dynamic)
        if layer is not None:
            layers[binding.var] = layer
    return layers


def _read(value: Value, dynamic: Dynamic) -> _Layer | None:
    """Read a product whose activation is quantized by its own range; None for any other value."""
    product = dynamic.product(value)
    if product is None or not _is_known(product):
        return None
    source = dynamic.quantized(product.number)
    ranges = dynamic.zero_point(product.zero), dynamic.scaled(product.scale)
    ours = source is not None and all(r is not None and r.same_as(source) for r in ranges)
    return _Layer(source, product) if ours else None


def _is_known(product: Product) -> bool:
    """Return True for products by kernels' weights: a matrix, or NHWC with HWIO and batch 1."""
    if name_of(product.call) == "relax.matmul":
        plain = shape_of(product.call)[:-1] == shape_of(product.number)[:-1] and not product.order
        return product.weights.ndim == 2 and plain
    attrs, single = product.call.attrs, shape_of(product.call)[0] == 1
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    return single and layouts == ("NHWC", "HWIO", "NHWC")


def _with(layer: _Layer, call: Value, operand: Value, dynamic: Dynamic) -> _Layer | None:
    """Return the layer with one more operator behind it; None if kernels do not apply it."""
    if layer.bounds != (-inf, inf):
        return None
    if name_of(call) == "relax.add" and layer.bias is None:
        bias = dynamic.constant(call.args[1] if call.args[0].same_as(operand) else call.args[0])
        outputs = shape_of(operand)[-1]
        if bias is None or bias.dtype != np.float32 or shape_of(call) != shape_of(operand):
            return None
        along = bias.size == 1 or (bias.size == outputs and bias.shape[-1] == outputs)
        return replace(layer, bias=bias.ravel()) if along else None
    if name_of(call) == "relax.nn.relu":
        return replace(layer, bounds=(0.0, inf))
    if name_of(call) == "relax.clip" and call.args[0].same_as(operand):
        low, high = (float(number_of(a)) for a in call.args[1:3])
        return replace(layer, bounds=(low, high)) if low <= high else None
    return None


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes layers into the new function."""

    emitter: Emitter
    stored: dict[tuple[Value, tuple[int, ...]], Stored] = field(default_factory=dict)  # by source, and shape or order

    def layer(self, layer: _Layer) -> Value | None:
        """Emit a layer; return None for one that stays as it is."""
        product, outputs = layer.product, shape_of(layer.product.call)[-1]
        data = product.weights
        small = np.int8 if data.min() >= -128 and data.max() <= 127 else np.int16
        bias = np.zeros(1, np.float32) if layer.bias is None else layer.bias
        weights = HybridWeights(data.astype(small), product.scales, np.broadcast_to(bias, (outputs,)).copy())
        try:
            weights.checked(prod(data.shape[:-1]))
            return self._dense(layer, weights) if data.ndim == 2 else self._conv(layer, weights)
        except NotLowered:
            return None

    def _dense(self, layer: _Layer, weights: HybridWeights) -> Value:
        shape = shape_of(layer.product.call)
        depth = weights.data.shape[0]
        x = self._stored(layer.source, (prod(shape[:-1]), depth))
        by_unit = replace(weights, data=np.ascontiguousarray(weights.data.T))
        return self.emitter.reshape(lower_dense(self.emitter, x, by_unit, layer.bounds), shape)

    def _conv(self, layer: _Layer, weights: HybridWeights) -> Value:
        attrs, shape = layer.product.call.attrs, shape_of(layer.product.call.args[0])
        given = window_of(attrs, "strides", "dilation", "padding")
        (top, left, bottom, right) = (int(p) for p in (given["padding"] * 2)[:4])
        (sy, sx), (dy, dx) = given["strides"], given["dilation"]
        window = Window((sy, sx), (dy, dx), (top, left, bottom, right))
        depthwise = int(attrs.groups) == shape[-1] and weights.data.shape[2] == 1
        if depthwise:
            weights = replace(weights, data=weights.data.reshape(*weights.data.shape[:2], shape[-1], -1))
        return lower_conv(self.emitter, self._map(layer), weights, window, depthwise, layer.bounds)

    def _map(self, layer: _Layer) -> Stored:
        """Store a convolution's input; where that is transposed, the stored integers are: a quarter of the bytes."""
        order, shape = layer.product.order, shape_of(layer.source)
        if not order:
            return self._stored(layer.source, shape)
        if (layer.source, order) not in self.stored:
            flat = self._stored(layer.source, (1, prod(shape)))
            values = self.emitter.reshape(flat.values, shape)
            values = self.emitter.emit(relax.op.permute_dims(values, list(order)))
            self.stored[layer.source, order] = replace(flat, values=values)
        return self.stored[layer.source, order]

    def _stored(self, source: Value, shape: tuple[int, ...]) -> Stored:
        """Store a tensor in `shape`, once."""
        key = source, shape
        if key not in self.stored:
            x = self.emitter.reshape(self.emitter.new(source), shape)
            self.stored[key] = lower_stored(self.emitter, x, Storing.LINEAR)
        return self.stored[key]
