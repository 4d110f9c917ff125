"""`fuse_float_layers`: float32 convolutions and products become a single operator each with bias and activation.

Pools, means over rows and columns, and concatenations become single-function operators, too, with attributes for
selecting fast kernels.

    before: a = R.nn.conv2d(x, w)            after: c = R.call_tir(cls.conv2d, (x, w, b))
            b = R.add(a, R.const(...))
            c = R.nn.relu(b)

As three operators, each would need a buffer and a pass over it. Sums are added up in the same order, from zero, the
bias last; so every bit stays. The function carries the attributes by which fast kernels recognize it
(`schedules.rules.fpu_float_kernels`). Relax's own fusion would give the same computation without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

import numpy as np

from tvm_cascade.passes.integer.convolution import te_pad2d
from tvm_cascade.passes.integer.emitter import Emitter
from tvm_cascade.passes.integer.expressions import constant, dtype_of, name_of, number_of, shape_of
from tvm_cascade.passes.integer.pooling import inside
from tvm_cascade.passes.integer.untyped import (
    Binding,
    Call,
    Index,
    Module,
    Scalar,
    Tensor,
    Value,
    ir,
    relax,
    te,
    tirx,
    topi,
)
from tvm_cascade.passes.lower_quantized import why_not_read
from tvm_cascade.passes.max_pools import largest
from tvm_cascade.passes.relax_functions import add_function, bindings_of, substitute, without_main
from tvm_cascade.passes.small_weights import small_floats_of
from tvm_cascade.passes.stored_constants import Blocked, Packed, constant_data, read_stored
from tvm_cascade.program.quant import NotLowered
from tvm_cascade.schedules.kernels.storage import with_storage

_MOVES = ("relax.reshape", "relax.permute_dims")  # of constants: folded later


def fuse_float_layers(mod: Module) -> Module:
    """Fuse the float layers of `main` in a copy of `mod`; return `mod` without such layers or with an unreadable
    `main`.
    """
    main = mod["main"]
    if why_not_read(main) is not None:
        return mod
    try:
        layers = _Layers(bindings_of(main), main.body.body, small_floats_of(mod)).found
    except NotLowered:  # shapes that are not static
        return mod
    if not layers:
        return mod
    builder, renamed = without_main(mod), {p: p for p in main.params}
    inner = {v for last, layer in layers.items() for v in layer.values if v is not last}
    emitter = Emitter(builder, renamed)

    def emit() -> Value:
        for binding in bindings_of(main):
            if binding.var in inner:
                continue
            layer = layers.get(binding.var)
            emitter.name = binding.var.name
            if layer is None:
                renamed[binding.var] = builder.emit(substitute(binding.value, renamed), name_hint=emitter.name)
            else:
                renamed[binding.var] = layer.emit(emitter)
        return substitute(main.body.body, renamed)

    add_function(builder, "main", main.params, emit, attrs=dict(main.attrs or {}))
    return builder.finalize()


@dataclass(frozen=True)
class _Layer:
    """A convolution or product, and the following operators applied in the kernel."""

    core: Call
    values: tuple[Value, ...]  # the variables of its operators
    bias: Value | None = None  # of one value per output channel, or a single one
    bounds: tuple[float, float] = (-inf, inf)
    stored: Packed | None = None  # the weights, if the file stores them as small integers
    weighted: bool = True  # False for a product of two activations

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.values[0])

    def emit(self, emitter: Emitter) -> Value:
        """Emits the call of the fused operator."""
        forms: dict[str, Callable[[Emitter], Value]] = {
            "relax.nn.max_pool2d": self._max_pool2d, "relax.nn.avg_pool2d": self._avg_pool2d, "relax.mean": self._mean,
            "relax.concat": self._concat,
            "relax.matmul": self._dense if self.weighted else self._product, "relax.nn.conv2d": self._conv2d,
        }  # fmt: skip
        return forms[name_of(self.core)](emitter)

    def _call(
        self,
        emitter: Emitter,
        kind: str,
        sums: Callable[[Tensor, Any], Tensor],
        products: Sequence[Value] = (),
        shape: tuple[int, ...] = (),
        channels: tuple[int, ...] = (),
        **attributes: object,
    ) -> Value:
        """Emit the call; if given, on `products` instead of the core's operands, with a result in `shape`.

        `channels` are the weights' axes of output channels: sums of stored weights are multiplied by the scales once if
        these differ along no other axis.
        """
        biases = [] if self.bias is None else [relax.op.reshape(emitter.new(self.bias), [prod(shape_of(self.bias))])]
        first, shape = [*products] or [emitter.new(a) for a in self.core.args[:2]], shape or self.shape
        scales, packed = None, self.stored
        if packed is not None:
            scales = packed.scales(channels) if packed.scaled else None
            arrays = packed.arrays if scales is None else (*packed.arrays[:-1], scales)
            first = [first[0], *map(constant, arrays)]
            block = 0 if scales is not None or not packed.scaled else packed.scale.block[channels[0] - 1]
            attributes |= {"weight_bits": packed.bits, "weight_block": block, "weight_zero_point": packed.zero_point}
            if packed.floats:
                attributes |= {"weight_floats": packed.floats, "weight_scaled": packed.scaled}
        operands = first + [emitter.builder.emit(b) for b in biases]
        places = [te.placeholder(shape_of(a), dtype_of(a), f"p{i}") for i, a in enumerate(operands)]
        held, ends = places[1 : len(first)], places[len(first) :]
        total = sums(places[0], held[0] if packed is None else _Stored(packed, held, scales is None))

        def finished(*i: Index) -> Scalar:
            value = total[i] if scales is None else total[i] * held[-1][_of(held[-1], i[-1])]
            return self._finished(value, *(b[_of(b, i[-1])] for b in ends))

        if scales is not None or biases or self.bounds != (-inf, inf):
            total = te.compute(shape, finished, kind)
        func = te.create_prim_func([*places, total], index_dtype_override="int32").without_attr("global_symbol")
        func = func if packed is None else with_storage(func, packed.storage)
        return emitter.call_func(kind, func, operands, 1, bounds=self.bounds, **attributes)

    def _finished(self, value: Scalar, bias: Scalar = None) -> Scalar:
        value, (low, high) = value if bias is None else value + bias, self.bounds
        value = value if high == inf else tirx.min(value, tirx.const(high, "float32"))
        return value if low == -inf else tirx.max(value, tirx.const(low, "float32"))

    def _dense(self, emitter: Emitter) -> Value:
        """Emit a matrix product: if `x` has more axes, all rows become the rows of a matrix."""
        x, w = (emitter.new(a) for a in self.core.args[:2])
        depth, units = shape_of(w)[-2:]
        rows, flat = prod(self.shape) // units, len(shape_of(x)) == len(shape_of(w)) == 2

        def sums(x: Tensor, w: Any) -> Tensor:
            rc = te.reduce_axis((0, depth), "rc")
            return te.compute((rows, units), lambda y, c: te.sum(x[y, rc] * w[rc, c], axis=[rc]), "dense_acc")

        operands = (x, w)
        if not flat:
            sides = ((x, [rows, depth]), (w, [depth, units]))[: 1 if self.stored else 2]
            operands = tuple(emitter.emit(relax.op.reshape(value, to), "") for value, to in sides)
        made = self._call(emitter, "dense", sums, operands, (rows, units), (1,), kernel_layout="IO")
        return made if flat else emitter.emit(relax.op.reshape(made, list(self.shape)))

    def _product(self, emitter: Emitter) -> Value:
        """Emit two activations' matrix product."""
        x, y = (shape_of(a) for a in self.core.args[:2])

        def batch(shape: Sequence[int], index: Sequence[Index]) -> tuple[Index, ...]:
            lead = shape[:-2]
            return tuple(0 if n == 1 else i for n, i in zip(lead, index[len(index) - len(lead) :], strict=True))

        def compute(p: Tensor, q: Tensor) -> Tensor:
            rc = te.reduce_axis((0, x[-1]), "rc")

            def term(*index: Index) -> Scalar:
                left, right, i = [rc], [rc], list(index)
                if len(y) > 1:
                    right.append(i.pop())
                if len(x) > 1:
                    left.insert(0, i.pop())
                return te.sum(p[(*batch(x, i), *left)] * q[(*batch(y, i), *right)], axis=[rc])

            return te.compute(self.shape, term, name="batch_matmul")

        return emitter.call("batch_matmul", compute, list(self.core.args[:2]))

    def _max_pool2d(self, emitter: Emitter) -> Value:
        window, _, padding = _pool_window(self.core, self.shape)
        (kh, kw), (sy, sx), (dy, dx) = window.values()

        def compute(x: Tensor) -> Tensor:
            padded = te_pad2d(x, padding, -inf, "max_pool2d_pad")
            ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
            return te.compute(
                self.shape,
                lambda n, y, xx, c: largest(padded[n, y * sy + ry * dy, xx * sx + rx * dx, c], axis=[ry, rx]),
                name="max_pool2d",
            )

        given = {**window, "padding": padding, "layout": "NHWC"}
        return emitter.call("max_pool2d", compute, [self.core.args[0]], **given)

    def _avg_pool2d(self, emitter: Emitter) -> Value:
        window, declared, (top, left, bottom, right) = _pool_window(self.core, self.shape)
        (kh, kw), (sy, sx) = window["pool_size"], window["strides"]
        counted = declared if bool(self.core.attrs.count_include_pad) else (0, 0, 0, 0)
        (_, height, width, _) = shape_of(self.core.args[0])
        padding = top, left, bottom, right

        def divisor(y: Index, x: Index) -> Scalar:
            rows = inside(y, sy, top, kh, -counted[0], height + counted[2])
            columns = inside(x, sx, left, kw, -counted[1], width + counted[3])
            return (rows * columns).astype("float32")

        def compute(x: Tensor) -> Tensor:
            padded = te_pad2d(x, padding, 0, "avg_pool2d_pad")
            ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
            total = te.compute(
                self.shape,
                lambda n, y, xx, c: te.sum(padded[n, y * sy + ry, xx * sx + rx, c], axis=[ry, rx]),
                name="avg_pool2d_acc",
            )
            count = (lambda y, xx: divisor(y, xx)) if any(padding) else lambda _y, _x: tirx.const(kh * kw, "float32")
            return te.compute(self.shape, lambda n, y, xx, c: total[n, y, xx, c] / count(y, xx), name="avg_pool2d")

        given = {**window, "padding": padding, "layout": "NHWC", **({"counted": counted} if any(counted) else {})}
        return emitter.call("avg_pool2d", compute, [self.core.args[0]], **given)

    def _mean(self, emitter: Emitter) -> Value:
        (_, height, width, _) = shape_of(self.core.args[0])

        def compute(x: Tensor) -> Tensor:
            ry, rx = te.reduce_axis((0, height), "ry"), te.reduce_axis((0, width), "rx")
            total = te.compute(self.shape, lambda *i: te.sum(x[i[0], ry, rx, i[-1]], axis=[ry, rx]), "mean_acc")
            return te.compute(self.shape, lambda *i: total[i] / tirx.const(float(height * width), "float32"), "mean")

        return emitter.call("mean", compute, [self.core.args[0]], axes=(1, 2))

    def _concat(self, emitter: Emitter) -> Value:
        axis = int(self.core.attrs.axis) % len(self.shape)
        return emitter.call(
            "concatenate", lambda *parts: topi.concatenate(parts, axis), list(self.core.args[0].fields), axis=axis
        )

    def _conv2d(self, emitter: Emitter) -> Value:
        attrs, padding = self.core.attrs, _padding(self.core)
        (sy, sx), (dy, dx) = ([int(v) for v in pair] for pair in (attrs.strides, attrs.dilation))
        depthwise = _is_depthwise(self.core)
        kind, groups = "depthwise_conv2d" if depthwise else "conv2d", int(attrs.groups)

        def sums(x: Tensor, w: Any) -> Tensor:
            padded = te_pad2d(x, padding, 0, f"{kind}_pad")
            kh, kw, depth, times = (int(d) for d in w.shape)
            ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
            rc = te.reduce_axis((0, depth), "rc")

            def product(n: Index, y: Index, xx: Index, c: Index) -> Scalar:
                at = (n, y * sy + ry * dy, xx * sx + rx * dx)
                if not depthwise:
                    first = 0 if groups == 1 else tirx.floordiv(c, self.shape[3] // groups) * depth
                    return te.sum(padded[(*at, first + rc)] * w[ry, rx, rc, c], axis=[ry, rx, rc])
                per = self.shape[3] // int(x.shape[3])
                channel = c if per == 1 else tirx.floordiv(c, per)
                place = (0, c) if depth == 1 else (channel, 0 if times == 1 else tirx.floormod(c, times))
                return te.sum(padded[(*at, channel)] * w[(ry, rx, *place)], axis=[ry, rx])

            return te.compute(self.shape, product, name=f"{kind}_acc")

        return self._call(
            emitter,
            kind,
            sums,
            channels=(3,),
            strides=(sy, sx),
            padding=padding,
            dilation=(dy, dx),
            groups=groups,
            layout="NHWC",
            kernel_layout="HWCM" if depthwise else "HWIO",
        )


@dataclass(frozen=True)
class _Stored:
    """Stored weights that are read as floats, without their scales unless `scaled`."""

    packed: Packed
    tensors: Sequence[Tensor]
    scaled: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packed.shape

    def __getitem__(self, index: tuple[Index, ...]) -> Scalar:
        read = self.packed.element if self.scaled else self.packed.centred
        return read(self.tensors, index)


def _padding(call: Call) -> tuple[int, int, int, int]:
    """Return the padding rows and columns: top, left, bottom, right."""
    given = [int(p) for p in call.attrs.padding]
    top, left, bottom, right = given if len(given) == 4 else (*given, *given)
    return top, left, bottom, right


def _of(bias: Tensor, channel: Index) -> Index:
    return 0 if int(bias.shape[0]) == 1 else channel


@dataclass
class _Layers:
    """Finds the layers of a function, by the variable that each one's last operator binds."""

    bindings: Sequence[Binding]
    result: Value
    floats: Sequence[str]  # the kinds of small floats that the file holds
    found: dict[Value, _Layer] = field(default_factory=dict)
    packed: dict[Value, Packed | None] = field(default_factory=dict)  # `_stored` of calls

    def __post_init__(self) -> None:
        self.values: Mapping[Value, Value] = {b.var: b.value for b in self.bindings}
        self.users: dict[Value, list[Value]] = {}
        for binding in self.bindings:
            for var in relax.analysis.free_vars(binding.value):
                self.users.setdefault(var, []).append(binding.var)
        for var in relax.analysis.free_vars(self.result):
            self.users.setdefault(var, []).append(None)
        for binding in self.bindings:
            if self._is_pool(binding) or self._is_mean(binding) or self._is_concat(binding):
                layer = _Layer(binding.value, (binding.var,))
            elif self._is_product(binding):
                layer = _Layer(binding.value, (binding.var,), weighted=False)
            elif self._is_core(binding):
                stored = self._stored(binding.value)
                core = self._scaled(_Layer(binding.value, (binding.var,), stored=stored))
                layer = self._activated(self._biased(core))
            else:
                continue
            self.found[layer.values[-1]] = layer

    def _is_pool(self, binding: Binding) -> bool:
        call, kind = binding.value, name_of(binding.value)
        if kind not in ("relax.nn.max_pool2d", "relax.nn.avg_pool2d"):
            return False
        if {dtype_of(v) for v in (binding.var, call.args[0])} != {"float32"}:
            return False
        layouts = str(call.attrs.layout), str(call.attrs.out_layout) or "NHWC"
        if layouts != ("NHWC", "NHWC") or self._is_constant(call.args[0]):
            return False
        return kind == "relax.nn.max_pool2d" or _every_window_meets_the_map(call, shape_of(binding.var))

    def _is_mean(self, binding: Binding) -> bool:
        """Return True for a mean over rows and columns of an NHWC tensor."""
        call = binding.value
        if name_of(call) != "relax.mean" or {dtype_of(v) for v in (binding.var, call.args[0])} != {"float32"}:
            return False
        axes, rank = call.attrs.axis, len(shape_of(call.args[0]))
        return rank == 4 and axes is not None and sorted(int(a) % rank for a in axes) == [1, 2]

    def _is_concat(self, binding: Binding) -> bool:
        call = binding.value
        if name_of(call) != "relax.concat" or not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
            return False
        parts = call.args[0].fields
        return {dtype_of(v) for v in (binding.var, *parts)} == {"float32"} and not any(map(self._is_constant, parts))

    def _is_product(self, binding: Binding) -> bool:
        """Return True for a product between float matrices, neither constant."""
        call = binding.value
        if name_of(call) != "relax.matmul" or {dtype_of(v) for v in (binding.var, *call.args[:2])} != {"float32"}:
            return False
        computed = not any(map(self._is_constant, call.args[:2])) and self._stored(call) is None
        return computed and len({len(shape_of(v)) for v in (binding.var, *call.args[:2])} - {1}) == 1

    def _is_core(self, binding: Binding) -> bool:
        call = binding.value
        if name_of(call) not in ("relax.nn.conv2d", "relax.matmul"):
            return False
        x, w = call.args[:2]
        if (
            {dtype_of(v) for v in (binding.var, x, w)} != {"float32"}
            or not (self._is_constant(w) or self._stored(call) is not None)
            or self._is_constant(x)
        ):
            return False
        if name_of(call) == "relax.matmul":
            return len(shape_of(w)) >= 2 and prod(shape_of(w)[:-2]) == 1
        attrs = call.attrs
        layouts = str(attrs.data_layout), str(attrs.out_layout) or "NHWC", str(attrs.kernel_layout)
        return layouts[:2] == ("NHWC", "NHWC") and (
            _is_depthwise(call) or (layouts[2] == "HWIO" and (int(attrs.groups) == 1 or self._stored(call) is None))
        )

    def _stored(self, call: Call) -> Packed | None:
        """Return the weights of a product that a file stores as small integers; None for floats."""
        if call not in self.packed:
            found = read_stored(call.args[1], self.values, self.floats)
            if found is not None and len(found.values.shape) > 1:
                found = found.moved(_channels_last(call))
            packed = None if found is None or len(found.values.shape) < 2 else found.packed()
            self.packed[call] = packed if packed is not None and packed.worth_keeping() else None
        return self.packed[call]

    def _scaled(self, layer: _Layer) -> _Layer:
        """Include a product of the sums of stored weights without scales by a constant for each channel."""
        reshaped = self._reshaped(layer)
        var, call = self._next(reshaped)
        if layer.stored is None or name_of(call) != "relax.multiply" or (layer.stored.scale.values != 1).any():
            return layer
        others = [a for a in call.args if not (isinstance(a, relax.Var) and a.same_as(reshaped.values[-1]))]
        scales = constant_data(others[0], self.values) if len(others) == 1 else None
        if scales is None or scales.dtype != np.float32 or shape_of(var) != layer.shape:
            return layer
        if scales.size not in (1, layer.shape[-1]) or (scales.size > 1 and scales.shape[-1] != layer.shape[-1]):
            return layer
        stored = replace(layer.stored, scale=_of_channels(scales, len(layer.stored.shape), layer.stored.shape))
        return replace(reshaped, values=(*reshaped.values, var), stored=stored)

    def _reshaped(self, layer: _Layer) -> _Layer:
        """Include the reshapes behind a layer that leave its shape."""
        var, call = self._next(layer)
        while name_of(call) == "relax.reshape" and shape_of(var) == layer.shape:
            layer = replace(layer, values=(*layer.values, var))
            var, call = self._next(layer)
        return layer

    def _biased(self, given: _Layer) -> _Layer:
        layer = self._reshaped(given)
        var, call = self._next(layer)
        if name_of(call) != "relax.add":
            return given
        others = [a for a in call.args if not (isinstance(a, relax.Var) and a.same_as(layer.values[-1]))]
        if len(others) != 1 or not self._is_constant(others[0]) or shape_of(var) != layer.shape:
            return given
        shape = shape_of(others[0])
        if prod(shape) not in (1, layer.shape[-1]) or (prod(shape) > 1 and shape[-1] != layer.shape[-1]):
            return given
        return replace(layer, values=(*layer.values, var), bias=others[0])

    def _activated(self, given: _Layer) -> _Layer:
        layer = self._reshaped(given)
        var, call = self._next(layer)
        name = name_of(call)
        if name not in ("relax.nn.relu", "relax.clip"):
            return given
        low, high = (0.0, inf) if name == "relax.nn.relu" else (number_of(a) for a in call.args[1:3])
        return replace(layer, values=(*layer.values, var), bounds=(low, high))

    def _next(self, layer: _Layer) -> tuple[Value, Value]:
        """Return the variable and the call of the only operator that reads a layer's present value; None if there are
        several.
        """
        users = self.users.get(layer.values[-1], [])
        return (users[0], self.values[users[0]]) if len(users) == 1 and users[0] is not None else (None, None)

    def _is_constant(self, value: Value) -> bool:
        if isinstance(value, relax.Var):
            return value in self.values and self._is_constant(self.values[value])
        return isinstance(value, ir.GenericConst) or (name_of(value) in _MOVES and self._is_constant(value.args[0]))


def _pool_window(
    call: Call, shape: Sequence[int]
) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...], tuple[int, int, int, int]]:
    """Return a pool's window, its declared padding, and that enlarged to the reach of its windows (ceil mode)."""
    window = {k: tuple(int(v) for v in call.attrs[k]) for k in ("pool_size", "strides", "dilation")}
    top, left, bottom, right = declared = _padding(call)
    (kh, kw), (sy, sx), (dy, dx) = window.values()
    _, height, width, _ = shape_of(call.args[0])
    bottom = max(bottom, (shape[1] - 1) * sy + (kh - 1) * dy + 1 - height - top)
    right = max(right, (shape[2] - 1) * sx + (kw - 1) * dx + 1 - width - left)
    return window, declared, (top, left, bottom, right)


