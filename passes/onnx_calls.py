"""Relax calls without substitutions, as ONNX nodes: their form in `optimize -o x.onnx`.

A form gets the file's emitter (`substitution.export_onnx`), the call and its tensors' names, and returns the results'
names. `has_form` tells whether a call has a form; a call with an attribute unknown to ONNX has none.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import numpy as np
from tvm import relax

from tvm_cascade.substitution.dag import Node
from tvm_cascade.substitution.export_onnx import Emitter


@dataclass(frozen=True, slots=True)
class Given:
    """A call, and the tensors' names."""

    call: Any
    names: list[str]
    shapes: tuple[tuple[int, ...], ...]  # of the tensors
    dtypes: tuple[str, ...]
    made: tuple[int, ...]  # shape of the first result
    dtype: str  # of it

    @property
    def attrs(self) -> Any:
        return self.call.attrs

    @property
    def rank(self) -> int:
        return len(self.shapes[0])

    def axes(self, given: Any) -> list[int]:
        """Return axes counted from the start; None: all."""
        return sorted(self.axis(a) for a in (range(self.rank) if given is None else given))

    def axis(self, given: Any) -> int:
        """Return an axis counted from the start."""
        return int(given) % self.rank

    def numbers(self, argument: int) -> list[int]:
        """Return the integers in a tuple or shape argument."""
        held: Any = self.call.args[argument]
        values: Any = held.fields if isinstance(held, relax.Tuple) else held.values
        return [int(getattr(v, "value", v)) for v in values]


Form = Callable[[Emitter, Given], list[str]]


class _NoFormError(Exception):
    """The call has an attribute unknown to ONNX."""


def _require(holds: bool) -> None:
    if not holds:
        raise _NoFormError


def _ints(e: Emitter, values: Sequence[int]) -> str:
    return e.tensor(np.array(values, "int64"))


def _float(e: Emitter, value: float, dtype: str) -> str:
    return e.tensor(np.array(value, dtype))


def _plain(kind: str) -> Form:
    return lambda e, g: e.emit(kind, g.names)


def _not(kind: str) -> Form:
    return lambda e, g: e.emit("Not", e.emit(kind, g.names))


def _layer_norm(e: Emitter, g: Given) -> list[str]:
    axes = g.axes(g.attrs.axes)
    _require(axes == list(range(axes[0], g.rank)) and bool(g.attrs.center) and bool(g.attrs.scale))
    return e.emit("LayerNormalization", g.names, axis=axes[0], epsilon=float(g.attrs.epsilon))


def _rms_norm(e: Emitter, g: Given) -> list[str]:
    x, weight = g.names
    mean = e.emit("ReduceMean", e.emit("Mul", [x, x]), axes=g.axes(g.attrs.axes), keepdims=1)
    root = e.emit("Sqrt", e.emit("Add", [*mean, _float(e, g.attrs.epsilon, g.dtype)]))
    return e.emit("Mul", [*e.emit("Div", [x, *root]), weight])


def _gelu(e: Emitter, g: Given) -> list[str]:
    (x,) = g.names
    return _half(e, g, e.emit("Erf", e.emit("Mul", [x, _float(e, 1 / sqrt(2), g.dtype)])))


def _gelu_tanh(e: Emitter, g: Given) -> list[str]:
    (x,) = g.names
    cube = e.emit("Mul", [*e.emit("Mul", [x, x]), x])
    inner = e.emit("Add", [x, *e.emit("Mul", [*cube, _float(e, 0.044715, g.dtype)])])
    return _half(e, g, e.emit("Tanh", e.emit("Mul", [*inner, _float(e, sqrt(2 / pi), g.dtype)])))


def _half(e: Emitter, g: Given, gate: list[str]) -> list[str]:
    """Emit half of x times the gate plus one."""
    more = e.emit("Add", [*gate, _float(e, 1, g.dtype)])
    return e.emit("Mul", [*e.emit("Mul", [g.names[0], *more]), _float(e, 0.5, g.dtype)])


def _leaky(e: Emitter, g: Given) -> list[str]:
    return e.emit("LeakyRelu", g.names, alpha=float(g.attrs.alpha))


def _cast(e: Emitter, g: Given) -> list[str]:
    return e.emit("Cast", g.names, to=e.type_code(g.dtype))


def _take(e: Emitter, g: Given) -> list[str]:
    _require(g.attrs.axis is not None)
    return e.emit("Gather", g.names, axis=g.axis(g.attrs.axis))


def _gather_nd(e: Emitter, g: Given) -> list[str]:
    return e.emit("GatherND", _wide_indices(e, g), batch_dims=int(g.attrs.batch_dims))


def _scatter_nd(e: Emitter, g: Given) -> list[str]:
    return e.emit("ScatterND", _wide_indices(e, g), reduction=_reduction(g))


