"""Replace torch operators, that its exporter writes wrongly or not at all, by equivalent torch operators.

Torch takes such a function table beside its own (`ExportedProgram.run_decompositions`). A function returns
`NotImplemented` for forms written by the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tvm_cascade.importers.torch.cut import argument_of
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.importers.torch.written_out import (
    STACKS,
    angle_of,
    arc,
    functions_for,
    in_integers,
    logarithm_of_sigmoid,
    logarithm_of_sum,
    logarithms_of_sums,
    means_at,
    narrowed,
    negative,
    odds,
    overloads,
    powers,
    shrunk,
)


class _Rule(NamedTuple):
    """A test for an operator's unwritten forms, and the replacement."""

    applies: Callable[[Any], bool]
    function: Callable[..., Any]


def decompositions_for(graph: Any) -> dict[Any, Callable[..., Any]]:
    """Return replacements for a graph's operators that torch's exporter cannot write."""
    rules = _rules(torch_package())
    return {n.target: rules[n.target].function for n in graph.nodes if n.target in rules and rules[n.target].applies(n)}


def decomposition_of(operator: Any) -> Callable[..., Any] | None:
    """Return the replacement for an operator without a translation in the exporter; None without one."""
    torch = torch_package()
    written, rules = functions_for(torch), _rules(torch)
    if operator in written or operator not in rules:
        return written.get(operator) or torch._decomp.decomposition_table.get(operator)
    return rules[operator].function


def _rules(torch: Any) -> Mapping[Any, _Rule]:
    aten, own = torch.ops.aten, torch._decomp.decomposition_table
    stored = torch.ops.quantized_decomposed.quantize_per_tensor
    always = lambda node: True  # noqa: E731
    divided = lambda node: argument_of(node, "divisor_override") is not None  # noqa: E731
    truths = lambda node: all(a.meta["val"].dtype == torch.bool for a in node.all_input_nodes)  # noqa: E731
    typed = lambda node: argument_of(node, "dtype") is not None  # noqa: E731
    a_truth = lambda node: any(_is_of(a, torch.bool) for a in node.all_input_nodes)  # noqa: E731
    whole = lambda node: not argument_of(node, "dim") or node.meta["val"].dtype == torch.bool  # noqa: E731
    projected = lambda node: len(node.args[2]) == _cells(node) * (5 if node.args[3] else 3)  # noqa: E731
    return {
        **{operator: _Rule(typed, _of_type(operator)) for operator in (aten.softmax.int, aten.log_softmax.int)},
        **{getattr(aten, name).default: _Rule(always, function) for name, function in STACKS.items()},
        aten.divide.Tensor: _Rule(always, lambda a, b: aten.div.Tensor(a, b)),
        **{
            operator: _Rule(a_truth, in_integers(operator))
            for operator in (*overloads(torch, _OF_NUMBERS), aten.max.dim, aten.min.dim)
        },
        aten.scatter.src: _Rule(_is_wider, narrowed(aten.scatter.src)),
        aten.scatter_add.default: _Rule(_is_wider, narrowed(aten.scatter_add.default)),
        aten.scatter_reduce.two: _Rule(
            lambda node: a_truth(node) or _is_wider(node) or argument_of(node, "reduce") == "mean",
            _scattered(aten.scatter_reduce.two),
        ),
        aten.angle.default: _Rule(always, angle_of),
        aten.atan2.default: _Rule(always, arc),
        aten.add.Tensor: _Rule(truths, lambda a, b, alpha=1: _of_truths(torch, torch.logical_or, a, b, alpha)),
        aten.mul.Tensor: _Rule(truths, lambda a, b: _of_truths(torch, torch.logical_and, a, b, 1)),
        aten.amax.default: _Rule(whole, lambda x, dim=(), keepdim=False: _extreme(torch, aten.amax, x, dim, keepdim)),
        aten.amin.default: _Rule(whole, lambda x, dim=(), keepdim=False: _extreme(torch, aten.amin, x, dim, keepdim)),
        aten.conv3d.default: _Rule(lambda node: argument_of(node, "bias") is None, _without_bias),
        aten.avg_pool2d.default: _Rule(divided, _average(torch, aten.avg_pool2d, 2)),
        aten.avg_pool3d.default: _Rule(divided, _average(torch, aten.avg_pool3d, 3)),
        aten.fmax.default: _Rule(always, lambda a, b: _without_nan(torch, torch.maximum, a, b)),
        aten.fmin.default: _Rule(always, lambda a, b: _without_nan(torch, torch.minimum, a, b)),
        aten.heaviside.default: _Rule(
            always, lambda x, zero: torch.where(x == 0, zero, torch.where(x > 0, 1.0, 0.0).to(x.dtype))
        ),
        aten.logcumsumexp.default: _Rule(always, logarithms_of_sums),
        aten.log_sigmoid_forward.default: _Rule(always, lambda x: (logarithm_of_sigmoid(x), x)),
        **{
            operator: _Rule(_keeps_all, _norm)
            for operator in (aten.linalg_norm.default, aten.linalg_vector_norm.default)
        },
        aten.log_sigmoid.default: _Rule(always, logarithm_of_sigmoid),
        aten.logaddexp.default: _Rule(always, logarithm_of_sum),
        aten.logaddexp2.default: _Rule(always, lambda a, b: logarithm_of_sum(a, b, 2.0)),
        aten.logit.default: _Rule(always, odds),
        aten.pad.default: _Rule(_is_cropped, _cropped),
        aten.pow.Tensor_Scalar: _Rule(lambda node: node.args[1] in (0.5, -0.5), powers),
        aten.sign.default: _Rule(
            lambda node: node.args[0].meta["val"].is_floating_point(),
            lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype),  # 0 of NaN, which stays NaN in ONNX
        ),
        aten.signbit.default: _Rule(lambda node: node.args[0].meta["val"].is_floating_point(), negative),
        aten.softshrink.default: _Rule(always, shrunk),
        **{
            operator: _Rule(_is_scaled_to_corners, _to_size(operator))
            for operator in (aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.vec, aten.upsample_trilinear3d.vec)
        },
        stored.default: _Rule(_is_narrow, lambda *args: _clamped(torch, stored, *args)),
        aten.lstm.input: _Rule(projected, own[aten.lstm.input]),
    }


