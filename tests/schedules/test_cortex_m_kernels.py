"""Hand-scheduled row kernels against a numpy model of the arithmetic, on the host through portable helpers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.cores import KernelTarget, kernel_target
from tvm_cascade.operators.record import TensorType
from tvm_cascade.schedules.driver.merge_kernels import merged_functions
from tvm_cascade.schedules.kernels.kernel import Deferred, Role, RowKernel
from tvm_cascade.schedules.kernels.spec import Attributes, OperatorSpec
from tvm_cascade.schedules.rules import cortex_m_dsp, cortex_m_mve, cortex_m_scalar, elementwise
from tvm_cascade.schedules.rules.clipped import is_clipped
from tvm_cascade.schedules.rules.conv_row import Blocking, ConvRow
from tvm_cascade.schedules.rules.elementwise_mve import vector_elementwise
from tvm_cascade.schedules.rules.few_taps import few_taps, has_few_taps
from tvm_cascade.schedules.rules.geometry import Sliding
from tvm_cascade.schedules.rules.quantized import Part, QuantizedConv, read_conv
from tvm_cascade.schedules.rules.requantize import accumulator_bounds, constant_channels, plan_requantize, reference
from tvm_cascade.schedules.rules.select import first_rule
from tvm_cascade.schedules.tir import tvm_ffi
from tvm_cascade.testing.c_kernel import CKernel


@dataclass(frozen=True, eq=False)
class Case:
    conv: QuantizedConv
    x: np.ndarray  # int8 [height, width, channels]
    want: np.ndarray  # int8 [out height, out width, outputs]


def make_case(
    size: tuple[int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    stride: int = 1,
    *,
    same: bool = True,
    depthwise: bool = False,
    zero_in: int = -128,
    zero_out: int = -128,
    clamp: tuple[int, int] = (-128, 127),
    seed: int = 0,
    exponent: int = 0,
    dtype: str = "int8",
    dilation: int = 1,
    groups: int = 1,
) -> Case:
    """A random layer, its input and what the reference makes of it; `exponent` scales the outputs by a power of two.

    uint8 takes zero points and clamp as those of int8 plus 128, and weights of nine bits.
    """
    rng = np.random.default_rng(seed)
    height, width, channels = size
    kh, kw = kernel
    out_h, top = _extent(height, (kh - 1) * dilation + 1, stride, same)
    out_w, left = _extent(width, (kw - 1) * dilation + 1, stride, same)
    inputs = 1 if depthwise else channels // groups
    weights = rng.integers(-127, 128, (kh, kw, inputs, outputs)).astype(np.int8)
    bias = rng.integers(-3000, 3000, outputs).astype(np.int32)
    x = rng.integers(-128, 128, size).astype(np.int8)
    limits = (-128, 127)
    if dtype == "uint8":
        weights, x = rng.integers(-255, 256, weights.shape).astype(np.int16), x.view(np.uint8)
        zero_in, zero_out, clamp, limits = zero_in + 128, zero_out + 128, (clamp[0] + 128, clamp[1] + 128), (0, 255)
    g = Sliding(height, width, channels, out_h, out_w, kernel, (stride, stride), (top, left), (dilation, dilation))
    acc = bias + _accumulate(g, x.astype(np.int64) - zero_in, weights.astype(np.int64), depthwise)
    m = rng.integers(1 << 30, 1 << 31, outputs)
    s = np.full(outputs, int(np.floor(np.log2(80 / acc.std()))) + exponent)
    want = reference(acc.ravel(), np.tile(m, out_h * out_w), np.tile(s, out_h * out_w), zero_out, clamp)
    low, high = accumulator_bounds(weights.reshape(-1, outputs), bias, zero_in, limits)
    q = plan_requantize(m, s, low, high, zero_out, clamp)
    conv = QuantizedConv(
        g, weights, bias, zero_in, q, depthwise, outputs // channels if depthwise else 1, dtype, groups=groups
    )
    return Case(conv, x, want.reshape(out_h, out_w, outputs).astype(dtype))


def _extent(size: int, kernel: int, stride: int, same: bool) -> tuple[int, int]:
    if not same:
        return (size - kernel) // stride + 1, 0
    out = -(-size // stride)
    return out, max((out - 1) * stride + kernel - size, 0) // 2


def _accumulate(g: Sliding, x: np.ndarray, w: np.ndarray, depthwise: bool) -> np.ndarray:
    """Tap by tap, those in padding left out; a group of channels makes a group of outputs."""
    acc = np.zeros((g.out_height, g.out_width, w.shape[-1]), np.int64)
    times, depth = w.shape[-1] // g.channels if depthwise else 1, w.shape[2]
    parts = np.split(w, g.channels // depth, axis=3) if not depthwise else []
    for y, c, ky, kx in np.ndindex(g.out_height, g.out_width, *g.kernel):
        row = y * g.strides[0] - g.padding[0] + ky * g.dilation[0]
        column = c * g.strides[1] - g.padding[1] + kx * g.dilation[1]
        if not (0 <= row < g.height and 0 <= column < g.width):
            continue
        pixel = x[row, column]
        if depthwise:
            acc[y, c] += np.repeat(pixel, times) * w[ky, kx, 0]
        else:
            own = [pixel[i * depth : (i + 1) * depth] @ part[ky, kx] for i, part in enumerate(parts)]
            acc[y, c] += np.concatenate(own)
    return acc


def run_rows(
    kernel: RowKernel, folder: Path, x: np.ndarray, g: Sliding, outputs: int, ring: int, parts: tuple[Part, ...] = ()
) -> np.ndarray:
    """Every output row from a ring of `ring` slots that holds just the rows of its window, garbage elsewhere.

    Where the kernel reads parts, each has a ring of its own.
    """
    library, out = CKernel(kernel, folder), np.zeros((g.out_height, g.out_width, outputs), x.dtype)
    ends = np.cumsum([p.channels for p in parts] or [x.shape[-1]])[:-1]
    scratch = np.full(kernel.scratch_bytes + 1, 99, np.int8)
    for y in range(g.out_height):
        first = y * g.strides[0] - g.padding[0]
        slots = np.full((ring, *x.shape[1:]), 99, x.dtype)
        for row in range(max(first, 0), min(first + span(g), g.height)):
            slots[row % ring] = x[row]
        rings = [np.ascontiguousarray(s) for s in np.split(slots, ends, axis=-1)]
        for part, own in zip(parts, rings, strict=False):
            own[...] = own if part.table is None else np.argsort(part.table).astype(x.dtype)[own]
        slot = (first + 8 * ring) % ring
        values = {Role.INPUT: rings, Role.SCRATCH: [scratch], Role.OUTPUT: [out[y]]}
        library(y, values | {Role.SLOT: [slot] * len(rings), Role.SLOTS: [ring] * len(rings)})
    assert scratch[-1] == 99
    return out


def span(g: Sliding) -> int:
    """Rows from the first tap to the last."""
    return (g.kernel[0] - 1) * g.dilation[0] + 1


CONVOLUTIONS = {
    "1x1": dict(size=(3, 5, 16), outputs=6, kernel=(1, 1)),
    "1x1 deep": dict(size=(2, 4, 40), outputs=8, kernel=(1, 1), zero_out=3),
    "1x1 stride": dict(size=(5, 6, 8), outputs=4, kernel=(1, 1), stride=2, zero_in=7),
    "3x3": dict(size=(5, 7, 8), outputs=5, kernel=(3, 3), zero_out=-5, clamp=(-100, 90)),
    "3x3 stride": dict(size=(8, 8, 12), outputs=4, kernel=(3, 3), stride=2),
    "3x3 valid": dict(size=(6, 9, 4), outputs=3, kernel=(3, 3), same=False, zero_in=0),
    "first": dict(size=(9, 8, 3), outputs=8, kernel=(3, 3), stride=2, zero_in=-1),
    "tall": dict(size=(13, 6, 1), outputs=6, kernel=(6, 4), stride=2, zero_in=20, zero_out=11),
    "odd depth": dict(size=(4, 5, 7), outputs=3, kernel=(3, 3), zero_out=9),
    "one row": dict(size=(1, 4, 8), outputs=2, kernel=(3, 3)),
    "uint8": dict(size=(5, 7, 8), outputs=5, kernel=(3, 3), zero_in=9, zero_out=-5, dtype="uint8"),
    "uint8 odd": dict(size=(6, 5, 7), outputs=3, kernel=(3, 3), stride=2, zero_in=-128, clamp=(-90, 99), dtype="uint8"),
    "left shift": dict(size=(3, 3, 4), outputs=4, kernel=(3, 3), exponent=14),
    "dilated": dict(size=(9, 8, 8), outputs=5, kernel=(3, 3), dilation=2, zero_in=5),
    "dilated stride": dict(size=(9, 12, 7), outputs=4, kernel=(3, 2), stride=2, dilation=3, zero_out=7),
    "dilated valid": dict(size=(8, 9, 4), outputs=3, kernel=(3, 3), dilation=3, same=False),
    "dilated narrow": dict(size=(4, 3, 4), outputs=4, kernel=(3, 3), dilation=3),
    "groups": dict(size=(5, 7, 12), outputs=9, kernel=(3, 3), groups=3, zero_in=-3),
    "groups of two": dict(size=(4, 6, 8), outputs=16, kernel=(1, 1), groups=4, clamp=(-128, 50)),
    "groups dilated": dict(size=(7, 6, 16), outputs=6, kernel=(3, 3), groups=2, dilation=2),
    "groups uint8": dict(size=(5, 5, 12), outputs=4, kernel=(3, 3), groups=2, zero_in=3, dtype="uint8"),
}
DEPTHWISE = {
    "same": dict(size=(5, 9, 8), outputs=8, kernel=(3, 3)),
    "stride": dict(size=(7, 12, 3), outputs=3, kernel=(3, 3), stride=2, zero_out=4),
    "narrow": dict(size=(3, 2, 5), outputs=5, kernel=(5, 3), zero_in=9),
    "uint8": dict(size=(5, 9, 8), outputs=8, kernel=(3, 3), zero_in=-100, dtype="uint8"),
    "valid": dict(size=(6, 9, 4), outputs=4, kernel=(3, 3), zero_in=7, same=False),
    "multiplier": dict(size=(5, 6, 3), outputs=6, kernel=(3, 3), clamp=(-128, 60)),
    "dilated": dict(size=(8, 9, 3), outputs=3, kernel=(3, 3), dilation=2, zero_in=6),
    "dilated stride": dict(size=(9, 11, 2), outputs=4, kernel=(3, 4), stride=2, dilation=3),
}


@pytest.mark.parametrize("rules", [cortex_m_scalar, cortex_m_dsp], ids=["scalar", "dsp"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(rules, name: str, tmp_path: Path) -> None:
    case = make_case(**CONVOLUTIONS[name])
    g = case.conv.window
    made = run_rows(rules.conv2d(case.conv), tmp_path, case.x, g, case.conv.outputs, min(span(g), g.height) + 1)
    np.testing.assert_array_equal(made, case.want)


CLIPPED = ("3x3", "3x3 stride", "first", "tall", "odd depth", "uint8", "uint8 odd", "one row", "left shift")


@pytest.mark.parametrize("pixels", [1, 2, 4])
@pytest.mark.parametrize(
    ("rules", "name"),
    [
        *((cortex_m_scalar, name) for name in CLIPPED),
        *((cortex_m_dsp, name) for name in CLIPPED if CONVOLUTIONS[name]["size"][2] % 4 == 0),
    ],
)
def test_convolutions_in_small_code(rules, name: str, pixels: int, tmp_path: Path) -> None:
    """Windows that a border cuts are computed by one block of code, from one bias a channel."""
    case = make_case(**CONVOLUTIONS[name])
    g, outputs = case.conv.window, case.conv.outputs
    assert is_clipped(case.conv, rules.Conv.group)
    kernel = rules.conv2d(case.conv, Blocking(pixels, 2), clipped=True)
    assert kernel.constants[1].size == (1 + 2 * outputs if name != "left shift" else 4 * outputs)
    made = run_rows(kernel, tmp_path, case.x, g, outputs, min(span(g), g.height) + 1)
    np.testing.assert_array_equal(made, case.want)


@pytest.mark.parametrize("rules", [cortex_m_scalar, cortex_m_dsp], ids=["scalar", "dsp"])
@pytest.mark.parametrize("outputs", [16, 18, 21])
def test_biases_in_three_bytes(rules, outputs: int, tmp_path: Path) -> None:
    """Layers whose channels are requantized alike keep a multiplier, an addend, a shift, and three bytes a channel."""
    case = make_case((2, 4, 40), outputs, (1, 1), zero_out=3)
    table = case.conv.requantize.table.copy()
    table[:] = table[0]
    conv = replace(case.conv, requantize=replace(case.conv.requantize, table=table))
    alike = [rules.conv2d(conv, Blocking(2, 2, narrow=narrow)) for narrow in (False, True)]
    assert [k.constants[1].size for k in alike] == [3 + outputs, 3 + -(-3 * outputs // 4)]
    folders = [tmp_path / name for name in ("usual", "narrow")]
    for folder in folders:
        folder.mkdir()
    usual, narrow = (
        run_rows(kernel, folder, case.x, conv.window, outputs, 2) for kernel, folder in zip(alike, folders, strict=True)
    )
    np.testing.assert_array_equal(narrow, usual)
    wide = replace(conv, bias=conv.bias + (1 << 23))
    assert rules.conv2d(wide, Blocking(2, 2, narrow=True)).constants[1].size == 3 + outputs


def test_windows_that_no_border_cuts_are_not_clipped() -> None:
    kept = ("1x1", "1x1 stride", "3x3 valid", "dilated", "groups")
    assert not any(is_clipped(make_case(**CONVOLUTIONS[name]).conv, 1) for name in kept)
    assert not is_clipped(make_case(**CONVOLUTIONS["first"]).conv, 4)
    assert not is_clipped(make_case((3, 2, 4), 4, (3, 5)).conv, 4), "no window is whole"


@pytest.mark.parametrize("rules", [cortex_m_scalar, cortex_m_dsp], ids=["scalar", "dsp"])
def test_small_convolutions_of_other_shapes_are_one_function(rules) -> None:
    """Strides, paddings, extents and depths are constants of one structure, and so is a fused activation."""
    cases = [
        make_case((8, 8, 16), 16, (3, 3)),
        make_case((8, 10, 16), 32, (3, 3), stride=2, zero_out=-4),
        make_case((5, 7, 32), 8, (3, 3), zero_out=9),
    ]
    kernels = {k: rules.conv2d(case.conv, Blocking(2, 2), clipped=True).func for k, case in enumerate(cases)}
    (merged,) = merged_functions(kernels)
    assert set(merged.arguments) == {0, 1, 2}
    usual = {k: rules.conv2d(case.conv, Blocking(2, 2)).func for k, case in enumerate(cases)}
    assert not merged_functions(usual)


@pytest.mark.parametrize("rules", [cortex_m_scalar, cortex_m_dsp], ids=["scalar", "dsp"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_one_form_share_a_function(rules, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other weights, and another zero point of the input, give the function that they would give alone."""
    case, other = (make_case(**{**CONVOLUTIONS[name], "seed": seed}).conv for seed in (1, 2))
    first, second = rules.conv2d(case), rules.conv2d(other)
    shifted = rules.conv2d(replace(case, input_zero_point=case.input_zero_point + 1))
    assert (first.code is second.code) == (case.requantize.short == other.requantize.short)
    assert first.code is shifted.code
    assert any((a != b).any() for a, b in zip(first.constants, second.constants, strict=True))
    monkeypatch.setattr(ConvRow, "by_form", False)
    for owner in (cortex_m_dsp.Conv, cortex_m_scalar.Conv):
        monkeypatch.setattr(owner, "by_form", False)
    for conv, shared in ((other, second), (replace(case, input_zero_point=case.input_zero_point + 1), shifted)):
        alone = rules.conv2d(conv)
        assert alone.code is not shared.code
        assert tvm_ffi.structural_equal(alone.func, shared.func)


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolutions_of_one_form_share_a_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, other = (make_case(**{**DEPTHWISE[name], "seed": seed}, depthwise=True).conv for seed in (1, 2))
    first, second = cortex_m_scalar.depthwise(case), cortex_m_scalar.depthwise(other)
    shifted = cortex_m_scalar.depthwise(replace(case, input_zero_point=case.input_zero_point + 1))
    assert (first.code is second.code) == (case.requantize.short == other.requantize.short)
    assert (first.code is shifted.code) == (name == "valid"), "columns of padding are written as the zero point"
    monkeypatch.setattr(cortex_m_scalar.Depthwise, "by_form", False)
    for conv, shared in ((other, second), (replace(case, input_zero_point=case.input_zero_point + 1), shifted)):
        alone = cortex_m_scalar.depthwise(conv)
        assert alone.code is not shared.code
        assert tvm_ffi.structural_equal(alone.func, shared.func)