def _wide_indices(e: Emitter, g: Given) -> list[str]:
    """Return the tensors, with the second, the indices, in 64 bits, as ONNX requires."""
    data, indices, *others = g.names
    if g.dtypes[1] == "int64":
        return g.names
    return [data, *e.emit("Cast", [indices], to=e.type_code("int64")), *others]


def _scatter_elements(e: Emitter, g: Given) -> list[str]:
    how = _reduction(g)
    return e.emit("ScatterElements", g.names, axis=g.axis(g.attrs.axis), reduction=how)


def _reduction(g: Given) -> str:
    how = str(g.attrs.reduction)
    _require(how in ("update", "add", "mul"))  # others are of a later version of ONNX than is written
    return "none" if how == "update" else how


def _slice(e: Emitter, g: Given) -> list[str]:
    axes, begin, end = (g.numbers(k) for k in (1, 2, 3))
    steps = g.numbers(4) if len(g.call.args) > 4 else [1] * len(axes)
    return e.emit("Slice", [g.names[0], *(_ints(e, v) for v in (begin, end, axes, steps))])


def _reduce(kind: str) -> Form:
    def write(e: Emitter, g: Given) -> list[str]:
        axes, keep = g.axes(g.attrs.axis), int(g.attrs.keepdims)
        if kind == "ReduceSum":
            return e.emit(kind, [*g.names, _ints(e, axes)], keepdims=keep)
        return e.emit(kind, g.names, axes=axes, keepdims=keep)

    return write


def _variance(e: Emitter, g: Given) -> list[str]:
    axes = g.axes(g.attrs.axis)
    off = e.emit("Sub", [*g.names, *e.emit("ReduceMean", g.names, axes=axes, keepdims=1)])
    return e.emit("ReduceMean", e.emit("Mul", [*off, *off]), axes=axes, keepdims=int(g.attrs.keepdims))


def _arg(kind: str) -> Form:
    def write(e: Emitter, g: Given) -> list[str]:
        _require(g.attrs.axis is not None and g.dtype == "int64")
        return e.emit(kind, g.names, axis=g.axis(g.attrs.axis), keepdims=int(g.attrs.keepdims))

    return write


def _topk(e: Emitter, g: Given) -> list[str]:
    _require(str(g.attrs.ret_type) == "both" and str(g.attrs.dtype) == "int64")
    axis = g.axis(g.attrs.axis)
    k = _ints(e, [int(g.attrs.k)])
    return e.emit("TopK", [*g.names, k], 2, axis=axis, largest=int(g.attrs.largest), sorted=1)


def _cumsum(e: Emitter, g: Given) -> list[str]:
    _require(g.attrs.axis is not None)
    axis = e.tensor(np.array(g.axis(g.attrs.axis), "int64"))
    return e.emit("CumSum", [*g.names, axis], exclusive=int(bool(g.attrs.exclusive)))


