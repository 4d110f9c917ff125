"""Windows from access patterns, on every operator kind and on patterns that no operator has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tvm import te, tirx, topi

from tvm_cascade.graph import IDENTITY, Window
from tvm_cascade.passes.intervals import Strided, clip, compile_index, hull
from tvm_cascade.passes.windows import AccessPattern, fit_window, row_windows


def act(*shape: int, dtype: str = "int8", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def prim_func(*tensors: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func(list(tensors), index_dtype_override="int32")


def windows(func, inputs: int = 1, out_axis: int | None = 1, axes: Sequence[int | None] | int = 1, tables=None):
    pattern = AccessPattern(func, inputs, tables)
    input_axes = [axes] * inputs if isinstance(axes, int) else axes
    return row_windows(pattern, [out_axis] * len(pattern.outputs), input_axes)


X = act(1, 17, 23, 8)
F = act(1, 17, 23, 8, dtype="float32")


def test_convolution_rows_and_columns() -> None:
    w = act(3, 5, 8, 4, name="w")
    func = prim_func(X, w, topi.nn.conv2d_nhwc(X, w, (2, 1), (2, 3, 2, 3), (2, 1), "int32"))
    assert windows(func) == ((Window(3, stride=2, dilation=2, padding=2),), None)
    assert windows(func, 1, 2, 2) == ((Window(5, stride=1, padding=3),), None)


def test_padding_inlined_and_index_types() -> None:
    """The pad as a stage, inlined by hand, and with 64-bit indices: the same window."""
    w = act(3, 3, 8, 4, name="w")
    staged = topi.nn.conv2d_nhwc(X, w, (1, 1), (1, 1, 1, 1), (1, 1), "int32")
    ry, rx, rc = te.reduce_axis((0, 3)), te.reduce_axis((0, 3)), te.reduce_axis((0, 8))

    def tap(n, y, x, f):
        inside = tirx.all(y + ry >= 1, y + ry < 18, x + rx >= 1, x + rx < 24)
        value = tirx.if_then_else(inside, X[n, y + ry - 1, x + rx - 1, rc], tirx.const(0, "int8"))
        return te.sum(value.astype("int32") * w[ry, rx, rc, f].astype("int32"), [ry, rx, rc])

    inlined = te.compute((1, 17, 23, 4), tap)
    expected = ((Window(3, padding=1),), None)
    assert windows(prim_func(X, w, staged)) == expected
    assert windows(prim_func(X, w, inlined)) == expected
    assert windows(te.create_prim_func([X, w, staged])) == expected


def test_depthwise_and_pools() -> None:
    w = act(3, 3, 8, 1, name="w")
    func = prim_func(X, w, topi.nn.depthwise_conv2d_nhwc(X, w, (2, 2), (0, 0, 1, 1), (1, 1), "int32"))
    assert windows(func)[0] == (Window(3, stride=2),)
    for kind, x in (("max", X), ("avg", F)):
        pool = topi.nn.pool2d(x, (3, 2), (2, 2), (1, 1), (1, 0, 1, 0), kind, layout="NHWC", count_include_pad=False)
        assert windows(prim_func(x, pool))[0] == (Window(3, stride=2, padding=1),)
        assert windows(prim_func(x, pool), 1, 2, 2)[0] == (Window(2, stride=2),)


def test_hand_written_stencil() -> None:
    ry, rx = te.reduce_axis((0, 5)), te.reduce_axis((0, 2))

    def value(n, y, x, c):
        inside = tirx.all(y * 3 + ry >= 2, y * 3 + ry < 19)
        return te.max(tirx.if_then_else(inside, X[n, y * 3 + ry - 2, x + rx, c], tirx.const(-128, "int8")), [ry, rx])

    func = prim_func(X, te.compute((1, 6, 22, 8), value, name="stencil"))
    assert windows(func)[0] == (Window(5, stride=3, padding=2),)
    assert windows(func, 1, 2, 2)[0] == (Window(2),)


def test_element_wise_and_broadcast() -> None:
    y, row, scalar = act(1, 17, 23, 8, name="y"), act(1, 1, 1, 8, name="r"), act(8, name="s")
    assert windows(prim_func(X, y, topi.add(X, y)), 2)[0] == (IDENTITY, IDENTITY)
    assert windows(prim_func(X, row, topi.add(X, row)), 2)[0] == (IDENTITY, Window.whole(1))
    assert windows(prim_func(X, scalar, topi.add(X, scalar)), 2, 1, (1, None))[0] == (IDENTITY, Window.whole(1))


def test_one_row_moves_with_the_output() -> None:
    """Nothing tells by how much the window of a map of one row would move on; a mean over the row reads all of its columns."""
    signal = act(1, 1, 23, 8, name="x")
    pooled = topi.nn.pool2d(signal, [1, 3], [1, 2], [1, 1], [0, 1, 0, 1], "max", layout="NHWC")
    assert windows(prim_func(signal, pooled))[0] == (IDENTITY,)
    mean = prim_func(signal, topi.sum(topi.cast(signal, "int32"), (1, 2), True))
    assert windows(mean)[0] == (IDENTITY,) and windows(mean, 1, 2, 2)[0] == (Window.whole(23),)


def test_concatenation() -> None:
    deep, tall = act(1, 17, 23, 4, name="y"), act(1, 5, 23, 8, name="z")
    assert windows(prim_func(X, deep, topi.concatenate((X, deep), 3)), 2)[0] == (IDENTITY, IDENTITY)
    below = windows(prim_func(X, tall, topi.concatenate((X, tall), 1)), 2)[0]
    assert below == (IDENTITY, Window(1, padding=17))
    assert below[1].rows(16, 5) == range(0, 0)
    assert below[1].rows(18, 5) == range(1, 2)


def test_pad_and_slice() -> None:
    assert windows(prim_func(X, topi.nn.pad(X, (0, 2, 1, 0), (0, 1, 0, 0), 0)))[0] == (Window(1, padding=2),)
    func = prim_func(X, topi.strided_slice(X, (0, 3, 0, 0), (1, 17, 23, 8), (1, 2, 1, 1)))
    assert windows(func)[0] == (Window(1, stride=2, padding=-3),)


def test_whole_windows() -> None:
    assert windows(prim_func(X, topi.sum(topi.cast(X, "int32"), (1, 2), True)))[0] == (Window.whole(17),)
    assert windows(prim_func(F, topi.nn.softmax(F, 1)))[0] == (Window.whole(17),)
    assert windows(prim_func(X, topi.reshape(X, (1, 17 * 23 * 8))), 1, None)[0] == (Window.whole(17),)
    assert windows(prim_func(X, topi.transpose(X, (0, 2, 1, 3))))[0] == (Window.whole(17),)


def test_softmax_along_channels() -> None:
    assert windows(prim_func(F, topi.nn.softmax(F, -1)))[0] == (IDENTITY,)


def test_layout_transposes_keep_rows() -> None:
    assert windows(prim_func(X, topi.transpose(X, (0, 3, 1, 2))), 1, 2, 1)[0] == (IDENTITY,)
    planes = act(1, 8, 17, 23)
    assert windows(prim_func(planes, topi.transpose(planes, (0, 2, 3, 1))), 1, 1, 2)[0] == (IDENTITY,)


@pytest.mark.parametrize(("size", "denominator"), [((34, 46), 2), ((51, 23), 3)])
def test_nearest_resize(size: tuple[int, int], denominator: int) -> None:
    resized = topi.image.resize2d(X, [0.0] * 4, size, "NHWC", "nearest_neighbor", "asymmetric", "floor")
    assert windows(prim_func(X, resized))[0] == (Window(1, denominator=denominator),)


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("rounding", ["floor", "round"])
@pytest.mark.parametrize("rows", [9, 34, 40])
def test_resizes_cover_what_is_read(mode: str, rounding: str, rows: int) -> None:
    """Any resize, against the rows its reference formula names."""
    resized = topi.image.resize2d(X, [0.0] * 4, (rows, 23), "NHWC", "nearest_neighbor", mode, rounding)
    (window,), reason = windows(prim_func(X, resized))
    assert reason is None and window is not None
    assert window.extent <= 3
    scale = 16 / (rows - 1) if mode == "align_corners" else 17 / rows
    for y in range(rows):
        at = (y + 0.5) * scale - 0.5 if mode == "half_pixel" else y * scale
        near = int(np.floor(at + 1e-5) if rounding == "floor" else np.floor(at + 0.5))
        assert min(max(near, 0), 16) in window.rows(y, 17)


def test_bilinear_resize() -> None:
    resized = topi.image.resize2d(F, [0.0] * 4, (34, 46), "NHWC", "linear", "half_pixel")
    assert windows(prim_func(F, resized))[0] == (Window(3, padding=1, denominator=2),)


def test_indices_from_a_table() -> None:
    table = act(6, dtype="int32", name="t")
    out = te.compute((1, 6, 23, 8), lambda n, y, x, c: X[n, table[y], x, c])
    func = prim_func(X, table, out)
    assert windows(func) == ((None,), "x: an index is read from a tensor")
    looked_up = {func.params[1]: np.array([1, 4, 7, 10, 13, 16], "int32")}
    assert windows(func, tables=looked_up)[0] == (Window(1, stride=3, padding=-1),)


def test_reasons() -> None:
    assert windows(prim_func(X, topi.flip(X, 1))) == ((None,), "x: rows are not read in ascending order")
    parts = prim_func(X, *topi.split(X, [5], 1))
    assert windows(parts) == ((None,), "outputs with different numbers of rows")


def test_several_outputs() -> None:
    assert windows(prim_func(X, *topi.split(X, 2, 3)))[0] == (IDENTITY,)


def test_small_tensors_keep_their_natural_window() -> None:
    """Two rows under a padded 3x3: all rows are read every time, and yet the window slides."""
    x, w = act(1, 2, 5, 4), act(3, 3, 4, 4, name="w")
    func = prim_func(x, w, topi.nn.conv2d_nhwc(x, w, (1, 1), (1, 1, 1, 1), (1, 1), "int32"))
    assert windows(func)[0] == (Window(3, padding=1),)


def test_random_windows_are_recovered() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        made = Window(*(int(rng.integers(lo, hi)) for lo, hi in ((1, 6), (1, 5), (1, 4), (-3, 5))))
        made = made if made.extent > 1 else Window(1, made.stride, 1, made.padding)
        first = [made.first(y) for y in range(int(rng.integers(2, 12)))]
        taps = [Strided(r, r + made.span - 1, made.dilation if made.extent > 1 else 0) for r in first]
        assert fit_window(taps, 1000) == made


def test_random_covers_hold_every_row() -> None:
    """Clamped, upsampled and jagged rows: the fit covers all of them."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        rows, out = int(rng.integers(2, 30)), int(rng.integers(2, 60))
        lows = np.sort(rng.integers(0, rows, out))
        highs = np.maximum.accumulate(np.minimum(lows + rng.integers(0, 3, out), rows - 1))
        taps = [Strided(int(a), int(b), 1 if b > a else 0) for a, b in zip(lows, highs, strict=True)]
        window = fit_window(taps, rows)
        assert isinstance(window, Window)
        for y, t in enumerate(taps):
            assert t.lo in window.rows(y, rows) and t.hi in window.rows(y, rows)