PARTS = {  # channels of the parts
    "1x1": (4, 12),
    "1x1 deep": (16, 8, 16),
    "1x1 stride": (3, 5),
    "3x3": (4, 4),
    "3x3 stride": (1, 4, 7),
    "one row": (4, 4),
    "uint8": (4, 4),
    "uint8 odd": (2, 5),
}


def in_parts(conv: QuantizedConv, channels: tuple[int, ...], tables: bool) -> QuantizedConv:
    """`conv` over parts; with `tables` all but the first are requantized."""
    rng = np.random.default_rng(5)
    made = [rng.permutation(256).astype(np.uint8) if tables and k else None for k in range(len(channels))]
    return replace(conv, parts=tuple(Part(c, t) for c, t in zip(channels, made, strict=True)))


@pytest.mark.parametrize("rules", [cortex_m_scalar, cortex_m_dsp], ids=["scalar", "dsp"])
@pytest.mark.parametrize(
    ("name", "tables"), [*((n, False) for n in PARTS), *((n, True) for n in PARTS if n.startswith("uint8"))]
)
def test_convolution_of_parts(rules, name: str, tables: bool, tmp_path: Path) -> None:
    """The parts of a concat in place of it; windows of several rows take scratch only where tables requantize them."""
    case = make_case(**CONVOLUTIONS[name])
    g, conv = case.conv.window, in_parts(case.conv, PARTS[name], tables)
    kernel = rules.conv2d(conv)
    assert (kernel.scratch_bytes > 0) == (g.kernel == (1, 1) or tables)
    made = run_rows(kernel, tmp_path, case.x, g, conv.outputs, min(g.kernel[0], g.height) + 1, conv.parts)
    np.testing.assert_array_equal(made, case.want)


