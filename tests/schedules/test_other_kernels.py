"""Kernels of pools, means, moves and dense layers: on the host against numpy, in the emulator against generic kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.frontend import load
from tvm_cascade.operators.record import TensorType
from tvm_cascade.passes.integer.dense import round_once
from tvm_cascade.passes.integer.fixed_point import quantize_multiplier
from tvm_cascade.pipeline import prepare
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.kernels.spec import Attributes, OperatorSpec
from tvm_cascade.schedules.rules import moves, pooling
from tvm_cascade.schedules.rules.dense import ROUNDING, plan_single, read_dense
from tvm_cascade.schedules.rules.requantize import reference
from tvm_cascade.schedules.rules.select import first_rule
from tvm_cascade.schedules.tuning.tune import Database
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.c_kernel import CKernel
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

M4 = kernel_target("cortex-m4", "c")
M3 = kernel_target("cortex-m3", "c")


def operator(
    kind: str, inputs: list[tuple[int, ...]], out: tuple[int, ...], dtype: str, constants=(), **attributes
) -> OperatorSpec:
    given = Attributes(**{k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()})
    return OperatorSpec(kind, tuple(TensorType(s, dtype) for s in inputs), TensorType(out, dtype), constants, given)


def run_rows(kernel: RowKernel, folder: Path, xs: list[np.ndarray], out: np.ndarray, first) -> np.ndarray:
    """Every output row from whole inputs; `first(y)` is the first row of the window, or the first one of each input's."""
    library, heights = CKernel(kernel, folder), [len(x) for x in xs]
    for y in range(len(out)):
        begins = np.broadcast_to(first(y), len(xs)).tolist()
        slots = {Role.SLOT: [b % height for b, height in zip(begins, heights, strict=True)], Role.SLOTS: heights}
        library(y, slots | {Role.INPUT: xs, Role.OUTPUT: [out[y]]})
    return out


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "words"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max_pools(core: KernelTarget, dtype: str, tmp_path: Path) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max + 1, (7, 6, 8)).astype(dtype)
    attrs = {"pool_size": [3, 2], "strides": [2, 1], "padding": [1, 1, 1, 0], "clamp": [info.min, info.max - 9]}
    spec = operator("max_pool2d", [(1, 7, 6, 8)], (1, 4, 6, 8), dtype, dilation=[1, 1], **attrs)
    kernel = first_rule(spec, core)
    assert kernel is not None and kernel.rule == f"pooling.{'words' if core.dsp else 'channels'}"
    padded = np.full((9, 7, 8), info.min, np.int64)
    padded[1:8, 1:] = x
    want = np.stack([[padded[2 * y : 2 * y + 3, c : c + 2].max((0, 1)) for c in range(6)] for y in range(4)])
    have = run_rows(kernel, tmp_path, [x], np.zeros((4, 6, 8), dtype), lambda y: 2 * y - 1)
    np.testing.assert_array_equal(have, np.minimum(want, info.max - 9))


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "words"])
@pytest.mark.parametrize("kernel_size", [(2, 2), (5, 3)])
def test_averages(core: KernelTarget, kernel_size: tuple[int, int], tmp_path: Path) -> None:
    kh, kw = kernel_size
    x = np.random.default_rng(1).integers(-128, 128, (9, 7, 4)).astype(np.int8)
    x[:kh, :kw] = -128
    rows, columns = 9 - kh + 1, (7 - kw) // 2 + 1
    attrs = {"pool_size": [kh, kw], "strides": [1, 2], "padding": [0, 0, 0, 0], "clamp": [-128, 127]}
    spec = operator("avg_pool2d", [(1, 9, 7, 4)], (1, rows, columns, 4), "int8", dilation=[1, 1], **attrs)
    kernel = first_rule(spec, core)
    assert kernel is not None
    total = np.stack(
        [[x[y : y + kh, 2 * c : 2 * c + kw].astype(int).sum((0, 1)) for c in range(columns)] for y in range(rows)]
    )
    count = kh * kw
    want = np.trunc((total + np.where(total > 0, count // 2, -(count // 2))) / count).astype(np.int8)
    have = run_rows(kernel, tmp_path, [x], np.zeros((rows, columns, 4), np.int8), lambda y: y)
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "words"])
def test_averages_to_another_scale(core: KernelTarget, tmp_path: Path) -> None:
    """The sum with its head room, rescaled as the reference rescales."""
    x = np.random.default_rng(1).integers(-128, 128, (7, 6, 4)).astype(np.int8)
    x[:3, :3] = -128
    m, s, window = 1518500250, -13, {"pool_size": [3, 3], "strides": [1, 1], "dilation": [1, 1], "clamp": [-128, 127]}
    attrs = window | {"input_zero_point": 7, "output_zero_point": -5, "multiplier": m, "shift": s, "head_room": 8}
    spec = operator("scaled_avg_pool2d", [(1, 7, 6, 4)], (1, 5, 4, 4), "int8", padding=[0] * 4, **attrs)
    kernel = first_rule(spec, core)
    assert kernel is not None
    total = np.stack([[x[y : y + 3, c : c + 3].astype(int).sum((0, 1)) for c in range(4)] for y in range(5)])
    acc = (total.reshape(-1) - 9 * 7) << 8
    want = reference(acc, np.full(acc.shape, m), np.full(acc.shape, s), -5, (-128, 127)).reshape(total.shape)
    have = run_rows(kernel, tmp_path, [x], np.zeros((5, 4, 4), np.int8), lambda y: y)
    np.testing.assert_array_equal(have, want)


def cut_windows(
    x: np.ndarray, size: int, stride: int, before: int, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums and the numbers of elements of square windows inside the map, by output pixel."""
    starts = [[i * stride - before for i in range(extent)] for extent in shape]
    windows = [[x[max(a, 0) : a + size, max(b, 0) : b + size].astype(int) for b in starts[1]] for a in starts[0]]
    sums = np.array([[w.sum((0, 1)) for w in row] for row in windows])
    return sums, np.array([[w.shape[0] * w.shape[1] for w in row] for row in windows])[..., None]


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "words"])
@pytest.mark.parametrize(("size", "stride", "before"), [(3, 1, 1), (3, 2, 1), (5, 2, 2), (4, 3, 2)])
@pytest.mark.parametrize("half_up", [False, True])
def test_averages_with_padding(
    core: KernelTarget, size: int, stride: int, before: int, half_up: bool, tmp_path: Path
) -> None:
    """Every cut of the window has a divisor of its own; no kernel divides."""
    x = np.random.default_rng(1).integers(-128, 128, (9, 7, 4)).astype(np.int8)
    x[:size, :size] = -128
    rows, columns = (-(-(n + before - size) // stride) + 1 for n in (9, 7))
    attrs = {"pool_size": [size] * 2, "strides": [stride] * 2, "padding": [before] * 4, "clamp": [-128, 120]}
    rounding = {"rounding": "half up"} if half_up else {}
    spec = operator("avg_pool2d", [(1, 9, 7, 4)], (1, rows, columns, 4), "int8", **attrs, **rounding)
    kernel = first_rule(spec, core)
    assert kernel is not None and kernel.rule.startswith("pooling.")
    total, count = cut_windows(x, size, stride, before, (rows, columns))
    if half_up:
        want = (total + 128 * count + count // 2) // count - 128
    else:
        want = np.trunc((total + np.where(total > 0, count // 2, -(count // 2))) / count)
    have = run_rows(kernel, tmp_path, [x], np.zeros((rows, columns, 4), np.int8), lambda y: y * stride - before)
    np.testing.assert_array_equal(have, np.minimum(want, 120))


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "words"])
def test_averages_of_a_column_with_padding(core: KernelTarget, tmp_path: Path) -> None:
    """Every window has all rows, and a single column of three."""
    x = np.random.default_rng(1).integers(-128, 128, (9, 1, 4)).astype(np.int8)
    attrs = {"pool_size": [1, 3], "strides": [1, 1], "padding": [0, 1, 0, 1], "clamp": [-128, 127]}
    kernel = first_rule(operator("avg_pool2d", [(1, 9, 1, 4)], (1, 9, 1, 4), "int8", **attrs), core)
    assert kernel is not None and kernel.rule.startswith("pooling.")
    np.testing.assert_array_equal(run_rows(kernel, tmp_path, [x], np.zeros_like(x), lambda y: y), x)


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "words"])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_averages_with_padding_to_another_scale(core: KernelTarget, once: bool, counted: bool, tmp_path: Path) -> None:
    """A multiplier for every divisor; halves that are rounded to even among them. Padding may count."""
    x = np.random.default_rng(1).integers(-128, 128, (7, 6, 4)).astype(np.int8)
    x[:3, :3] = -128
    ratio, tables = 1.0 if once else 0.7, np.zeros((2, 10), "int32")
    for n in (4, 6, 9):
        tables[:, n] = quantize_multiplier(ratio / n / 256)
    window = {"pool_size": [3, 3], "strides": [1, 1], "padding": [1] * 4, "clamp": [-128, 127]}
    given = {"input_zero_point": 7, "output_zero_point": -5, "head_room": 8}
    extra = ({"rounding": "once, half to even"} if once else {}) | ({"counted": [1] * 4} if counted else {})
    spec = operator(
        "scaled_avg_pool2d", [(1, 7, 6, 4)], (1, 7, 6, 4), "int8", (tables[0], tables[1]), **window, **given, **extra
    )
    kernel = first_rule(spec, core)
    assert kernel is not None and kernel.rule.startswith("pooling.")
    total, count = cut_windows(x, 3, 1, 1, (7, 6))
    divisor = np.full_like(count, 9) if counted else count
    acc = (total - count * 7) << 8
    m, s = (np.broadcast_to(table[divisor], acc.shape).ravel() for table in tables)
    if once:
        want = np.clip(np.rint(acc.ravel() * m / 2.0 ** (31 - s)) - 5, -128, 127)
    else:
        want = reference(acc.ravel(), m, s, -5, (-128, 127))
    have = run_rows(kernel, tmp_path, [x], np.zeros((7, 6, 4), np.int8), lambda y: y - 1)
    np.testing.assert_array_equal(have, want.reshape(have.shape))


def test_reciprocals_are_exact() -> None:
    for n in (2, 3, 9, 49, 125, 255):
        factor, shift = pooling.reciprocal(n, 128)
        sums = np.arange(n * 128 + n // 2 + 1, dtype=np.int64)
        np.testing.assert_array_equal(sums * factor >> shift, sums // n)
        assert int(sums[-1]) * factor < 1 << 31


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_concatenations(axis: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    shapes = {1: [(3, 5, 8), (2, 5, 8)], 2: [(3, 5, 8), (3, 2, 8)], 3: [(3, 5, 8), (3, 5, 12)]}[axis]
    xs = [rng.integers(-128, 128, s).astype(np.int8) for s in shapes]
    want = np.concatenate(xs, axis=axis - 1)
    spec = operator("concat", [(1, *s) for s in shapes], (1, *want.shape), "int8", axis=axis, table_of_input=[-1, -1])
    kernel = first_rule(spec, M4)
    assert kernel is not None and kernel.rule == "moves.words"
    firsts = (lambda y: [y, y - 3]) if axis == 1 else lambda y: y
    np.testing.assert_array_equal(run_rows(kernel, tmp_path, xs, np.zeros_like(want), firsts), want)
    odd = operator("concat", [(1, 3, 5, 7), (1, 3, 5, 8)], (1, 3, 5, 15), "int8", axis=3, table_of_input=[-1, -1])
    assert first_rule(odd, M4) is None


@pytest.mark.parametrize("widths", [(1, 2, 2, 1), (1, 2, 0, 0), (0, 0, 0, 2)])
def test_pads(tmp_path: Path, widths: tuple[int, int, int, int]) -> None:
    """Top, bottom, left, right: rows of padding alone have the value too."""
    x = np.random.default_rng(3).integers(-128, 128, (4, 5, 8)).astype(np.int8)
    top, bottom, left, right = widths
    want = np.pad(x, ((top, bottom), (left, right), (0, 0)), constant_values=-7)
    spec = operator("pad", [(1, 4, 5, 8)], (1, *want.shape), "int8", pad_width=[0, 0, *widths, 0, 0], value=-7)
    pad = first_rule(spec, M4)
    assert pad is not None and pad.rule == "moves.words"
    np.testing.assert_array_equal(run_rows(pad, tmp_path, [x], np.zeros_like(want), lambda y: y - top), want)


def test_slices(tmp_path: Path) -> None:
    x = np.random.default_rng(3).integers(-128, 128, (4, 5, 8)).astype(np.int8)
    attrs = {"begin": [0, 1, 0, 4], "strides": [1, 1, 1, 1]}
    cut = first_rule(operator("strided_slice", [(1, 4, 5, 8)], (1, 3, 5, 4), "int8", **attrs), M4)
    assert cut is not None
    have = run_rows(cut, tmp_path, [x], np.zeros((3, 5, 4), np.int8), lambda y: y + 1)
    np.testing.assert_array_equal(have, x[1:, :, 4:])
    assert moves.read_move(operator("pad", [(1, 4, 5, 8)], (1, 4, 5, 9), "int8", pad_width=[0] * 7 + [1])) is None


def check_dense(spec: OperatorSpec, core: KernelTarget, x: np.ndarray, folder: Path) -> np.ndarray:
    """Compares the kernel of a dense layer (zero points 5 and -3) with sums that are rounded once, which are returned."""
    kernel = first_rule(spec, core)
    assert kernel is not None
    weights, bias, m, s = spec.constants
    acc = (x.astype(np.int64) - 5) @ weights.astype(np.int64).T + bias
    want = np.stack([round_once(acc[:, c], int(m[c]), int(s[c])) for c in range(len(m))], 1)
    have = run_rows(kernel, folder, [x], np.zeros(want.shape, np.int8), lambda y: y)
    np.testing.assert_array_equal(have, np.clip(want - 3, -128, 127))
    return want


@pytest.mark.parametrize("shift", [-3, -9])
@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "dsp"])
def test_dense_layers_round_once(core: KernelTarget, shift: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    weights = rng.integers(-127, 128, (6, 20)).astype(np.int8)
    bias = rng.integers(-500, 500, 6).astype(np.int32)
    m, s = rng.integers(1 << 30, (1 << 31) - 1, 6).astype(np.int32), np.full(6, shift, np.int32)
    x = rng.integers(-128, 128, (1, 20)).astype(np.int8)
    attrs = {"input_zero_point": 5, "output_zero_point": -3, "clamp": [-128, 127], "kernel_layout": "OI"}
    constants = (weights, bias, m, s)
    spec = operator("dense", [(1, 20)], (1, 6), "int8", constants, rounding=ROUNDING, **attrs)
    check_dense(spec, core, x, tmp_path)
    assert read_dense(replace(spec, attributes=replace(spec.attributes, rounding="twice"))) is None


@pytest.mark.parametrize("core", [M3, M4], ids=["scalar", "dsp"])
def test_dense_layers_of_wide_multipliers(core: KernelTarget, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    weights = rng.integers(-127, 128, (6, 20)).astype(np.int8)
    bias = rng.integers(-500, 500, 6).astype(np.int32)
    m, s = rng.integers(1 << 52, 1 << 53, 6), np.array([-27, -28, -29, -30, -31, 0], np.int32)
    m[5] = 0  # a channel that vanished
    x = rng.integers(-128, 128, (1, 20)).astype(np.int8)
    attrs = {"input_zero_point": 5, "output_zero_point": -3, "clamp": [-128, 127], "kernel_layout": "OI"}
    spec = operator("dense", [(1, 20)], (1, 6), "int8", (weights, bias, m, s), rounding=ROUNDING, **attrs)
    want = check_dense(spec, core, x, tmp_path)
    assert len(np.unique(want)) > 4
    nearly_one = replace(spec, constants=(weights, bias, m, np.full(6, -20, np.int32)))
    assert read_dense(nearly_one) is None


@pytest.mark.parametrize("m,s", [(1 << 30, -4), (1518500250, -7), ((1 << 31) - 1, -9), (1300000001, -2)])
def test_one_rounding_is_proved_equal_or_kept(m: int, s: int) -> None:
    """The form that is chosen equals one rounding for every accumulator that any step lies at."""
    reach = np.array([1 << 20])
    q = plan_single(np.array([m]), np.array([s]), (-reach, reach), 3, (-128, 127))
    assert q is not None
    acc = np.arange(-(1 << 16), 1 << 16, dtype=np.int64)
    want = np.clip(round_once(acc, m, s) + 3, -128, 127)
    _, addend, e = (int(v) for v in q.table[0])
    if q.once:
        have = ((((acc * m + (acc >> 63)) >> 32) + addend) >> e) + 3
    else:
        have = (((2 * acc * m + (1 << 31)) >> 32) + addend + (acc >> 63)) >> e
    np.testing.assert_array_equal(np.clip(have, -128, 127), want)


def mixed_network():
    """Every kind of operator that rules serve, in shapes that vectors and words fit."""
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 12, 12, 3), "image"), 16, kernel=(3, 3), padding="same", activation="relu")
    pooled = net.max_pool(x, (2, 2), 2, "same")
    averaged = net.avg_pool(x, (2, 2), 2, "valid")
    both = net.concat([pooled, averaged])
    wide = net.max_pool(net.add(both, both), (3, 3), 1, "same")
    around = net.avg_pool(net.conv(wide, 8, kernel=(1, 1)), (3, 3), 1, "same")
    narrow = net.avg_pool(around, (3, 3), 3, "valid")
    flat = net.dense(net.flatten(narrow), 12)
    return net.finish([flat, net.global_pool(wide)])


@pytest.mark.emulator
@pytest.mark.parametrize(
    "target,backend", [("cortex-m3", "c"), ("cortex-m4", "c"), ("cortex-m4", "obj"), ("cortex-m55", "obj")]
)
def test_mixed_networks_equal_the_generic_kernels(target: str, backend: str, emulator: None, tmp_path: Path) -> None:
    rules = [k.rule for k in prepare(mixed_network(), kernel_target(target, backend), Database()).kernels if k]
    assert sum(r.startswith("pooling.") for r in rules) >= 5 and sum(r.startswith("moves.") for r in rules) == 1
    made = api.compile(mixed_network(), target=target, emit=backend, output=tmp_path / "p", layerwise=True)
    report = api.run(tmp_path / "p", board=made.board)
    assert report.equals_host


@pytest.mark.emulator
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m4", "riscv32"])
def test_products_of_two_activations(core: str, emulator: None, tmp_path: Path) -> None:
    """As attention has them: of several heads, with zero points on either side, with either operand turned."""
    pytest.importorskip("ai_edge_litert")
    w = ModelWriter()
    sizes = [((1, 7, 12), (1, 12, 9), False), ((1, 2, 5, 6), (1, 2, 10, 6), True), ((1, 3, 4, 8), (1, 1, 8, 3), False)]
    for k, (left, right, turned) in enumerate(sizes):
        x, y = w.activation(left, "int8", 0.05, (3, 0, -128)[k]), w.activation(right, "int8", 0.06, (-7, 0, 127)[k])
        columns = right[-2] if turned else right[-1]
        out = w.tensor((*left[:-1], columns), "int8", 0.3, 4)
        w.operator("BATCH_MATMUL", [x, y], [out], "BatchMatMulOptions", adjX=False, adjY=turned, version=2)
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    rules = [k.rule for k in prepare(load(path), kernel_target(core, "c")).kernels if k]
    assert rules.count("matmul.blocks") == len(sizes)
    api.compile(path, target=core, output=tmp_path / "p")
    assert api.run(tmp_path / "p", check=path).match


def test_a_product_of_two_activations_takes_few_cycles(tmp_path: Path) -> None:
    w = ModelWriter()
    x, y = w.activation((1, 32, 64), "int8", 0.05), w.activation((1, 64, 32), "int8", 0.06)
    w.operator("BATCH_MATMUL", [x, y], [w.tensor((1, 32, 32), "int8", 0.3)], "BatchMatMulOptions", version=2)
    path = tmp_path / "n.tflite"
    path.write_bytes(w.finish())
    told = api.plan(path, target="cortex-m4").to_dict()
    assert told["cycles"] < 4.5 * told["macs"]
