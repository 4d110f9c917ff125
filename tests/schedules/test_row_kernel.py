"""Row kernels compute, row by row out of rings of any height, what the plain PrimFunc computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from tvm_cascade.passes.windows import AccessPattern, row_windows
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.kernels.pixel_kernel import pixel_kernel
from tvm_cascade.schedules.kernels.row_kernel import row_kernel
from tvm_cascade.schedules.tir import collect, ir, is_if_then_else
from tvm_cascade.testing.host_call import run_pixels, run_rows
from tvm_cascade.testing.quick_build import quick_build

GARBAGE = 77


@pytest.fixture
def kernels_are_built_once() -> None:
    """They are the subject here: every test builds its own."""


def prim_func(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors), index_dtype_override="int32")


def act(*shape: int, dtype: str = "int8", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def pad_stage(x: te.Tensor, pads: Sequence[int], zero: int, name: str) -> te.Tensor:
    top, left, bottom, right = pads
    n, h, w, c = (int(d) for d in x.shape)

    def value(b, y, xx, ch):
        inside = tirx.all(y >= top, y < h + top, xx >= left, xx < w + left)
        return tirx.if_then_else(inside, x[b, y - top, xx - left, ch], tirx.const(zero, x.dtype))

    return te.compute((n, h + top + bottom, w + left + right, c), value, name=f"{name}_pad")


def requantize(acc, bias, shift: int):
    total = (acc + bias).astype("int64") * tirx.const(1431655765, "int64")
    value = ((total + tirx.const(1 << (31 + shift), "int64")) >> tirx.const(32 + shift, "int64")).astype("int32") - 5
    return tirx.max(tirx.min(value, 127), -128).astype("int8")


def conv(x, w, b, stride, pads, dilation, zero=3):
    p = pad_stage(x, pads, zero, "conv")
    kh, kw, ci, co = (int(d) for d in w.shape)
    n, h, wd, _ = (int(d) for d in p.shape)
    oh, ow = (h - (kh - 1) * dilation[0] - 1) // stride[0] + 1, (wd - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    ry, rx, rc = te.reduce_axis((0, kh)), te.reduce_axis((0, kw)), te.reduce_axis((0, ci))
    acc = te.compute(
        (n, oh, ow, co),
        lambda b_, y, xx, f: te.sum(
            (p[b_, y * stride[0] + ry * dilation[0], xx * stride[1] + rx * dilation[1], rc].astype("int32") - zero)
            * w[ry, rx, rc, f].astype("int32"),
            axis=[ry, rx, rc],
        ),
        name="conv_acc",
    )
    return te.compute(acc.shape, lambda b_, y, xx, f: requantize(acc[b_, y, xx, f], b[f], 9), name="conv")


def depthwise(x, w, b, stride, pads, zero=-5):
    p = pad_stage(x, pads, zero, "dw")
    kh, kw, c, m = (int(d) for d in w.shape)
    n, h, wd, _ = (int(d) for d in p.shape)
    ry, rx = te.reduce_axis((0, kh)), te.reduce_axis((0, kw))
    acc = te.compute(
        (n, (h - kh) // stride + 1, (wd - kw) // stride + 1, c * m),
        lambda b_, y, xx, f: te.sum(
            (p[b_, y * stride + ry, xx * stride + rx, tirx.floordiv(f, m)].astype("int32") - zero)
            * w[ry, rx, tirx.floordiv(f, m), tirx.floormod(f, m)].astype("int32"),
            axis=[ry, rx],
        ),
        name="dw_acc",
    )
    return te.compute(acc.shape, lambda b_, y, xx, f: requantize(acc[b_, y, xx, f], b[f], 7), name="dw")


def average(x, kernel, stride, pads):
    n, h, w, c = (int(d) for d in x.shape)
    ry, rx = te.reduce_axis((0, kernel)), te.reduce_axis((0, kernel))
    p = pad_stage(x, pads, 0, "avg")
    oh, ow = (int(p.shape[1]) - kernel) // stride + 1, (int(p.shape[2]) - kernel) // stride + 1
    acc = te.compute(
        (n, oh, ow, c),
        lambda b, y, xx, ch: te.sum(p[b, y * stride + ry, xx * stride + rx, ch].astype("int32"), axis=[ry, rx]),
        name="avg_acc",
    )

    def value(b, y, xx, ch):
        rows = tirx.min(y * stride - pads[0] + kernel, h) - tirx.max(y * stride - pads[0], 0)
        columns = tirx.min(xx * stride - pads[1] + kernel, w) - tirx.max(xx * stride - pads[1], 0)
        return tirx.truncdiv(acc[b, y, xx, ch], rows * columns).astype("int8")

    return te.compute(acc.shape, value, name="avg")


def dense(x, w, b):
    k = te.reduce_axis((0, int(x.shape[1])))
    acc = te.compute(
        (int(x.shape[0]), int(w.shape[0])),
        lambda i, o: te.sum(x[i, k].astype("int32") * w[o, k].astype("int32"), axis=k),
        name="dense_acc",
    )
    return te.compute(acc.shape, lambda i, o: requantize(acc[i, o], b[o], 9), name="dense")


def stencil(h: int, w: int) -> tirx.PrimFunc:
    """A 5x2 maximum of differences with stride 3 along rows, its padding written by hand."""
    x = act(1, h, w, 3)
    ry, rx = te.reduce_axis((0, 5)), te.reduce_axis((0, 2))

    def value(n, y, xx, c):
        inside = tirx.all(y * 3 + ry >= 2, y * 3 + ry < h + 2)
        return te.max(tirx.if_then_else(inside, x[n, y * 3 + ry - 2, xx + rx, c], tirx.const(-128, "int8")), [ry, rx])

    return prim_func(x, te.compute((1, (h - 1) // 3 + 1, w - 1, 3), value, name="stencil"))


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    limit = 2000 if dtype == "int32" else 100
    low = 0 if dtype.startswith("u") else -limit
    return rng.integers(low, limit, shape).astype(dtype)


def run_plain(func: tirx.PrimFunc, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    lib = quick_build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    made = [tvm.runtime.tensor(o) for o in outputs]
    lib["main"](*(tvm.runtime.tensor(a) for a in arrays), *made)
    for o, m in zip(outputs, made, strict=True):
        o[...] = m.numpy()


def analyse(
    func: tirx.PrimFunc, activations: int, input_axes: Sequence[int | None], output_axes: Sequence[int | None]
) -> RowAccess:
    pattern = AccessPattern(func, activations)
    windows, reason = row_windows(pattern, output_axes, input_axes)
    across = [[None if a is None else a + 1 for a in axes] for axes in (output_axes, input_axes)]
    columns, _ = row_windows(pattern, *across)
    return RowAccess(windows, tuple(input_axes), tuple(output_axes), reason, columns)


def check(
    func: tirx.PrimFunc,
    activations: int = 1,
    axis: int | None = 1,
    out_axis: int | None = 1,
    whole: bool = False,
    seed: int = 0,
    spares: Sequence[int] = (0, 1, 1000),
) -> RowKernel:
    rng = np.random.default_rng(seed)
    written = len([p for p in func.params if p in AccessPattern(func, activations).outputs])
    kinds = [(tuple(int(d) for d in p.ty.shape), str(getattr(p.ty.dtype, "dtype", p.ty.dtype))) for p in func.params]
    arrays = [random_array(rng, s, d) for s, d in kinds[:-written]]
    inputs, constants = arrays[:activations], arrays[activations:]
    input_axes = [axis if x.ndim == inputs[0].ndim else None for x in inputs]
    access = analyse(func, activations, input_axes, [out_axis] * written)
    kernel = row_kernel(func, constants, access, "kernel")
    assert kernel.whole == whole, kernel.reason
    expected = [np.zeros(s, d) for s, d in kinds[-written:]]
    run_plain(func, arrays, expected)
    for spare in spares[:1] if whole else spares:
        got = [np.full(s, GARBAGE, d) for s, d in kinds[-written:]]
        run_rows(kernel, access, inputs, got, spare)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g, e)
    if not whole:
        check_pixels(func, access, inputs, constants, expected)
    return kernel


def check_pixels(func, access: RowAccess, inputs, constants, expected: Sequence[np.ndarray]) -> None:
    """Pixel kernels too, by parts of rows where the output has contiguous pixels; else whole rows from pixel rings."""
    if any(np.prod(e.shape[:a]) != 1 for e, a in zip(expected, access.output_axes, strict=True)):
        access = replace(access, columns=(None,) * len(access.columns))
    kernel = pixel_kernel(func, constants, access)
    assert isinstance(kernel, RowKernel), kernel
    for chunk, spare in ((1, 0), (3, 1), (1000, 0), (2, 1000)):
        got = [np.full(e.shape, GARBAGE, e.dtype) for e in expected]
        run_pixels(kernel, access, inputs, got, chunk, spare)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g, e)


CONVOLUTIONS = [
    # h, w, ci, co, kh, kw, stride, pads (t, l, b, r), dilation
    (9, 7, 3, 5, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1)),
    (10, 5, 2, 4, 3, 3, (2, 2), (0, 0, 1, 1), (1, 1)),
    (8, 9, 3, 4, 5, 1, (1, 1), (4, 0, 4, 0), (2, 1)),
    (1, 1, 4, 6, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1)),
    (2, 6, 4, 3, 7, 7, (1, 1), (3, 3, 3, 3), (1, 1)),
    (6, 1, 4, 3, 1, 1, (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 8, 2, 3, 1, 3, (1, 2), (0, 1, 0, 1), (1, 1)),
    (12, 4, 2, 3, 3, 2, (3, 1), (2, 0, 0, 1), (1, 1)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case) -> None:
    h, w, ci, co, kh, kw, stride, pads, dilation = case
    x, wt, b = act(1, h, w, ci), act(kh, kw, ci, co, name="w"), act(co, dtype="int32", name="b")
    kernel = check(prim_func(x, wt, b, conv(x, wt, b, stride, pads, dilation)))
    assert kernel.scratch_bytes == 0


@pytest.mark.parametrize(("h", "w", "m", "stride", "pads"), [(7, 5, 1, 1, (1, 1, 1, 1)), (8, 6, 3, 2, (0, 0, 1, 1))])
def test_depthwise(h: int, w: int, m: int, stride: int, pads: tuple[int, ...]) -> None:
    x, wt, b = act(1, h, w, 4), act(3, 3, 4, m, name="w"), act(4 * m, dtype="int32", name="b")
    check(prim_func(x, wt, b, depthwise(x, wt, b, stride, pads)))


@pytest.mark.parametrize("h", [1, 5, 10])
def test_pools(h: int) -> None:
    x = act(1, h, 6, 3)
    check(prim_func(x, topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")))
    check(prim_func(x, average(x, 3, 2, (1, 1, 1, 1))))
    check(stencil(h, 6))


def _element_wise() -> dict[str, Callable[[], tuple[tirx.PrimFunc, int]]]:
    x, y, row = act(1, 6, 5, 4), act(1, 6, 5, 4, name="y"), act(1, 1, 1, 4, name="r")
    z, deep = act(1, 3, 5, 4, name="z"), act(1, 6, 5, 2, name="d")
    return {
        "add": lambda: (prim_func(x, y, topi.add(x, y)), 2),
        "broadcast": lambda: (prim_func(x, row, topi.multiply(x, row)), 2),
        "concat C": lambda: (prim_func(x, deep, topi.concatenate((x, deep), 3)), 2),
        "concat H": lambda: (prim_func(x, z, topi.concatenate((x, z), 1)), 2),
        "pad": lambda: (prim_func(x, topi.nn.pad(x, (0, 1, 2, 0), (0, 2, 1, 0), 5)), 1),
        "slice": lambda: (prim_func(x, topi.strided_slice(x, (0, 1, 0, 0), (1, 6, 5, 4), (1, 2, 1, 1))), 1),
        "mean": lambda: (prim_func(x, topi.sum(topi.cast(x, "int32"), (1, 2), True)), 1),
        "transpose H W": lambda: (prim_func(x, topi.transpose(x, (0, 2, 1, 3))), 1),
        "nearest": lambda: (prim_func(x, te.compute((1, 12, 10, 4), lambda n, a, b, c: x[n, a // 2, b // 2, c])), 1),
        "reshape": lambda: (prim_func(x, topi.reshape(x, (1, 5, 6, 4))), 1),
        "split": lambda: (prim_func(x, *topi.split(x, 2, 3)), 1),
    }


@pytest.mark.parametrize("kind", list(_element_wise()))
def test_data_movement(kind: str) -> None:
    func, activations = _element_wise()[kind]()
    kernel = check(func, activations)
    assert kernel.scratch_bytes == 0


def test_conditions_split_loops() -> None:
    """Concatenations and pads test nothing for single elements."""
    x, deep, wide = act(1, 6, 5, 4), act(1, 6, 5, 2, name="d"), act(1, 6, 5, 7, name="w")
    joined = check(prim_func(x, deep, wide, topi.concatenate((x, deep, wide), 3)), 3)
    padded = check(prim_func(x, topi.nn.pad(x, (0, 0, 2, 0), (0, 0, 1, 0), 5)))
    for kernel in (joined, padded):
        assert not [c for c in collect(kernel.func.body, ir.Call) if is_if_then_else(c)]
    rows = check(prim_func(x, topi.nn.pad(x, (0, 1, 0, 1), (0, 2, 0, 2), 5)))
    assert all("y" in str(c.args[0]) for c in collect(rows.func.body, ir.Call) if is_if_then_else(c))


def test_triangular_padding() -> None:
    """A condition over both reduction loops: the bounds of the inner one depend on the outer one, which has its own."""
    x = act(1, 7, 6, 3)
    ry, rx = te.reduce_axis((0, 4)), te.reduce_axis((0, 3))

    def value(n, y, xx, c):
        inside = tirx.all(y + ry >= 2, y + ry < 9, ry + rx >= 2, xx + rx < 6)
        tap = tirx.if_then_else(inside, x[n, y + ry - 2, xx + rx, c].astype("int32"), 0)
        return te.sum(tap, [ry, rx])

    check(prim_func(x, te.compute((1, 6, 6, 3), value, name="triangle")))


def random_case(seed: int) -> tirx.PrimFunc:
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    kh, kw, dilation = draw(1, 5), draw(1, 5), draw(1, 3)
    pads = (draw(0, 4), draw(0, 4), draw(0, 4), draw(0, 4))
    h = draw(1, 12) + max(0, (kh - 1) * dilation - pads[0] - pads[2])
    w = draw(1, 9) + max(0, (kw - 1) * dilation - pads[1] - pads[3])
    stride = (draw(1, 4), draw(1, 4))
    ci, co = draw(1, 5), draw(1, 6)
    x = act(1, h, w, ci)
    if seed % 3 == 0:
        wt, b = act(kh, kw, ci, 2, name="w"), act(2 * ci, dtype="int32", name="b")
        tall = act(1, h + kh, w + kw, ci)
        return prim_func(tall, wt, b, depthwise(tall, wt, b, stride[0], pads))
    wt, b = act(kh, kw, ci, co, name="w"), act(co, dtype="int32", name="b")
    return prim_func(x, wt, b, conv(x, wt, b, stride, pads, (dilation, dilation), zero=draw(-9, 9)))


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed: int) -> None:
    check(random_case(seed), seed=seed, spares=(0, 2))


def test_whole_operators() -> None:
    x, wt, b = act(2, 12), act(5, 12, name="w"), act(5, dtype="int32", name="b")
    assert check(prim_func(x, wt, b, dense(x, wt, b)), axis=None, out_axis=None, whole=True).scratch_bytes == 0
    f = act(1, 6, 5, 4, dtype="float32")
    kernel = check(prim_func(f, topi.flip(f, 1)), whole=True)
    assert kernel.reason == "x: rows are not read in ascending order"


def test_float_operators() -> None:
    x, wt = act(1, 7, 6, 4, dtype="float32"), act(3, 3, 4, 5, dtype="float32", name="w")
    check(te.create_prim_func([x, wt, topi.nn.conv2d_nhwc(x, wt, (2, 1), (1, 1, 1, 1), (1, 1))]))
    softmax = check(te.create_prim_func([x, topi.nn.softmax(x, -1)]))
    assert softmax.scratch_bytes == 0
    big = act(1, 4, 3, 20, dtype="float32")
    assert check(te.create_prim_func([big, topi.nn.softmax(big, -1)])).scratch_bytes == 80
    down = check(te.create_prim_func([x, topi.nn.softmax(x, 1)]), whole=True)
    assert down.scratch_bytes > 0
    resized = topi.image.resize2d(x, [0.0] * 4, (14, 12), "NHWC", "linear", "half_pixel")
    check(te.create_prim_func([x, resized]))


def test_planes() -> None:
    """NCHW: rows of all planes, in rings of rows and in whole tensors."""
    x, wt = act(1, 4, 7, 6, dtype="float32"), act(5, 4, 3, 3, dtype="float32", name="w")
    func = te.create_prim_func([x, wt, topi.nn.conv2d_nchw(x, wt, (2, 2), (1, 1, 1, 1), (1, 1))])
    kernel = check(func, axis=2, out_axis=2)
    assert [p.role for p in kernel.params if p.role in (Role.PLANE, Role.OUTPUT_PLANE)] == [
        Role.PLANE,
        Role.OUTPUT_PLANE,
    ]
    check(prim_func(x, topi.transpose(x, (0, 2, 3, 1))), axis=2, out_axis=1)
    batch = act(3, 5, 4, 2)
    check(
        prim_func(batch, topi.nn.pool2d(batch, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")),
    )


def test_rows_that_cannot_be_parted() -> None:
    """A softmax along the row: no part of a row can be made, but whole rows out of and into pixel rings can."""
    x = act(1, 4, 6, 3, dtype="float32")
    func = te.create_prim_func([x, topi.nn.softmax(x, 2)])
    access = analyse(func, 1, [1], [1])
    assert pixel_kernel(func, [], access) == (
        "T_softmax_expsum cannot be computed pixel by pixel without computing parts of it twice"
    )
    data = np.random.default_rng(0).standard_normal((1, 4, 6, 3)).astype("float32")
    expected = np.zeros_like(data)
    run_plain(func, [data], [expected])
    check_pixels(func, replace(access, columns=(None,)), [data], [], [expected])
