"""`stripe` and `rolling_buffer`: the example of their documentation is golden text, and random chains stay as they were."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm

from tvm_cascade.errors import CascadeError, UsageError
from tvm_cascade.schedules import buffer_bytes, rolling_buffer, stripe
from tvm_cascade.schedules.primitives import striping
from tvm_cascade.schedules.primitives.striping import StripeError
from tvm_cascade.schedules.tir import PrimFunc, collect, ir, replace, s_tir, shape_of, te, tirx
from tvm_cascade.testing.quick_build import quick_build

Stage = Any


def two_extremes() -> PrimFunc:
    """The documentation's example."""
    a = te.placeholder((12, 8), "int8", "a")
    r, q = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "r")
    low: Any = te.compute((10, 8), lambda y, x: te.min(a[y + r, x], axis=r), name="low")
    high = te.compute((8, 8), lambda y, x: te.max(low[y + q, x], axis=q), name="high")
    return te.create_prim_func([a, high])


def shown(func: PrimFunc) -> str:
    """TVMScript below the signature, without indentation."""
    text = func.script().split('sblock("root"):\n')[1]
    return textwrap.dedent(text).strip()


def test_the_example_of_the_documentation(golden: Callable[[str, str], None]) -> None:
    """In full what the docstrings of `stripe` and `rolling_buffer` show in short."""
    func = two_extremes()
    striped = stripe(func, 2, axes=(0, 1))
    golden("primitives/before.txt", shown(func) + "\n")
    golden("primitives/striped.txt", shown(striped) + "\n")
    golden("primitives/rolled.txt", shown(rolling_buffer(striped, "low")) + "\n")
    tvm.ir.assert_structural_equal(func, two_extremes())  # left as it was


def test_schedules_are_striped_like_functions_and_scheduled_further() -> None:
    sch: Any = s_tir.Schedule(two_extremes())
    rolled: Any = rolling_buffer(stripe(sch, 2, axes=(0, 1)))
    tvm.ir.assert_structural_equal(rolled.mod["main"], rolling_buffer(stripe(two_extremes(), 2, axes=(0, 1))))
    low, high = rolled.get_sblock("low"), rolled.get_sblock("high")
    for block in (low, high):
        *_, x, r = rolled.get_loops(block)
        rolled.reorder(r, x)
        rolled.vectorize(x)
        rolled.decompose_reduction(block, r)
    a = np.random.default_rng(0).integers(-128, 128, (12, 8)).astype("int8")
    np.testing.assert_array_equal(run(rolled.mod["main"], [a]), run(two_extremes(), [a]))


# Random chains of windowed stages over int32 [rows][columns].