def test_intervals_hold_every_value() -> None:
    """Random index expressions against all values of their variables."""
    rng = np.random.default_rng(5)
    a, b = tirx.Var("a", "int32"), tirx.Var("b", "int32")
    ranges = (Strided(0, 12, 3), Strided(2, 5, 1))
    values = [(i, j) for i in range(0, 13, 3) for j in range(2, 6)]
    makers = {
        "+": lambda p, q, k: p + q,
        "-": lambda p, q, k: p - q,
        "*": lambda p, q, k: p * k,
        "//": lambda p, q, k: tirx.floordiv(p, k),
        "%": lambda p, q, k: tirx.floormod(p, k),
        "min": lambda p, q, k: tirx.min(p, q),
        "max": lambda p, q, k: tirx.max(p, q),
        "select": lambda p, q, k: tirx.Select(q > k, p, q),
    }
    from tvm_cascade.schedules.tir.macs import evaluate

    for _ in range(300):
        pool = [a, b, tirx.const(int(rng.integers(-4, 5)), "int32")]
        for _ in range(int(rng.integers(1, 4))):
            maker = makers[str(rng.choice(list(makers)))]
            p, q = (pool[int(i)] for i in rng.integers(0, len(pool), 2))
            pool.append(maker(p, q, int(rng.integers(1, 5))))
        held = compile_index(pool[-1], {a: 0, b: 1}, {})(ranges)
        real = {int(evaluate(pool[-1], {a: np.int64(i), b: np.int64(j)})) for i, j in values}
        members = {held.lo} if held.step == 0 else set(range(held.lo, held.hi + 1, held.step))
        assert real <= members, pool[-1]


