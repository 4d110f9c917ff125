"""Converters for ONNX's Resize and Upsample.

Relax's `resize2d` serves all cases where it agrees with ONNX. Otherwise, mode nearest gathers along each axis; modes
linear and cubic multiply along each axis by a constant matrix. A row holds a single output's input weights by ONNX's
definition: the filter at the output's place, widened by the scale with antialias; outside values come from the edge or
count nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod
from typing import Any

import numpy as np

from tvm_cascade.importers.interface import MAX_ELEMENTS
from tvm_cascade.passes.integer.expressions import constant
from tvm_cascade.passes.layout.nearest import NEAREST_MODES, nearest_sources, ratio_decides
from tvm_cascade.passes.main_rewriting import Value, constant_of, relax, shape_of

Attributes = dict[str, Any]
_FIXED = "export it with sizes (torch: interpolate(size=...) or recompute_scale_factor=True)"
# modes that resize2d computes as ONNX does
_PLAIN = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@dataclass(frozen=True, slots=True)
class Axis:
    """A Resize axis: `scale` outputs per input; in mode tf_crop_and_resize from `start` to `end`."""

    extent: int
    size: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def plain(self) -> bool:
        """Return True if the scale equals the size ratio."""
        return float(np.float32(self.scale) * np.float32(self.extent)) == self.size


def upsample(bb: Any, inputs: Sequence[Value], attrs: Attributes) -> Value:
    """Convert Upsample to a Resize with equal scales and asymmetric coordinates; in opset 10, mode nearest rounds down
    to enlarge and up to shrink, like ONNX Runtime.
    """
    x, scales = inputs[0], _constant(inputs, 1) if inputs[1] is not None else attrs.get("scales")
    if scales is None:
        raise NotImplementedError(f"scales that are computed: {_FIXED}")
    how = {
        "mode": text(attrs, "mode", "nearest"),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    if how["mode"] == "nearest" and (len(scales) != 4 or min(scales) < 1):
        axes = dict(enumerate(_axes([x, None, relax.const(list(scales), "float32"), None], {})))
        x = _gathered(bb, x, {k: a for k, a in axes.items() if a.scale < 1}, "asymmetric", "ceil")
        return _gathered(bb, x, {k: a for k, a in axes.items() if a.scale > 1}, "asymmetric", "floor")
    whole = [x, None, relax.const(list(scales), "float32"), None]
    resized = resize(bb, whole, how)
    if resized is not None:
        return resized
    size = [int(np.float32(s) * np.float32(d)) for s, d in zip(scales[2:], shape_of(x)[2:], strict=True)]
    method, rounding = ("nearest_neighbor", "floor") if how["mode"] == "nearest" else (how["mode"], "")
    form = {"method": method, "rounding_method": rounding, "coordinate_transformation_mode": "asymmetric"}
    return relax.op.image.resize2d(x, size, layout="NCHW", **form)


def resize(bb: Any, inputs: list[Value], attrs: Attributes) -> Value | None:
    """Convert Resize; return None, with `inputs` for all axes, if the importer's `resize2d` is right. Before opset 11
    the operator is an Upsample.
    """
    if int(attrs.get("tvm_custom", {}).get("opset", 11)) < 11:
        return upsample(bb, inputs, attrs)
    axes = _axes(inputs, attrs)
    how, mode = text(attrs, "coordinate_transformation_mode", "half_pixel"), text(attrs, "mode", "nearest")
    if min(a.size for a in axes) < 1 or prod(a.size for a in axes) > MAX_ELEMENTS:
        raise NotImplementedError(
            f"a result of shape {[a.size for a in axes]}, empty or of more than {MAX_ELEMENTS} elements"
        )
    moved = {k: a for k, a in enumerate(axes) if a.size != a.extent or a.scale != 1 or how == "tf_crop_and_resize"}
    # the importer divides by zero
    one = how == "align_corners" and min((a.size for a in moved.values()), default=2) == 1
    special = attrs.get("antialias") or how not in _PLAIN or one
    rounding = text(attrs, "nearest_mode", "round_prefer_floor")
    if mode == "nearest" and not special:
        special = not all(ratio_decides(a.extent, a.size, a.scale, how, rounding) for a in moved.values())
    if len(axes) in (3, 4, 5) and min(moved, default=2) > 1 and not special and all(a.plain for a in axes):
        return None
    if mode == "nearest":
        return _gathered(bb, inputs[0], moved, how, rounding)
    return _weighed(bb, inputs[0], moved, attrs, how, mode)


def text(attrs: Attributes, name: str, otherwise: str) -> str:
    """Return a string attribute."""
    value = attrs.get(name, otherwise)
    return value.decode() if isinstance(value, bytes) else str(value)


def _constant(inputs: Sequence[Value], index: int) -> np.ndarray | None:
    value = inputs[index]
    return None if value is None else constant_of(value)


def _axes(inputs: list[Value], attrs: Attributes) -> list[Axis]:
    """Return all axes of the input; extend scales or sizes for some `axes` to all, in place."""
    shape = shape_of(inputs[0])
    chosen = [int(a) % len(shape) for a in attrs.pop("axes", None) or range(len(shape))]
    given: dict[str, list[float]] = {}
    for index, name in ((1, "roi"), (2, "scales"), (3, "sizes")):
        if inputs[index] is None or (
            name == "roi" and text(attrs, "coordinate_transformation_mode", "") != "tf_crop_and_resize"
        ):
            continue
        data = _constant(inputs, index)
        if data is None:
            raise NotImplementedError(f"{name} that are computed: {_FIXED}")
        if not data.size:
            inputs[index] = None  # the only way of opsets 11 to 13 to leave scales out
        else:
            given[name] = [float(v) for v in data.reshape(-1)]
    sizes, scales = _sizes(shape, chosen, given, text(attrs, "keep_aspect_ratio_policy", "stretch"))
    roi = given.get("roi", [0.0] * len(chosen) + [1.0] * len(chosen))
    found = [Axis(d, d, 1.0) for d in shape]
    for k, axis in enumerate(chosen):
        found[axis] = Axis(shape[axis], sizes[k], scales[k], roi[k], roi[k + len(chosen)])
    if "sizes" in given:
        inputs[3] = relax.const([a.size for a in found], "int64")
    else:
        inputs[2] = relax.const([a.scale for a in found], "float32")
    return found


def _sizes(
    shape: Sequence[int], chosen: Sequence[int], given: dict[str, list[float]], policy: str
) -> tuple[list[int], list[float]]:
    """Return the chosen axes' sizes and scales."""
    if "sizes" not in given and "scales" not in given:
        raise NotImplementedError("neither scales nor sizes")
    values = given.get("sizes") or given["scales"]
    if len(values) != len(chosen):
        raise NotImplementedError(f"{len(values)} scales or sizes for {len(chosen)} axes")
    extents = [shape[a] for a in chosen]
    if "sizes" not in given:
        return [floor(np.float32(s) * np.float32(d)) for s, d in zip(values, extents, strict=True)], values
    scales = [size / extent for size, extent in zip(values, extents, strict=True)]
    if policy == "stretch":
        return [int(v) for v in values], scales
    one = min(scales) if policy == "not_larger" else max(scales)
    return [floor(one * d + 0.5) for d in extents], [one] * len(extents)


