"""Rewrite torch operators unknown to its exporter and decompositions as equivalent torch operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from tvm_cascade.importers.torch.package import torch_package


def functions_for(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Return the replacement functions, by operator."""
    aten, torchao = torch.ops.aten, torch.ops.torchao
    affine = [torchao.dequantize_affine.default] if hasattr(torchao, "dequantize_affine") else []
    return {
        **dict.fromkeys(affine, _dequantized_by_blocks),
        torch.ops.prims.view_of.default: lambda x: x.clone(),
        torch.ops.prims.signbit.default: negative,
        aten._cdist_forward.default: _distances,
        aten.adaptive_max_pool1d.default: lambda x, size: _adaptive_maxima(aten.max_pool1d_with_indices, x, size),
        aten.adaptive_max_pool2d.default: lambda x, size: _adaptive_maxima(aten.max_pool2d_with_indices, x, size),
        aten.adaptive_max_pool3d.default: lambda x, size: _adaptive_maxima(aten.max_pool3d_with_indices, x, size),
        aten.aminmax.default: _extremes,
        aten.argsort.stable: lambda x, *, stable, dim=-1, descending=False: x.sort(dim=dim, descending=descending)[1],
        aten.cdist.default: _distances,
        aten.sort.stable: lambda x, stable=None, dim=-1, descending=False: x.sort(dim=dim, descending=descending),
        aten.cummax.default: lambda x, dim: _running(x, dim, 1),
        aten.cummin.default: lambda x, dim: _running(x, dim, -1),
        aten.cumprod.default: _products,
        aten.hypot.default: _length,
        aten.index_reduce.default: _reduced_by_index,
        aten.median.default: lambda x: _middle(x.reshape(-1), 0, False, True)[0],
        aten.median.dim: lambda x, dim, keepdim=False: _middle(x, dim, keepdim, True),
        aten.nanmedian.default: lambda x: _middle(x.reshape(-1), 0, False, False)[0],
        aten.nanmedian.dim: lambda x, dim, keepdim=False: _middle(x, dim, keepdim, False),
        aten.rrelu.default: lambda x, lower=1 / 8, upper=1 / 3: torch.where(x >= 0, x, x * ((lower + upper) / 2)),
        aten.put.default: _put,
        aten.searchsorted.Tensor: _searched,
        aten.square.default: lambda x: x * x,
    }


def _stacked(shaped: Callable[[Any], Any], axis: int) -> Callable[[Sequence[Any]], Any]:
    """Return a stack of tensors: unsqueezed and joined along a single axis; a single tensor as it is."""

    def stacked(tensors: Sequence[Any]) -> Any:
        made = [shaped(t) for t in tensors]
        return torch_package().cat(made, min(axis, made[0].dim() - 1))

    return stacked


def _plane(x: Any) -> Any:
    return x.reshape(1, -1) if x.dim() < 2 else x


STACKS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "hstack": _stacked(lambda x: x.reshape(1) if x.dim() == 0 else x, 1),
    "vstack": _stacked(_plane, 0),
    "row_stack": _stacked(_plane, 0),
    "dstack": _stacked(lambda x: _plane(x).unsqueeze(2) if x.dim() < 3 else x, 2),
    "column_stack": _stacked(lambda x: x.reshape(-1, 1) if x.dim() < 2 else x, 1),
}


def arc(y: Any, x: Any) -> Any:
    """Compute atan2, with the signs of zeros."""
    torch = torch_package()
    y, x = ((v if v.is_floating_point() else v.to(torch.get_default_dtype())) for v in (y, x))
    over, under = abs(y), abs(x)
    ratio = torch.where(over == under, torch.where(over == 0, 0.0, 1.0), over / under)  # also of two infinities
    ratio = torch.where(torch.logical_or(torch.isnan(x), torch.isnan(y)), torch.nan, ratio)
    angle = torch.atan(ratio)
    angle = torch.where(negative(x), torch.pi - angle, angle)
    return torch.where(negative(y), -angle, angle)