@pytest.mark.parametrize("name,tables", [("same", False), ("stride", False), ("uint8", True), ("multiplier", False)])
def test_depthwise_of_parts(name: str, tables: bool, tmp_path: Path) -> None:
    case = make_case(**DEPTHWISE[name], depthwise=True)
    g, channels = case.conv.window, case.conv.window.channels
    conv = in_parts(case.conv, (1, channels - 1), tables)
    made = run_rows(
        cortex_m_scalar.depthwise(conv), tmp_path, case.x, g, conv.outputs, min(g.kernel[0], g.height), conv.parts
    )
    np.testing.assert_array_equal(made, case.want)


@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 2)])
def test_few_taps(stride: int, dilation: int, tmp_path: Path) -> None:
    case = make_case((7, 6, 1), 6, (3, 3), stride, zero_in=-1, zero_out=4, dilation=dilation)
    assert has_few_taps(case.conv)
    kernel = few_taps(case.conv)
    np.testing.assert_array_equal(run_rows(kernel, tmp_path, case.x, case.conv.window, 6, 6), case.want)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("pixels,channels,step", [(1, 4, 1), (3, 2, 2), (4, 1, 3)])
def test_every_blocking_computes_the_same(pixels: int, channels: int, step: int, rows: bool, tmp_path: Path) -> None:
    case = make_case((4, 7, 12), 10, (3, 3), zero_out=2)
    kernel = cortex_m_dsp.conv2d(case.conv, Blocking(pixels, channels, 2, step, rows))
    np.testing.assert_array_equal(run_rows(kernel, tmp_path, case.x, case.conv.window, 10, 3), case.want)