def _resize(e: Emitter, g: Given) -> list[str]:
    a, empty = g.attrs, e.tensor(np.zeros(0, "float32"))
    _require(str(a.layout) == "NCHW" and g.rank == 4)
    method = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}.get(str(a.method))
    mode, rounding = str(a.coordinate_transformation_mode), str(a.rounding_method) or "round_prefer_floor"
    nearest = {"round": "round_prefer_floor"}.get(rounding, rounding)
    _require(method is not None and mode in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))
    _require(method != "nearest" or nearest in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    more: dict[str, Any] = {"nearest_mode": nearest} if method == "nearest" else {}
    more |= {"cubic_coeff_a": float(a.cubic_alpha)} if method == "cubic" else {}
    sizes = [g.names[0], empty, empty, _ints(e, g.made)]
    return e.emit("Resize", sizes, 1, mode=method, coordinate_transformation_mode=mode, **more)


def _window(g: Given, spatial: int) -> dict[str, Any]:
    a = g.attrs
    padding, strides, dilation = ([int(v) for v in getattr(a, n)] for n in ("padding", "strides", "dilation"))
    return {
        "pads": padding if len(padding) == 2 * spatial else padding * (2 * spatial // len(padding)),
        "strides": strides, "dilations": dilation, "group": int(a.groups), "kernel_shape": g.shapes[1][2:],
    }  # fmt: skip


def _conv1d(e: Emitter, g: Given) -> list[str]:
    _require((str(g.attrs.data_layout), str(g.attrs.kernel_layout)) == ("NCW", "OIW"))
    return e.emit("Conv", g.names, **_window(g, 1))


def _transposed(layouts: tuple[str, str], spatial: int) -> Form:
    def write(e: Emitter, g: Given) -> list[str]:
        _require((str(g.attrs.data_layout), str(g.attrs.kernel_layout)) == layouts)
        extra = [int(v) for v in g.attrs.output_padding]
        return e.emit("ConvTranspose", g.names, output_padding=extra, **_window(g, spatial))

    return write


def _pad(e: Emitter, g: Given) -> list[str]:
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}.get(str(g.attrs.pad_mode))
    _require(mode is not None)
    widths = [int(v) for v in g.attrs.pad_width]
    number = [_float(e, float(g.attrs.pad_value), g.dtype)] if mode == "constant" else []
    return e.emit("Pad", [g.names[0], _ints(e, widths[::2] + widths[1::2]), *number], mode=mode)


def _expand(e: Emitter, g: Given) -> list[str]:
    return e.emit("Expand", [g.names[0], _ints(e, g.made)])


def _triangle(upper: int) -> Form:
    def write(e: Emitter, g: Given) -> list[str]:
        first = g.call.args[1] if len(g.call.args) > 1 else g.attrs.k
        k = e.tensor(np.array(int(getattr(first, "value", first)), "int64"))
        return e.emit("Trilu", [g.names[0], k], upper=upper)

    return write


def _log_softmax(e: Emitter, g: Given) -> list[str]:
    return e.emit("LogSoftmax", g.names, axis=g.axis(g.attrs.axis))


_PLAIN = {
    "abs": "Abs", "add": "Add", "ceil": "Ceil", "cos": "Cos", "divide": "Div", "equal": "Equal", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less",
    "less_equal": "LessOrEqual", "log": "Log", "logical_and": "And", "logical_not": "Not", "logical_or": "Or",
    "maximum": "Max", "minimum": "Min", "multiply": "Mul", "negative": "Neg", "power": "Pow", "round": "Round", "sign": "Sign",
    "sin": "Sin", "subtract": "Sub", "where": "Where",
}  # fmt: skip
_FORMS: Mapping[str, Form] = {
    **{name: _plain(kind) for name, kind in _PLAIN.items()},
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "astype": _cast,
    "broadcast_to": _expand,
    "cumsum": _cumsum,
    "gather_elements": lambda e, g: e.emit("GatherElements", g.names, axis=g.axis(g.attrs.axis)),
    "gather_nd": _gather_nd,
    "image.resize2d": _resize,
    "max": _reduce("ReduceMax"),
    "min": _reduce("ReduceMin"),
    "nn.conv1d": _conv1d,
    "nn.conv1d_transpose": _transposed(("NCW", "IOW"), 1),
    "nn.conv2d_transpose": _transposed(("NCHW", "IOHW"), 2),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.layer_norm": _layer_norm,
    "nn.leakyrelu": _leaky,
    "nn.log_softmax": _log_softmax,
    "nn.pad": _pad,
    "nn.rms_norm": _rms_norm,
    "not_equal": _not("Equal"),
    "prod": _reduce("ReduceProd"),
    "square": lambda e, g: e.emit("Mul", [*g.names, *g.names]),
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "strided_slice": _slice,
    "sum": _reduce("ReduceSum"),
    "take": _take,
    "topk": _topk,
    "tril": _triangle(0),
    "triu": _triangle(1),
    "variance": _variance,
}


@dataclass(frozen=True)
class OnnxCalls:
    """The forms of opaque operators (`export_onnx.Opaque`): `calls` by their attribute `key` (`substitution_read.Read`)."""

    calls: Sequence[Any]

    def name(self, node: Node) -> str:
        """Return the operator's name, with `relax.`; for a graph operator the kind."""
        return str(getattr(self.calls[int(node["key"])].op, "name", "opaque")) if node.kind == "opaque" else node.kind

    def write(self, e: Emitter, node: Node, names: list[str]) -> list[str]:
        """Add the nodes for an operator with these tensor names; return its results' names."""
        return _FORMS[self._form(node)](e, self._given(node, names))

    def has_form(self, node: Node) -> bool:
        """Return True if `write` can."""
        form = _FORMS.get(self._form(node))
        if form is None:
            return False
        try:
            form(_Nothing(), self._given(node, [""] * len(node.inputs)))
        except _NoFormError:
            return False
        return True

    def _form(self, node: Node) -> str:
        return self.name(node).removeprefix("relax.")

    def _given(self, node: Node, names: list[str]) -> Given:
        call = self.calls[int(node["key"])]
        read = [r.type for r in node.inputs]
        shapes, dtypes = tuple(t.shape for t in read), tuple(t.dtype for t in read)
        return Given(call, names, shapes, dtypes, node.shape, node.type.dtype)


class _Nothing:
    """An emitter without any output."""

    def emit(self, kind: str, inputs: list[str], outputs: int = 1, **attrs: Any) -> list[str]:
        return [""] * outputs

    def tensor(self, value: np.ndarray) -> str:
        return ""

    def type_code(self, dtype: str) -> int:
        return 0
