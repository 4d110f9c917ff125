"""Float kernels for cores with a floating-point unit: the bits of the generic kernels, in few instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as _relax

from tvm_cascade import api
from tvm_cascade.cores import kernel_target
from tvm_cascade.pipeline import prepare
from tvm_cascade.runs.arrays import load_arrays
from tvm_cascade.schedules.kernels.kernel import Role, RowKernel
from tvm_cascade.schedules.rules.select import variants_of
from tvm_cascade.testing.builder import Net, Value
from tvm_cascade.testing.c_kernel import CKernel

relax: Any = _relax


def shifted(net: Net, x: Value) -> Value:
    """The sum with one number, which is the bias of all channels."""
    return Value(net._emit(relax.op.add(x.expr, relax.const(0.5, "float32"))), x.shape)


LAYERS: dict[str, tuple[Callable[[Net, Value], Value], float]] = {  # and the instructions per multiply-accumulate
    "3x3": (lambda n, x: n.conv(x, 24, 3, activation="relu"), 2.2),
    "3x3 stride": (lambda n, x: n.conv(x, 13, 3, 2, activation="relu6"), 2.7),
    "1x1": (lambda n, x: n.conv(x, 32, 1, activation="relu"), 2.3),
    "dilated": (lambda n, x: n.conv(x, 8, 3, dilation=2, bias=False), 3.0),
    "depthwise": (lambda n, x: n.depthwise(x, 3, activation="relu"), 4.5),
    "multiplier": (lambda n, x: n.depthwise(x, 3, 2, multiplier=2), 4.5),
    "dense": (lambda n, x: n.dense(n.flatten(x), 10), 2.7),
    "single bias": (lambda n, x: shifted(n, n.conv(x, 8, 3, bias=False)), 2.7),
}
SHAPE = (1, 11, 13, 16)


def network(name: str) -> object:
    net = Net("float32", seed=4)
    return net.finish(LAYERS[name][0](net, net.input(SHAPE)))


def rows_of(
    kernel: RowKernel, folder: Path, x: np.ndarray, shape: tuple[int, ...], first: Callable[[int], int]
) -> np.ndarray:
    """All rows of a map of `shape`, of an input that is whole in memory; row `first(y)` is the first of the window."""
    folder.mkdir()
    library, out = CKernel(kernel, folder), np.full(shape, np.nan, np.float32)
    rows = out.reshape(1, -1) if kernel.whole or len(shape) < 4 else out[0]
    height = x.shape[1] if len(x.shape) == 4 else 1
    for y, row in enumerate(rows):
        slots = {Role.SLOT: [first(y) % height], Role.SLOTS: [height]}
        library(y, {Role.INPUT: [x], Role.OUTPUT: [row], **slots})
    return out


@pytest.mark.parametrize("name", LAYERS)
def test_every_variant_computes_the_generic_kernel(name: str, tmp_path: Path) -> None:
    target = kernel_target("cortex-m4", "c")
    made = prepare(network(name), target)  # type: ignore[arg-type]
    (op,) = (o for o in made.graph.ops if not o.view)
    computed = made.extracted.operators[op.index]
    assert computed is not None
    shapes = [made.graph.tensors[t].shape for t in (op.inputs[0], op.outputs[0])]
    x = np.random.default_rng(1).standard_normal(shapes[0]).astype(np.float32)
    window = op.windows[0]

    def first(y: int) -> int:
        return 0 if window is None else window.first(y)

    variants = variants_of(computed.spec, target)
    assert len(variants) > 3 and all(v.name.startswith("float_fpu.") for v in variants)
    kernels = [computed.kernel, *(v.make() for v in variants)]
    want, *every = (rows_of(k, tmp_path / str(i), x, shapes[1], first) for i, k in enumerate(kernels))
    for variant, have in zip(variants, every, strict=True):
        np.testing.assert_array_equal(have, want, err_msg=variant.name)


@pytest.mark.emulator
@pytest.mark.usefixtures("emulator", "quick_host")
@pytest.mark.parametrize(
    ("core", "name", "most"),
    [
        *(("cortex-m4", name, LAYERS[name][1]) for name in ("3x3", "1x1", "depthwise", "dense")),
        ("cortex-m55", "3x3", 0.9),
        ("cortex-m55", "3x3 stride", 2.0),  # 13 channels are no multiple of four
        ("cortex-m55", "1x1", 0.9),
        ("cortex-m55", "dilated", 1.1),
        ("cortex-m55", "depthwise", 1.2),
        ("cortex-m55", "multiplier", 4.0),
    ],
)
def test_instructions_and_bits(core: str, name: str, most: float, tmp_path: Path) -> None:
    api.compile(network(name), target=core, output=tmp_path / "p")  # type: ignore[arg-type]
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    boards = [
        api.run(tmp_path / "p", board=board, inputs={"input0": x}, outputs=tmp_path / f"{board or 'own'}.npz")
        for board in (None, "host")
    ]
    have, want = (load_arrays(tmp_path / f"{b}.npz") for b in ("own", "host"))
    for key in want:  # LLVM joins products and sums, which are rounded once then
        np.testing.assert_allclose(have[key], want[key], rtol=0.0, atol=4e-6 if core == "cortex-m55" else 0.0)
    instructions = boards[0].instructions
    assert instructions is not None and instructions / boards[0].planned_macs <= most


@pytest.mark.emulator
@pytest.mark.usefixtures("emulator", "quick_host")
def test_products_of_generic_kernels_are_one_instruction_each(tmp_path: Path) -> None:
    """Products of two batches have no kernel of their own; each of their sums is rounded as C99 has it."""
    relax: Any = tvm.relax
    builder = relax.BlockBuilder()
    shapes = ((2, 9, 31), (2, 31, 17))
    given = [relax.Var(f"input{k}", relax.TensorType(shape, "float32")) for k, shape in enumerate(shapes)]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(*given))
        builder.emit_func_output(result)
    api.compile(builder.finalize(), target="cortex-m4", output=tmp_path / "p")
    assert "= tc_mlaf(" in (tmp_path / "p" / "network.c").read_text()
    rng = np.random.default_rng(1)
    feed = {f"input{k}": rng.standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)}
    own, host = (tmp_path / f"{n}.npz" for n in ("own", "host"))
    ran = api.run(tmp_path / "p", inputs=feed, outputs=own)
    api.run(tmp_path / "p", board="host", inputs=feed, outputs=host)
    for have, want in zip(load_arrays(own).values(), load_arrays(host).values(), strict=True):
        np.testing.assert_array_equal(have, want)
    assert ran.instructions is not None and ran.instructions / ran.planned_macs <= 7.5


POOLS: dict[str, Callable[[Net, Value], Value]] = {
    "apart": lambda n, x: n.max_pool(x, 2),
    "overlapping": lambda n, x: n.max_pool(x, 3, 1, padding="same"),
    "wide": lambda n, x: n.max_pool(x, (5, 4), (2, 3)),
    "average": lambda n, x: n.avg_pool(x, 3, 1, padding="same"),
    "average of strides": lambda n, x: n.avg_pool(x, (5, 4), (2, 3), padding="same"),
    "average of whole windows": lambda n, x: n.avg_pool(x, 2),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_compute_the_generic_kernel(name: str, tmp_path: Path) -> None:
    net = Net("float32", seed=4)
    made = prepare(net.finish(POOLS[name](net, net.input(SHAPE))), kernel_target("cortex-m4", "c"))
    (op,) = made.graph.ops
    computed, window = made.extracted.operators[op.index], op.windows[0]
    assert computed is not None and window is not None
    (variant,) = variants_of(computed.spec, kernel_target("cortex-m4", "c"))
    assert variant.name == "float_pool.channels"
    vectors = variants_of(computed.spec, kernel_target("cortex-m55", "obj"))
    assert [v.name for v in vectors] == ["float_pool.vectors", "float_pool.channels"]
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    shape = made.graph.tensors[op.outputs[0]].shape
    kernels = (computed.kernel, variant.make())
    want, have = (rows_of(k, tmp_path / str(i), x, shape, window.first) for i, k in enumerate(kernels))
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize(
    ("size", "window", "stride"), [((1, 1), 3, 1), ((2, 2), 5, 2), ((6, 1), (1, 3), 1), ((1, 7), (3, 1), 2)]
)
def test_averages_with_a_single_cut(core: str, size: tuple[int, int], window: Any, stride: int, tmp_path: Path) -> None:
    """Maps smaller than their window: all windows lose as many elements to the padding, which does not count."""
    net, target, shape = Net("float32", seed=4), kernel_target(core, "c"), (1, *size, 8)
    made = prepare(net.finish(net.avg_pool(net.input(shape), window, stride, padding="same")), target)
    (op,) = made.graph.ops
    computed, read = made.extracted.operators[op.index], op.windows[0]
    assert computed is not None and read is not None
    (variant,) = [v for v in variants_of(computed.spec, target) if v.name == "float_pool.channels"]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    out = made.graph.tensors[op.outputs[0]].shape
    kernels = (computed.kernel, variant.make())
    want, have = (rows_of(k, tmp_path / str(i), x, out, read.first) for i, k in enumerate(kernels))
    np.testing.assert_array_equal(have, want)
    if size != (2, 2):
        np.testing.assert_array_equal(have, x[:, :, :: stride if size[1] > 1 else 1])


@pytest.mark.emulator
@pytest.mark.usefixtures("emulator", "quick_host")
@pytest.mark.parametrize(
    ("core", "pool", "most"),
    [
        ("cortex-m4", "overlapping", 155_000),
        ("cortex-m55", "overlapping", 25_000),
        ("cortex-m4", "average", 80_000),
        ("cortex-m55", "average", 35_000),
    ],
)
def test_instructions_and_bits_of_pools(core: str, pool: str, most: int, tmp_path: Path) -> None:
    net = Net("float32", seed=4)
    api.compile(net.finish(POOLS[pool](net, net.input(SHAPE))), target=core, output=tmp_path / "p")
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    boards = {
        b: api.run(tmp_path / "p", board=b, inputs={"input0": x}, outputs=tmp_path / f"{b}.npz") for b in (None, "host")
    }
    have, want = (load_arrays(tmp_path / f"{b}.npz") for b in boards)
    for key in want:
        np.testing.assert_array_equal(have[key], want[key])
    assert (boards[None].instructions or most) < most