_OF_NUMBERS = (  # and not of booleans, as ONNX has them
    "addr",
    "argsort",
    "isclose",
    "isfinite",
    "isnan",
    "msort",
    "nansum",
    "sort",
    "topk",
)


def _is_of(node: Any, dtype: Any) -> bool:
    return getattr(node.meta.get("val"), "dtype", None) is dtype


def _is_wider(node: Any) -> bool:
    """Return True if a scatter takes only a part of its source: ONNX takes all."""
    index, source = (node.args[k].meta["val"].shape for k in (2, 3))
    return tuple(index) != tuple(source)


def _cells(node: Any) -> int:
    """Return how many cells an LSTM has: a layer's, in each direction."""
    return node.args[4] * (1 + argument_of(node, "bidirectional"))


def _keeps_all(node: Any) -> bool:
    """Return True for a norm of vectors over all axes that keeps them: the exporter loses the axes."""
    of_matrices = "vector" not in str(node.target) and argument_of(node, "ord") is not None
    return bool(argument_of(node, "keepdim")) and not argument_of(node, "dim") and not of_matrices


def _norm(x: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Compute a norm over all axes with the axes spelled out; others are left as they are."""
    if dim or not keepdim:
        return NotImplemented
    vector_norm = torch_package().ops.aten.linalg_vector_norm.default
    return vector_norm(x, 2 if ord is None else ord, list(range(x.ndim)), keepdim, dtype=dtype)


def _is_cropped(node: Any) -> bool:
    """Return whether a circular pad has negative amounts, which ONNX has no form of."""
    return argument_of(node, "mode") == "circular" and min(node.args[1]) < 0


def _cropped(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Compute a circular pad by negative amounts: the remaining tensor wraps around."""
    if min(pad) >= 0:
        return NotImplemented
    for k, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = x.dim() - 1 - k
        first, last = max(-before, 0), x.shape[axis] - max(-after, 0)
        x = x.narrow(axis, first, last - first)
    return torch_package().nn.functional.pad(x, [max(p, 0) for p in pad], mode, value) if max(pad) > 0 else x.clone()


def _is_scaled_to_corners(node: Any) -> bool:
    """Return whether a resize with aligned corners has scales: ONNX takes the last corner from them, torch from the size."""
    return bool(argument_of(node, "align_corners")) and argument_of(node, "scale_factors") is not None


def _to_size(operator: Any) -> Callable[..., Any]:
    """Return a corner-aligned resize by scales as a resize to the resulting size."""

    def resized(x: Any, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None) -> Any:
        if not align_corners or scale_factors is None:
            return NotImplemented
        size = [int(extent * factor) for extent, factor in zip(x.shape[2:], scale_factors, strict=True)]
        return operator(x, size, align_corners, None)

    return resized


def _extreme(torch: Any, operator: Any, x: Any, dim: Sequence[int], keepdim: bool) -> Any:
    """Compute amax or amin, over all axes by default, and for booleans in integers."""
    if dim and x.dtype != torch.bool:
        return NotImplemented
    axes = list(dim) or list(range(x.dim()))
    if x.dtype == torch.bool:
        return operator(x.to(torch.int32), axes, keepdim).to(torch.bool)
    return operator(x, axes, keepdim) if axes else x


def _scattered(operator: Any) -> Callable[..., Any]:
    """Return a scatter that reduces booleans, computes means, or takes a source larger than its indices."""
    ways = (narrowed(operator), in_integers(operator), means_at)

    def computed(*args: Any, **keywords: Any) -> Any:
        made = (way(*args, **keywords) for way in ways)
        return next((found for found in made if found is not NotImplemented), NotImplemented)

    return computed


def _without_bias(x: Any, weight: Any, bias: Any = None, *how: Any) -> Any:
    """Convolve three axes without a bias, in whose place the exporter writes zeros of two axes."""
    if bias is not None:
        return NotImplemented
    stride, padding, dilation, groups = (*how, *(1, 0, 1, 1)[len(how) :])
    sizes = [[v] * 3 if isinstance(v, int) else list(v) for v in (stride, padding, dilation)]
    return torch_package().ops.aten.convolution.default(x, weight, None, *sizes, False, [0, 0, 0], groups)


def _of_type(operator: Any) -> Callable[..., Any]:
    """Return a softmax that casts its input to a given type."""

    def computed(x: Any, dim: int, dtype: Any = None) -> Any:
        return NotImplemented if dtype is None else operator(x.to(dtype), dim)

    return computed


def _average(torch: Any, operator: Any, rank: int) -> Callable[..., Any]:
    """Return an average pool with `divisor_override`: an average over whole windows, rescaled."""

    def pooled(
        x: Any,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is None:
            return NotImplemented
        plain = operator(x, kernel, stride, padding, ceil_mode, count_include_pad)
        windows, steps, before = (_each(values, rank) for values in (kernel, stride or kernel, padding))
        extents = zip(plain.shape[-rank:], steps, windows, x.shape[-rank:], before, strict=True)
        after = [max((n - 1) * s + k - d - p, 0) for n, s, k, d, p in extents]
        pads = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
        padded = torch.nn.functional.pad(x, pads) if any(pads) else x
        return operator(padded, windows, steps) * (prod(windows) / divisor_override)

    return pooled


def _each(values: Sequence[int], rank: int) -> list[int]:
    """Return a single number per window axis, from one for all or one for each."""
    return [int(v) for v in values] * (rank if len(values) == 1 else 1)


def _without_nan(torch: Any, operator: Any, a: Any, b: Any) -> Any:
    """Compute the larger or smaller of two operands, ignoring NaN."""
    if not (a.is_floating_point() or b.is_floating_point()):
        return operator(a, b)
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, operator(a, b)))


def _of_truths(torch: Any, operator: Any, a: Any, b: Any, factor: int) -> Any:
    """Compute a sum or a product of booleans, which torch takes for numbers without a carry."""
    if not all(isinstance(v, torch.Tensor) and v.dtype == torch.bool for v in (a, b)):
        return NotImplemented
    return operator(a, b) if factor else a.clone()


def _is_narrow(node: Any) -> bool:
    """Return True if a quantize clamps to less than its type's range."""
    return not _covers(torch_package(), *node.args[3:6])


def _covers(torch: Any, least: int, most: int, dtype: Any) -> bool:
    return (least, most) == (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _clamped(torch: Any, operator: Any, x: Any, scale: float, zero: int, least: int, most: int, dtype: Any) -> Any:
    """Quantize to a part of a type's range: quantize to the whole range, then clamp."""
    if _covers(torch, least, most, dtype):
        return NotImplemented
    info = torch.iinfo(dtype)
    return torch.clamp(operator(x, scale, zero, info.min, info.max, dtype), least, most)