def _gathered(bb: Any, x: Value, moved: dict[int, Axis], how: str, rounding: str) -> Value:
    """Gather the elements read by the outputs along every axis: mode nearest."""
    if how not in NEAREST_MODES:
        raise NotImplementedError(f"mode nearest with coordinates of {how}: export it with asymmetric or half_pixel")
    for k, axis in moved.items():
        places = nearest_sources(axis.extent, axis.size, axis.scale, how, rounding)
        if places != list(range(axis.extent)):
            x = bb.normalize(relax.op.take(x, relax.const(places, "int32"), k))
    return x


def _weighed(bb: Any, x: Value, moved: dict[int, Axis], attrs: Attributes, how: str, mode: str) -> Value:
    """Multiply by every axis's weights: modes linear and cubic."""
    shape, dtype = list(shape_of(x)), str(x.ty.dtype)
    rank = len(shape)
    if not dtype.startswith("float"):
        raise NotImplementedError(f"mode {mode} of {dtype}: cast it to float first")
    for k, axis in moved.items():
        if axis.extent * axis.size > MAX_ELEMENTS:
            raise NotImplementedError(f"an axis of {axis.extent} elements to {axis.size}")
        table = constant(_weights(axis, attrs, how, mode).astype(dtype))
        if k == rank - 2:
            x = bb.normalize(relax.op.matmul(table, x))
            continue
        order = [a for a in range(rank) if a != k] + [k]
        turned = x if k == rank - 1 else bb.normalize(relax.op.permute_dims(x, order))
        x = bb.normalize(relax.op.matmul(turned, bb.normalize(relax.op.permute_dims(table, [1, 0]))))
        if k != rank - 1:
            x = bb.normalize(relax.op.permute_dims(x, [order.index(a) for a in range(rank)]))
    if how != "tf_crop_and_resize":
        return x
    outside = np.zeros((1,) * rank, bool)
    for k, axis in moved.items():
        far = [not 0 <= p <= axis.extent - 1 for p in _places(axis, how)]
        outside = outside | np.array(far).reshape([-1 if a == k else 1 for a in range(rank)])
    value = constant(np.array(attrs.get("extrapolation_value", 0.0), dtype))
    return relax.op.where(relax.const(outside, "bool"), value, x) if outside.any() else x