def test_hull_and_clip() -> None:
    assert hull(Strided(0, 4, 2), Strided(7, 7, 0)) == Strided(0, 7, 1)
    assert hull(Strided(0, 4, 2), Strided(6, 6, 0)) == Strided(0, 6, 2)
    assert clip(Strided(-3, 9, 3), 8) == Strided(0, 6, 3)
    assert clip(Strided(-3, 3, 3), 2) == Strided(0, 0, 0)


def test_endless_maps_are_not_read_row_by_row() -> None:
    x = act(1, 131_136, 1, 1)
    found, reason = windows(prim_func(x, topi.abs(x)))
    assert found == (None,) and reason is not None and "more than" in reason


def test_rows_between_are_interpolated_only_where_they_lie_on_a_line() -> None:
    """Three rows are asked of an affine operator; every row where one is cut off, folded back or looked up."""
    x = te.placeholder((1, 40, 3, 2), "int8", name="x")
    cases = {
        3: lambda n, y, c, k: x[n, y + 20, c, k],
        19: lambda n, y, c, k: x[n, te.min(y, 7), c, k],
        18: lambda n, y, c, k: x[n, y // 2, c, k],
    }
    for asked, read in cases.items():
        func = te.create_prim_func([x, te.compute((1, max(asked, 18), 3, 2), read)], index_dtype_override="int32")
        pattern, rows = AccessPattern(func, 1), []
        demand = pattern.demand
        pattern.demand = lambda *given, demand=demand, rows=rows: rows.append(given) or demand(*given)  # type: ignore
        found = row_windows(pattern, (1,), (1,))
        assert len(rows) == asked
        pattern.affine = False
        assert row_windows(pattern, (1,), (1,)) == found