def logarithm_of_sum(a: Any, b: Any, base: float = math.e) -> Any:
    """Compute the logarithm of two powers' sum, without overflow."""
    torch = torch_package()
    less = torch.exp(-abs(a - b) * math.log(base))
    return torch.where(a == b, a + math.log(2, base), torch.maximum(a, b) + torch.log1p(less) / math.log(base))


def logarithms_of_sums(x: Any, dim: int) -> Any:
    """Compute running logarithms of summed powers along an axis, in log2(n) steps."""
    torch, step = torch_package(), 1
    while x.dim() and step < x.shape[dim]:
        rest = x.shape[dim] - step
        later = logarithm_of_sum(x.narrow(dim, step, rest), x.narrow(dim, 0, rest))
        x, step = torch.cat([x.narrow(dim, 0, step), later], dim), 2 * step
    return x.clone() if step == 1 else x


def _length(a: Any, b: Any) -> Any:
    """Compute the root of summed squares without overflow; infinite if either is."""
    torch = torch_package()
    a, b = abs(a), abs(b)
    most = torch.maximum(a, b)
    ratio = torch.minimum(a, b) / torch.where(most == 0, 1.0, most)
    found = most * torch.sqrt(ratio * ratio + 1.0)
    return torch.where(torch.logical_or(torch.isinf(a), torch.isinf(b)), torch.inf, found)


def logarithm_of_sigmoid(x: Any) -> Any:
    """Compute logsigmoid without an overflow of powers."""
    torch = torch_package()
    return torch.minimum(x, torch.zeros_like(x)) - torch.log1p(torch.exp(-abs(x)))


def odds(x: Any, eps: float | None = None) -> Any:
    """Compute the logit; NaN stays NaN, though torch's exporter would write a bound."""
    torch = torch_package()
    x = x if eps is None else torch.clamp(x, eps, 1 - eps)
    return torch.log(x / (1 - x))


def shrunk(x: Any, lambd: float = 0.5) -> Any:
    """Compute softshrink; NaN stays NaN, though ONNX would give 0."""
    torch = torch_package()
    return torch.where(abs(x) <= lambd, 0.0, torch.where(x > 0, x - lambd, x + lambd))


def powers(x: Any, exponent: float) -> Any:
    """Compute square roots and reciprocal square roots, which differ from powers in the signs of zeros and infinities."""
    roots = {0.5: lambda: x.sqrt(), -0.5: lambda: x.rsqrt()}
    return roots[exponent]() if exponent in roots and x.is_floating_point() else NotImplemented


def negative(x: Any) -> Any:
    """Return True for numbers with a sign: -0.0 has one."""
    torch = torch_package()
    return torch.logical_or(x < 0, torch.logical_and(x == 0, torch.reciprocal(x) < 0))


def angle_of(x: Any) -> Any:
    """Compute the angles of real numbers: pi for negative numbers, else 0."""
    torch = torch_package()
    if x.is_floating_point():
        return NotImplemented
    return torch.where(x.to(torch.float32) < 0, torch.pi, 0.0)


def in_integers(operator: Any) -> Callable[..., Any]:
    """Return a function that computes a boolean operator in integers, and returns booleans."""

    def computed(*args: Any, **keywords: Any) -> Any:
        torch = torch_package()
        tree = torch.utils._pytree
        given = tree.tree_leaves((args, keywords))
        if not any(isinstance(v, torch.Tensor) and v.dtype == torch.bool for v in given):
            return NotImplemented

        def numbers(value: Any) -> Any:
            return value.to(torch.int32) if isinstance(value, torch.Tensor) and value.dtype == torch.bool else value

        args, keywords = tree.tree_map(numbers, (args, keywords))
        found = operator(*args, **keywords)
        return tree.tree_map(lambda v: v.to(torch.bool) if v.dtype == torch.int32 else v, found)

    return computed