def _places(axis: Axis, how: str) -> list[float]:
    """Return each output's place in the input."""
    wide = axis.scale * axis.extent  # which need not be whole
    span = axis.extent - 1
    rules: dict[str, Callable[[int], float]] = {
        "half_pixel": lambda i: (i + 0.5) / axis.scale - 0.5,
        "half_pixel_symmetric": lambda i: axis.extent / 2 * (1 - axis.size / wide) + (i + 0.5) / axis.scale - 0.5,
        "pytorch_half_pixel": lambda i: (i + 0.5) / axis.scale - 0.5 if axis.size > 1 else 0.0,
        "align_corners": lambda i: i * span / (wide - 1) if wide != 1 else 0.0,
        "asymmetric": lambda i: i / axis.scale,
        "tf_half_pixel_for_nn": lambda i: (i + 0.5) / axis.scale,
        "tf_crop_and_resize": lambda i: (
            span * (axis.start + i * (axis.end - axis.start) / (wide - 1) if wide > 1 else (axis.start + axis.end) / 2)
        ),
    }
    if how not in rules:
        raise NotImplementedError(f"coordinates of {how}")
    return [rules[how](i) for i in range(axis.size)]


def _weights(axis: Axis, attrs: Attributes, how: str, mode: str) -> np.ndarray:
    """Return a single row per output: the weights for the inputs along an axis."""
    cubic = float(attrs.get("cubic_coeff_a", -0.75))
    filters: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
        "linear": (1, lambda t: np.maximum(1 - t, 0)),
        "cubic": (2, lambda t: _cubic(t, cubic)),
    }
    if mode not in filters:
        raise NotImplementedError(f"mode {mode}")
    reach, shape = filters[mode]
    stretch = min(axis.scale, 1.0) if attrs.get("antialias") else 1.0
    steps = np.arange(floor(-reach / stretch) + 1, reach - floor(-reach / stretch))
    table = np.zeros((axis.size, axis.extent))
    for row, place in zip(table, _places(axis, how), strict=True):
        left = ceil(place) - 1  # the neighbour before, also of a place on one
        weights = shape(np.abs(steps - (place - left)) * stretch)
        at = left + steps
        if attrs.get("exclude_outside"):
            weights = np.where((at >= 0) & (at < axis.extent), weights, 0)
        np.add.at(row, np.clip(at, 0, axis.extent - 1), weights / weights.sum())
    return table


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Compute Keys' cubic kernel with parameter a (Cubic convolution interpolation for digital image processing, 1981,
    equation 4).
    """
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))