@pytest.mark.parametrize("pixels", [None, 1, 4])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name: str, pixels: int | None, tmp_path: Path) -> None:
    case = make_case(**DEPTHWISE[name], depthwise=True)
    g = case.conv.window
    kernel = cortex_m_scalar.depthwise(case.conv, pixels)
    made = run_rows(kernel, tmp_path, case.x, g, case.conv.outputs, min(span(g), g.height))
    np.testing.assert_array_equal(made, case.want)


def element_wise(
    kind: str, inputs: int, shape: tuple[int, ...], dtype: str = "int8", **attributes: object
) -> OperatorSpec:
    """An operator whose tensors have one shape."""
    given = Attributes(**{k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()})
    tensor = TensorType(shape, dtype)
    return OperatorSpec(kind, (tensor,) * inputs, tensor, attributes=given)


def run_elementwise(kernel: RowKernel, folder: Path, xs: list[np.ndarray]) -> np.ndarray:
    library, out = CKernel(kernel, folder), np.zeros_like(xs[0])
    for y in range(len(out)):
        slots = {Role.SLOT: [y] * len(xs), Role.SLOTS: [len(x) for x in xs]}
        library(y, slots | {Role.INPUT: xs, Role.OUTPUT: [out[y]]})
    return out


def model_sum(x: np.ndarray, y: np.ndarray, zeros: list[int], ratios: list[tuple[int, int]], out: int, sign: int):
    stored = [v.astype(np.int64).ravel() - z for v, z in zip((x, y), zeros, strict=True)]
    a, b = (elementwise.rescale(v << 20, r) for v, r in zip(stored, ratios[:2], strict=True))
    total = elementwise.rescale(a + sign * b, ratios[2])
    return np.clip(total + out, -128, 127).reshape(x.shape).astype(np.int8)