def _running(x: Any, dim: int, sign: int) -> Any:
    """Compute the running maximum (`sign` 1) or minimum (-1) along an axis, and its last position."""
    torch, kind = torch_package(), x.dtype
    places = torch.zeros(x.shape, dtype=torch.int64)
    if x.dim() == 0:
        return x.clone(), places
    shape = [1] * x.dim()
    shape[dim] = count = x.shape[dim]
    places, step = places + torch.arange(count).reshape(shape), 1
    x = x.to(torch.int32) if kind == torch.bool else x
    while step < count:  # in as many steps as the number of elements has bits
        old, new = x.narrow(dim, 0, count - step), x.narrow(dim, step, count - step)
        taken = new >= old if sign > 0 else new <= old
        if x.is_floating_point():
            taken = torch.logical_or(torch.logical_and(taken, torch.logical_not(torch.isnan(old))), torch.isnan(new))
        pairs = ((x, old, new), (places, *(places.narrow(dim, at, count - step) for at in (0, step))))
        x, places = (torch.cat([v.narrow(dim, 0, step), torch.where(taken, b, a)], dim) for v, a, b in pairs)
        step *= 2
    return x.to(kind), places


def _products(x: Any, dim: int, *, dtype: Any = None) -> Any:
    """Compute the products of the elements so far along an axis, in as many steps as their number has bits."""
    torch = torch_package()
    x = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    step = 1
    while x.dim() and step < x.shape[dim]:
        rest = x.shape[dim] - step
        later = x.narrow(dim, step, rest) * x.narrow(dim, 0, rest)
        x, step = torch.cat([x.narrow(dim, 0, step), later], dim), 2 * step
    return x.clone() if step == 1 else x