def _every_window_meets_the_map(call: Call, shape: Sequence[int]) -> bool:
    """Return True for an average pool without dilation whose first and last windows hold an element."""
    window, _, (top, left, _, _) = _pool_window(call, shape)
    sides = zip(
        window["pool_size"], window["strides"], (top, left), shape_of(call.args[0])[1:3], shape[1:3], strict=True
    )
    ends = all(before < k and (count - 1) * s - before < extent for k, s, before, extent, count in sides)
    return set(window["dilation"]) == {1} and ends


def _of_channels(scales: np.ndarray, rank: int, shape: tuple[int, ...]) -> Blocked:
    """Return a tensor's scales from the last axis' scales, or from a single scale."""
    wide = scales.reshape(*[1] * (rank - 1), -1)
    return Blocked(wide, (*shape[:-1], 1 if scales.size > 1 else shape[-1]))


def _channels_last(call: Call) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that moves the output channels of a product's stored weights to the last axis."""
    if name_of(call) == "relax.matmul":
        return lambda a: a.reshape(-1, a.shape[-1])
    return (lambda a: a.reshape(*a.shape[:2], 1, -1)) if _is_depthwise(call) else (lambda a: a)


def _is_depthwise(call: Call) -> bool:
    """Test that a convolution of NHWC by HWOI or HWIO weights computes every input channel separately."""
    groups, channels, weights = int(call.attrs.groups), shape_of(call.args[0])[-1], shape_of(call.args[1])
    if groups != channels or groups == 1:
        return False
    layout = str(call.attrs.kernel_layout)
    return (layout == "HWOI" and weights[2] == channels) or (layout == "HWIO" and weights[2] == 1)