@pytest.mark.parametrize("kind", ["add", "sub"])
@pytest.mark.parametrize("second", [(1 << 30, 0), (1518500250, -1)])
@pytest.mark.parametrize("swapped", [False, True])
def test_sums(kind: str, second: tuple[int, int], swapped: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-128, 128, (3, 5, 3)).astype(np.int8) for _ in range(2))
    ratios = [second, (1 << 30, 0), (1431655766, -18)] if swapped else [(1 << 30, 0), second, (1431655766, -18)]
    zeros = [-3, 17]
    attrs = {"input_zero_points": zeros, "output_zero_point": -9, "clamp": [-128, 127], "head_room": 20}
    attrs |= {"multipliers": [m for m, _ in ratios], "shifts": [s for _, s in ratios]}
    kernel = elementwise.scalar_elementwise(element_wise(kind, 2, (1, 3, 5, 3), **attrs))[0].make()
    want = model_sum(x, y, zeros, ratios, -9, 1 if kind == "add" else -1)
    np.testing.assert_array_equal(run_elementwise(kernel, tmp_path, [x, y]), want)


def test_sums_and_products_of_one_form_share_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair shares one function exactly where the functions that they get alone are equal."""
    plain, looked = [(1 << 30, 0)] * 2, [(1 << 30, 0), (1518500250, -1)]
    specs = [
        element_wise(
            kind, 2, (1, 3, width, 3), input_zero_points=list(zeros), output_zero_point=out, clamp=clamp,
            **({"multiplier": 1800000000, "shift": -7} if kind == "mul" else {"head_room": 20,
            "multipliers": [m for m, _ in ratios] + [1431655766], "shifts": [s for _, s in ratios] + [-18]}),
        )
        for kind in ("add", "sub", "mul")
        for ratios in (plain, looked, looked[::-1])
        for width, clamp in ((5, [-128, 127]), (5, [-128, 60]), (6, [-128, 127]))
        for zeros, out in (((-3, 17), -9), ((0, 5), -128))
    ]  # fmt: skip

    def kernels() -> list[RowKernel]:
        return [v.make() for spec in specs for v in elementwise.scalar_elementwise(spec)]

    shared = kernels()
    monkeypatch.setattr(Deferred, "of", classmethod(lambda cls, write, _form: cls(write)))
    alone = kernels()
    hashes = [tvm_ffi.structural_hash(k.func) for k in alone]
    assert len(set(hashes)) == len({id(k.code) for k in shared}) < len(shared) == len(specs)
    for one, other in zip(shared, alone, strict=True):
        assert tvm_ffi.structural_equal(one.func, other.func)


def test_product(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.integers(-128, 128, (2, 4, 2)).astype(np.int8) for _ in range(2))
    attrs = {
        "input_zero_points": [4, -6],
        "output_zero_point": 5,
        "clamp": [-50, 100],
        "multiplier": 1800000000,
        "shift": -7,
    }
    kernel = elementwise.scalar_elementwise(element_wise("mul", 2, (1, 2, 4, 2), **attrs))[0].make()
    product = ((x.astype(np.int64) - 4) * (y.astype(np.int64) + 6)).ravel()
    want = np.clip(elementwise.rescale(product, (1800000000, -7)) + 5, -50, 100).reshape(x.shape)
    np.testing.assert_array_equal(run_elementwise(kernel, tmp_path, [x, y]), want)


def test_operators_on_one_activation_are_tables(tmp_path: Path) -> None:
    x = np.arange(-128, 128).astype(np.int8).reshape(4, 8, 8)
    attrs = {"input_zero_point": 3, "output_zero_point": -2, "clamp": [-2, 40], "multiplier": 1300000000, "shift": -1}
    kernel = elementwise.scalar_elementwise(element_wise("relu", 1, (1, 4, 8, 8), **attrs))[0].make()
    assert kernel.constants[0].shape == (256,)
    want = np.clip(elementwise.rescale(x.astype(np.int64).ravel() - 3, (1300000000, -1)) - 2, -2, 40).reshape(x.shape)
    np.testing.assert_array_equal(run_elementwise(kernel, tmp_path, [x]), want)


@pytest.mark.parametrize("kind", ["sub", "mul", "relu"])
def test_elements_of_uint8(kind: str, tmp_path: Path) -> None:
    """The whole range of an operand, and of its table."""
    x = np.arange(256).astype(np.uint8).reshape(4, 8, 8)
    y, zeros, ratio = np.random.default_rng(3).permutation(x.ravel()).reshape(x.shape), [131, 7], (1518500250, -7)
    attrs: dict[str, object] = {"output_zero_point": 128, "clamp": [0, 255], "input_zero_points": zeros}
    if kind == "sub":
        ratios = [(1518500250, -1), (1 << 30, 0), (1431655766, -19)]
        attrs |= {"multipliers": [m for m, _ in ratios], "shifts": [s for _, s in ratios], "head_room": 20}
        a, b = (v.astype(np.int64).ravel() - z for v, z in zip((x, y), zeros, strict=True))
        parts = [elementwise.rescale(v << 20, r) for v, r in zip((a, b), ratios, strict=False)]
        want = elementwise.rescale(parts[0] - parts[1], ratios[2])
    elif kind == "mul":
        attrs |= {"multiplier": ratio[0], "shift": ratio[1]}
        want = elementwise.rescale((x.astype(np.int64).ravel() - 131) * (y.astype(np.int64).ravel() - 7), ratio)
    else:
        attrs |= {"multiplier": ratio[0], "shift": 0, "input_zero_point": 131, "clamp": [128, 255]}
        want = elementwise.rescale(x.astype(np.int64).ravel() - 131, (ratio[0], 0))
    xs = [x] if kind == "relu" else [x, y]
    spec = element_wise(kind, len(xs), (1, 4, 8, 8), "uint8", **attrs)
    kernel = elementwise.scalar_elementwise(spec)[0].make()
    assert vector_elementwise(spec) == []  # lanes know int8 alone
    low = 128 if kind == "relu" else 0
    np.testing.assert_array_equal(run_elementwise(kernel, tmp_path, xs), np.clip(want + 128, low, 255).reshape(x.shape))


def test_short_requantization_is_refused_where_it_is_not_exact() -> None:
    m, one = np.array([1 << 30]), np.array([1])
    assert plan_requantize(m, np.array([0]), -one, one, 0, (-128, 127)).reason == "a shift is not to the right"
    far = np.array([1 << 30])
    assert "2^30" in plan_requantize(m, np.array([-4]), -far, far, 0, (-128, 127)).reason
    assert plan_requantize(m, np.array([-4]), -one, one, 0, (-128, 127)).short


@pytest.mark.parametrize("zero_out", [-128, 0, 55])
def test_short_form_equals_the_reference_at_every_step(zero_out: int) -> None:
    """h = (2 acc m + 2^31) / 2^32 + r, then (h + sign) >> e: as the kernels compute it, on every accumulator."""
    acc = np.arange(-40000, 40000, dtype=np.int64)
    for m, e in ((1 << 30, 1), (1518500250, 7), ((1 << 31) - 1, 9)):
        q = plan_requantize(np.array([m]), np.array([-e]), acc[:1], acc[-1:], zero_out, (-128, 127))
        _, addend, shift = (int(v) for v in q.table[0])
        h = ((2 * acc * m + (1 << 31)) >> 32) + addend + (acc >> 63 if q.sign else 0)
        want = reference(acc, np.full_like(acc, m), np.full_like(acc, -e), zero_out, (-128, 127))
        np.testing.assert_array_equal(np.clip(h >> shift, -128, 127), want)


def test_channels_of_constant_output_are_found() -> None:
    found, value = constant_channels(
        np.array([1 << 30, 1 << 30]),
        np.array([-31, -5]),
        np.array([1 << 30, -99]),
        np.array([1 << 30, 99]),
        3,
        (-128, 127),
    )
    assert found.tolist() == [True, False] and int(value[0]) == 3


def test_rules_ask_for_their_core() -> None:
    spec = element_wise("relu", 1, (1, 2, 4, 4), multiplier=1 << 30, shift=0)
    assert first_rule(spec, KernelTarget()) is None
    found = [first_rule(spec, kernel_target(name)) for name in ("cortex-m3", "riscv32")]
    assert [k.rule for k in found if k is not None] == ["cortex_m_scalar.elements", "riscv.elements"]
    vectors = first_rule(spec, kernel_target("cortex-m55", "obj"))
    assert vectors is not None and vectors.rule == "cortex_m_mve.elements"
    assert cortex_m_dsp.variants(spec, kernel_target("cortex-m4")) == []
    assert cortex_m_mve.variants(spec, kernel_target("cortex-m55", "c")) == []  # C has no vectors
    assert read_conv(spec) is None