def _extremes(x: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    axes = () if dim is None else (dim,)
    return x.amin(axes, keepdim), x.amax(axes, keepdim)


def _distances(a: Any, b: Any, p: float = 2.0, mode: int | None = None) -> Any:
    """Compute the distances between all rows of two tensors."""
    apart = abs(a.unsqueeze(-2) - b.unsqueeze(-3))
    if p == 0:
        return (apart != 0).to(a.dtype).sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    if p in (1, 2):
        return apart.sum(-1) if p == 1 else (apart * apart).sum(-1).sqrt()
    return (apart**p).sum(-1) ** (1 / p)


def _adaptive_maxima(pool: Callable[..., Any], x: Any, size: Sequence[int]) -> Any:
    """Compute maxima over windows of differing sizes, and their places in the plane: window by window, unless sizes
    agree.
    """
    torch, planes = torch_package(), x.shape[-len(size) :]
    if all(d % n == 0 for d, n in zip(planes, size, strict=True)):
        return pool(x, [d // n for d, n in zip(planes, size, strict=True)])
    values, places = x, torch.zeros(x.shape, dtype=torch.int64)
    for axis in reversed(range(-len(size), 0)):
        n, d = size[axis], planes[axis]
        most = max(-(-(o + 1) * d // n) - o * d // n for o in range(n))
        cells = torch.arange(n).unsqueeze(1)
        first, last = ((cells + k) * d + k * (n - 1) for k in (0, 1))
        first, last = (torch.div(v, n, rounding_mode="floor") for v in (first, last))
        taken = torch.minimum(first + torch.arange(most), last - 1)
        values, places = (_windows(v, axis, taken) for v in (values, places))
        values, inside = values.max(-1, keepdim=True)
        row = first + inside.movedim(axis - 1, -2)
        row = row.movedim(-2, axis - 1) * prod(planes[len(size) + axis + 1 :])
        values, places = values.squeeze(-1), (places.gather(-1, inside) + row).squeeze(-1)
    return values, places


def _windows(x: Any, axis: int, places: Any) -> Any:
    """Return the elements at places along an axis: windows take the axis, their elements a new last axis."""
    found = x.index_select(axis, places.reshape(-1)).unflatten(axis, tuple(places.shape))
    return found.movedim(axis, -1)


def narrowed(operator: Any) -> Callable[..., Any]:
    """Return a scatter of the source's part with indices."""

    def computed(x: Any, dim: int, index: Any, source: Any, *args: Any, **keywords: Any) -> Any:
        if tuple(index.shape) == tuple(source.shape) or index.dim() != source.dim():
            return NotImplemented
        for axis, count in enumerate(index.shape):
            source = source.narrow(axis, 0, count)
        return operator(x, dim, index, source, *args, **keywords)

    return computed


def means_at(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Compute `scatter_reduce` of means."""
    if reduce != "mean":
        return NotImplemented
    torch = torch_package()
    none = torch.zeros_like(x)
    total = none.scatter_reduce(dim, index, source, "sum")
    count = none.scatter_reduce(dim, index, torch.ones_like(source), "sum")
    rounding = None if x.is_floating_point() else "floor"
    if include_self:
        return torch.div(x + total, count + 1, rounding_mode=rounding)
    return torch.where(count > 0, torch.div(total, count.clamp(min=1), rounding_mode=rounding), x)


def _reduced_by_index(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Reduce slices into the slices named by an index, element by element."""
    if x.dim() == 0:
        return NotImplemented
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    if reduce == "mean":
        return means_at(x, dim, places, source, reduce, include_self=include_self)
    return torch_package().scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _at(x: Any, dim: int, place: int, keepdim: bool) -> Any:
    found = x.narrow(dim, place, 1)
    return found if keepdim else found.squeeze(dim)


def _middle(x: Any, dim: int, keepdim: bool, whole: bool) -> Any:
    """Compute the lower median along an axis, and its position; NaN if `whole` and any element is NaN, else the median
    without NaN.
    """
    torch = torch_package()
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = x.sort(dim=dim)
    count = x.shape[dim]
    if not x.is_floating_point():
        return _at(values, dim, (count - 1) // 2, keepdim), _at(places, dim, (count - 1) // 2, keepdim)
    missing = torch.isnan(values).to(torch.int64).sum(dim, True)  # which stand last
    if whole:
        at = torch.where(missing > 0, count - missing, (count - 1) // 2)
    else:
        at = torch.where(missing < count, (count - missing - 1) // 2, 0)
    found = [v.gather(dim, at) for v in (values, places)]
    return tuple(v if keepdim else v.squeeze(dim) for v in found)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Compute a copy with elements replaced, or added to, at places of the flattened tensor."""
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def _searched(
    ordered: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Compute how many elements of ordered rows are smaller than numbers, or not larger."""
    torch = torch_package()
    if x.dim() == 0:
        return NotImplemented
    rows = ordered if sorter is None else ordered.gather(-1, sorter)
    rows, wanted = rows.unsqueeze(-2), x.unsqueeze(-1)
    below = rows <= wanted if right or side == "right" else rows < wanted
    return below.to(torch.int32).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def overloads(torch: Any, names: Sequence[str]) -> list[Any]:
    """Return the overloads of these torch operators that write into no given tensor."""
    packets = [getattr(torch.ops.aten, name) for name in names]
    return [getattr(packet, name) for packet in packets for name in packet.overloads() if "out" not in name]


def _dequantized_by_blocks(
    x: Any,
    block: Any,
    scale: Any,
    zero: Any,
    _stored: Any,
    _least: Any = None,
    _most: Any = None,
    output_dtype: Any = None,
) -> Any:
    """Compute torchao's `(x - zero) * scale` with a scale for each block of `x`."""
    dtype = scale.dtype if output_dtype is None else output_dtype
    counts = [d // b for d, b in zip(x.shape, block, strict=True)]
    split = [n for count, b in zip(counts, block, strict=True) for n in (count, b)]
    alike = [n for count in counts for n in (count, 1)]
    real = x.reshape(split).to(dtype)
    if zero is not None:
        real = real - zero.reshape(alike).to(dtype)
    return (real * scale.reshape(alike).to(dtype)).reshape(x.shape)