def window(x: Stage, rng: np.random.Generator, name: str) -> Stage:
    """A weighted sum over a window with stride, dilation and padding (a stage of its own), then an offset."""
    height, width = (int(d) for d in x.shape)
    kernel = [int(k) for k in rng.integers(1, 4, 2)]
    stride, dilation = [int(s) for s in rng.integers(1, 3, 2)], [int(d) for d in rng.integers(1, 3, 2)]
    pads = [int(rng.integers(0, (k - 1) * d + 1)) for k, d in zip(kernel, dilation, strict=True)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    high, wide = height + 2 * pads[0], width + 2 * pads[1]
    if high < spans[0] or wide < spans[1]:
        return x
    shape = [(n - s) // t + 1 for n, s, t in zip((high, wide), spans, stride, strict=True)]

    def padded(y: Any, q: Any) -> Any:
        inside = tirx.all(y >= pads[0], y < height + pads[0], q >= pads[1], q < width + pads[1])
        return tirx.if_then_else(inside, x[y - pads[0], q - pads[1]], 0)

    source: Any = te.compute((high, wide), padded, name=f"{name}_pad") if any(pads) else x
    r, s = te.reduce_axis((0, kernel[0]), "r"), te.reduce_axis((0, kernel[1]), "s")

    def total(y: Any, q: Any) -> Any:
        value = source[y * stride[0] + r * dilation[0], q * stride[1] + s * dilation[1]]
        return te.sum(value * (r * 3 + s + 1), axis=[r, s])

    acc: Any = te.compute(shape, total, name=f"{name}_acc")
    return te.compute(shape, lambda y, q: (acc[y, q] >> 2) + 1, name=name)


def grown(x: Stage, name: str) -> Stage:
    height, width = (int(d) for d in x.shape)
    return te.compute((height * 2, width), lambda y, q: x[y // 2, q] * 3, name=name)


def residual(x: Stage, rng: np.random.Generator, name: str) -> Stage:
    """`x` and a 3x3 sum of it, added."""
    height, width = (int(d) for d in x.shape)
    pad: Any = te.compute(
        (height + 2, width + 2),
        lambda y, q: tirx.if_then_else(
            tirx.all(y >= 1, y <= height, q >= 1, q <= width), x[y - 1, q - 1], int(rng.integers(0, 9))
        ),
        name=f"{name}_pad",
    )
    r, s = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "s")
    acc: Any = te.compute((height, width), lambda y, q: te.sum(pad[y + r, q + s], axis=[r, s]), name=f"{name}_acc")
    return te.compute((height, width), lambda y, q: acc[y, q] - x[y, q] * 5, name=name)


def random_chain(seed: int) -> PrimFunc:
    rng = np.random.default_rng(seed)
    a = te.placeholder(tuple(int(d) for d in rng.integers(9, 22, 2)), "int32", "a")
    x: Any = te.compute(a.shape, lambda y, q: a[y, q] * 7 % 101, name="first")
    for k in range(int(rng.integers(2, 5))):
        kind = rng.integers(0, 8)
        x = grown(x, f"s{k}") if kind == 0 else residual(x, rng, f"s{k}") if kind == 1 else window(x, rng, f"s{k}")
    out = te.compute(x.shape, lambda y, q: x[y, q] ^ 5, name="out")
    return te.create_prim_func([a, out], index_dtype_override="int32")


def run(func: PrimFunc, inputs: list[np.ndarray], extra: tuple[np.ndarray, ...] = ()) -> np.ndarray:
    out = func.params[len(inputs)]
    result = tvm.runtime.tensor(np.full(shape_of(out), -1, str(getattr(out.ty.dtype, "dtype", out.ty.dtype))))
    more = [tvm.runtime.tensor(e) for e in extra]
    quick_build(func)(*[tvm.runtime.tensor(i) for i in inputs], result, *more)
    for into, tensor in zip(extra, more, strict=True):
        into[:] = tensor.numpy()
    return result.numpy()


def counted(func: PrimFunc) -> tuple[PrimFunc, dict[str, tuple[int, int]]]:
    """`func` with a last parameter that counts, for every block, how often each of its rows is stored."""
    blocks = [r.block for r in collect(func.body, s_tir.SBlockRealize) if r.block.name_hint.count("_row") == 0]
    places: dict[str, tuple[int, int]] = {}
    total = 0
    for block in blocks:
        if block.iter_vars:
            places[block.name_hint] = (total, int(block.iter_vars[0].dom.extent))
            total += places[block.name_hint][1]
    hits = tirx.decl_buffer((total,), "int32", "hits")
    region = tirx.BufferRegion(hits, [ir.Range(0, total)])

    def change(block: Any) -> Any:
        body = block.body
        if block.name_hint in places:
            at = block.iter_vars[0].var + places[block.name_hint][0]
            body = tirx.SeqStmt([body, tirx.BufferStore(hits, hits[at] + 1, [at])])
        fields = (block.iter_vars, [*block.reads, region], [*block.writes, region], block.name_hint, body, block.init)
        return s_tir.SBlock(*fields, block.alloc_buffers, block.match_buffers, block.annotations)

    body = replace(func.body, s_tir.SBlock, change)
    return tirx.PrimFunc([*func.params, hits], body, func.ret_type, attrs=func.attrs), places


def rows_of(func: PrimFunc, a: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    made, places = counted(func)
    hits = np.zeros(sum(n for _, n in places.values()), "int32")
    out = run(made, [a], (hits,))
    return out, {name: hits[at : at + n] for name, (at, n) in places.items()}


@pytest.mark.parametrize("seed", range(16))
def test_random_chains_stay_as_they_were(seed: int) -> None:
    func = random_chain(seed)
    rng = np.random.default_rng(seed)
    a = rng.integers(-100, 100, shape_of(func.params[0])).astype("int32")
    want = run(func, [a])
    rows, columns = shape_of(func.params[-1])
    grows = func.script().count("// 2")
    height = int(rng.integers(1, max(rows // 3, 2))) * 2**grows
    width = int(rng.integers(1, columns + 1)) if seed % 3 == 0 else None
    try:
        striped = stripe(func, min(height, rows // 2**grows * 2**grows) or rows, width, axes=(0, 1))
    except StripeError as why:
        assert "different rates" in str(why) or "multiples" in str(why)
        return
    rolled = rolling_buffer(striped)
    np.testing.assert_array_equal(run(striped, [a]), want)
    out, hits = rows_of(rolled, a)
    np.testing.assert_array_equal(out, want)
    if width is None:
        once = rows_of(func, a)[1]
        assert all(set(h[h > 0]) <= set(once[name]) for name, h in hits.items()), "a row was computed twice"
    plain, ring, cut = (buffer_bytes(f) for f in (func, rolled, striped))
    assert all(ring[name] <= cut[name] <= plain[name] for name in ring)


def test_a_ring_of_one_row_less_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_cascade.schedules.primitives import rings

    exact, tried = striping.ring_height, 0
    monkeypatch.setattr(rings, "ring_height", lambda *a: max(exact(*a) - 1, 1))
    for seed in range(6):
        func = random_chain(seed)
        if "// 2" in func.script():
            continue
        a = np.random.default_rng(seed).integers(-100, 100, shape_of(func.params[0])).astype("int32")
        smaller = rolling_buffer(stripe(func, 1, axes=(0, 1)))
        if "%" in smaller.script().replace("% 101", ""):
            tried += 1
            assert not np.array_equal(run(smaller, [a]), run(func, [a]))
    assert tried >= 2


def total(x: Stage, name: str) -> Stage:
    """A 3x3 sum without padding."""
    r, s = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "s")
    n = int(x.shape[0]) - 2
    return te.compute((n, n), lambda y, q: te.sum(x[y + r, q + s], axis=[r, s]), name=name)


def test_rings_of_a_chain_of_3x3_hold_three_rows() -> None:
    a = te.placeholder((20, 20), "int32", "a")
    x: Any = a
    for k in range(4):
        x = total(x, f"s{k}")
    rolled = rolling_buffer(stripe(te.create_prim_func([a, x]), axes=(0, 1)))
    assert buffer_bytes(rolled) == {"s0": 3 * 18 * 4, "s1": 3 * 16 * 4, "s2": 3 * 14 * 4}


# What cannot be striped.


def normalized() -> PrimFunc:
    a = te.placeholder((8, 8), "int32", "a")
    first: Any = te.compute((8, 8), lambda y, x: a[y, x] * a[y, x], name="first")
    r, s = te.reduce_axis((0, 8), "r"), te.reduce_axis((0, 8), "s")
    total: Any = te.compute((1,), lambda _: te.sum(first[r, s], axis=[r, s]), name="total")
    return te.create_prim_func([a, te.compute((8, 8), lambda y, x: first[y, x] - total[0], name="out")])


def test_a_block_that_needs_everything_is_left_out_by_name() -> None:
    func = normalized()
    with pytest.raises(StripeError, match=r"block 'out': each of its slices reads the same part of 'total'; leave"):
        stripe(func, 2, axes=(0, 1))
    with pytest.raises(StripeError, match="'total' reads it too and is not striped") as error:
        stripe(func, 2, producers=["first"], axes=(0, 1))
    assert isinstance(error.value, CascadeError) and error.value.block == "first"
    a = np.random.default_rng(0).integers(0, 9, (8, 8)).astype("int32")
    alone = stripe(func, 2, producers=[], axes=(0, 1))
    np.testing.assert_array_equal(run(alone, [a]), run(func, [a]))


def by(index: Callable[[Any, Any], Any]) -> PrimFunc:
    a = te.placeholder((8, 8), "int32", "a")
    first: Any = te.compute((8, 8), lambda y, x: a[y, x] * a[y, x], name="first")
    return te.create_prim_func([a, te.compute((8, 8), lambda y, x: first[index(y, x)] + 1, name="out")])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda: by(lambda y, x: (7 - y, x)), "the slices of 'first' that it reads are not understood"),
        (lambda: by(lambda y, x: (y * y % 8, x)), "are not understood"),
        (lambda: by(lambda y, x: (y, (x + y) % 8)), "along several axes"),
        (lambda: by(lambda _y, x: (3, x)), "reads the same part of 'first'"),
    ],
)
def test_reads_that_have_no_stripes(func: Callable[[], PrimFunc], reason: str) -> None:
    with pytest.raises(StripeError, match=reason):
        stripe(func(), 2, axes=(0, 1))


def test_bad_sizes_and_names() -> None:
    func = two_extremes()
    with pytest.raises(UsageError, match=r"stripes of 9 along axis 0 of \(8, 8\)"):
        stripe(func, 9, axes=(0, 1))
    with pytest.raises(UsageError, match="along axis 5"):
        stripe(func, 2, axes=(5, 1))
    with pytest.raises(UsageError, match="no block 'nowhere' among low, high"):
        stripe(func, 2, block="nowhere", axes=(0, 1))
    with pytest.raises(UsageError, match="no block 'nowhere' among low, high"):
        stripe(func, 2, producers=["nowhere"], axes=(0, 1))
    with pytest.raises(UsageError, match="not a str"):
        stripe("func", 2)
    with pytest.raises(UsageError, match="call stripe first"):
        rolling_buffer(func)
    striped = stripe(func, 2, axes=(0, 1))
    with pytest.raises(UsageError, match="striped already"):
        stripe(striped, 2, axes=(0, 1))
    with pytest.raises(StripeError, match="block 'high': is no striped intermediate; those are: low"):
        rolling_buffer(striped, "high")
    with pytest.raises(UsageError, match="name all of them in one call"):
        rolling_buffer(rolling_buffer(striped), "low")


def test_stripes_that_were_scheduled_further_do_not_roll() -> None:
    sch: Any = stripe(s_tir.Schedule(two_extremes()), 2, axes=(0, 1))
    sch.split(sch.get_loops("low")[1], [2, 2])
    with pytest.raises(StripeError, match="roll first, then schedule"):
        rolling_buffer(sch)
    early: Any = s_tir.Schedule(two_extremes())
    early.split(early.get_loops("low")[0], [2, 5])
    with pytest.raises(StripeError, match="block 'low': it is scheduled already"):
        stripe(early, 2, axes=(0, 1))


def test_upscaling_wants_stripes_of_its_factor() -> None:
    a = te.placeholder((8, 8), "int32", "a")
    first: Any = te.compute((8, 8), lambda y, x: a[y, x] * a[y, x], name="first")
    out = te.compute((16, 8), lambda y, x: first[y // 2, x] + 1, name="out")
    func = te.create_prim_func([a, out])
    with pytest.raises(StripeError, match="stripes must be multiples of 2 slices where it reads 'first'"):
        stripe(func, 3, axes=(0, 1))
    assert buffer_bytes(stripe(func, 4, axes=(0, 1))) == {"first": 2 * 8 * 4}


def test_the_example_of_the_rfc() -> None:
    """Convolution A 3x3 and convolution B 1x1 over 26x26x3: 18,432 bytes between them, 1,152 in sixteen stripes of 6x6."""
    x, w = te.placeholder((1, 26, 26, 3), "int8", "x"), te.placeholder((3, 3, 3, 32), "int8", "w")
    v = te.placeholder((32, 8), "int8", "v")
    r, s, c, d = (te.reduce_axis((0, n), m) for n, m in ((3, "r"), (3, "s"), (3, "c"), (32, "d")))
    wide = "int32"

    def product_a(n: Any, y: Any, q: Any, f: Any) -> Any:
        return te.sum(x[n, y + r, q + s, c].astype(wide) * w[r, s, c, f].astype(wide), axis=[r, s, c])

    acc_a: Any = te.compute((1, 24, 24, 32), product_a, name="a_acc")
    a: Any = te.compute(acc_a.shape, lambda *i: (acc_a[i] >> 9).astype("int8"), name="a")
    acc_b: Any = te.compute(
        (1, 24, 24, 8),
        lambda n, y, q, f: te.sum(a[n, y, q, d].astype(wide) * v[d, f].astype(wide), axis=d),
        name="b_acc",
    )
    b = te.compute(acc_b.shape, lambda *i: (acc_b[i] >> 9).astype("int8"), name="b")
    func = te.create_prim_func([x, w, v, b], index_dtype_override="int32")
    squares, rows = stripe(func, 6, 6), stripe(func, 1)
    assert [buffer_bytes(f)["a"] for f in (func, squares, rows)] == [18_432, 1_152, 768]
    rng = np.random.default_rng(0)
    feed = [rng.integers(-128, 128, shape_of(p)).astype("int8") for p in func.params[:3]]
    want = run(func, feed)
    np.testing.assert_array_equal(run(squares, feed), want)
    np.testing.assert_array_equal(run(rows, feed), want)
    assert prod(want.shape) == 24 * 24 * 8 and want.std() > 1
