"""Blocks of transformers, as exporters to ONNX write them: projections of one input merge, results stay, stages are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import api, frontend
from tvm_cascade.optimizing.module import optimize_module
from tvm_cascade.testing.quick_build import QUICK_TARGET

onnx = pytest.importorskip("onnx")
LENGTH, WIDTH, HEADS, HIDDEN = 24, 32, 4, 64
HEAD = WIDTH // HEADS


class Writer:
    """Appends nodes to an ONNX graph; `Writer.weight` draws weights, `Writer.node` returns the names of outputs."""

    def __init__(self) -> None:
        self.nodes, self.initializers, self.random = [], [], np.random.default_rng(0)

    def constant(self, value: np.ndarray) -> str:
        self.initializers.append(onnx.numpy_helper.from_array(value, f"c{len(self.initializers)}"))
        return self.initializers[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) / np.sqrt(shape[0])).astype("float32"))

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object):
        made = [f"t{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, inputs, made, **attributes))
        return made[0] if outputs == 1 else made

    def product(self, x: str, rows: int, columns: int) -> str:
        return self.node("MatMul", x, self.weight(rows, columns))

    def shaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape)))

    def save(self, path: Path, y: str) -> Path:
        tensor = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, LENGTH, WIDTH]) for n in ("x", y)]
        graph = onnx.helper.make_graph(self.nodes, "block", tensor[:1], tensor[1:], self.initializers)
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def attention(g: Writer, x: str, rotate: Callable[[str], str] = lambda q: q) -> str:
    """Multi-head attention with three projections of `x`."""
    shape = g.constant(np.array([1, LENGTH, HEADS, HEAD]))
    q, k, v = (
        g.node("Transpose", g.node("Reshape", g.product(x, WIDTH, WIDTH), shape), perm=[0, 2, 1, 3]) for _ in range(3)
    )
    scores = g.node("MatMul", rotate(q), g.node("Transpose", rotate(k), perm=[0, 1, 3, 2]))
    weights = g.node("Softmax", g.node("Div", scores, g.constant(np.float32([np.sqrt(HEAD)]))), axis=-1)
    joined = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    return g.product(g.node("Reshape", joined, g.constant(np.array([1, LENGTH, WIDTH]))), WIDTH, WIDTH)


def rotary(g: Writer) -> Callable[[str], str]:
    """Rotary position embedding of both halves of a head."""
    angles = np.arange(LENGTH)[:, None] / 10 ** (np.arange(HEAD // 2) / HEAD)
    cos, sin = (g.constant(f(angles).astype("float32")) for f in (np.cos, np.sin))
    half = g.constant(np.array([HEAD // 2, HEAD // 2]))

    def rotate(x: str) -> str:
        a, b = g.node("Split", x, half, outputs=2, axis=3)
        left = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
        return g.node("Concat", left, g.node("Add", g.node("Mul", a, sin), g.node("Mul", b, cos)), axis=3)

    return rotate


def rms_norm(g: Writer, x: str) -> str:
    mean = g.node("ReduceMean", g.node("Mul", x, x), axes=[-1], keepdims=1)
    root = g.node("Sqrt", g.node("Add", mean, g.constant(np.float32([1e-6]))))
    return g.node("Mul", g.node("Div", x, root), g.weight(WIDTH))


def swiglu(g: Writer, x: str) -> str:
    gate, up = g.product(x, WIDTH, HIDDEN), g.product(x, WIDTH, HIDDEN)
    return g.product(g.node("Mul", g.node("Mul", gate, g.node("Sigmoid", gate)), up), HIDDEN, WIDTH)


def gelu(g: Writer, x: str) -> str:
    erf = g.node("Erf", g.node("Div", x, g.constant(np.float32([np.sqrt(2)]))))
    return g.node(
        "Mul", g.node("Mul", x, g.node("Add", erf, g.constant(np.float32([1])))), g.constant(np.float32([0.5]))
    )


def vision(g: Writer) -> str:
    """A block of a vision transformer: layer norms, attention, two dense layers with a GELU."""
    norm = lambda x: g.node("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH), axis=-1)  # noqa: E731
    y = g.node("Add", "x", attention(g, norm("x")))
    z = g.node("Add", g.product(norm(y), WIDTH, HIDDEN), g.weight(HIDDEN))
    return g.node("Add", y, g.product(gelu(g, z), HIDDEN, WIDTH))


def decoder(g: Writer) -> str:
    """A block of a language model: root-mean-square norms, rotary attention, a gated dense layer."""
    y = g.node("Add", "x", attention(g, rms_norm(g, "x"), rotary(g)))
    return g.node("Add", y, swiglu(g, rms_norm(g, y)))


def experts(g: Writer) -> str:
    """A mixture of four experts that are all computed, weighted by a softmax of gates."""
    x = rms_norm(g, "x")
    gates = g.node("Softmax", g.product(x, WIDTH, 4), axis=-1)
    total = "x"
    for gate in g.node("Split", gates, g.constant(np.array([1] * 4)), outputs=4, axis=2):
        total = g.node("Add", total, g.node("Mul", swiglu(g, x), gate))
    return total


ROWS, COLUMNS, WINDOW = 6, 4, 2  # of the map of 24 positions, and of a window, on both axes


def rolled(g: Writer, x: str, by: int) -> str:
    """`x` [1, rows, columns, channels] moved round by `by` rows and columns, as `torch.roll` is exported."""
    for axis, extent in ((1, ROWS), (2, COLUMNS)):
        at, end, zero, along = (g.constant(np.array([v])) for v in (-by % extent, extent, 0, axis))
        x = g.node("Concat", g.node("Slice", x, at, end, along), g.node("Slice", x, zero, at, along), axis=axis)
    return x


def windowed(g: Writer, x: str, back: bool = False) -> str:
    """The windows of a map, [windows, positions, channels], or `back` from them to the map."""
    high, wide = ROWS // WINDOW, COLUMNS // WINDOW
    split = (1, high, wide, WINDOW, WINDOW, WIDTH) if back else (1, high, WINDOW, wide, WINDOW, WIDTH)
    moved = g.node("Transpose", g.shaped(x, *split), perm=[0, 1, 3, 2, 4, 5])
    return g.shaped(moved, *((1, ROWS, COLUMNS, WIDTH) if back else (high * wide, WINDOW**2, WIDTH)))


def window_attention(g: Writer, x: str) -> str:
    """Attention inside of windows: one product for q, k and v, a bias by relative position, and a mask of shifted windows."""
    count, size = ROWS * COLUMNS // WINDOW**2, WINDOW**2
    qkv = g.node("Add", g.product(x, WIDTH, 3 * WIDTH), g.weight(3 * WIDTH))
    parts = g.node("Transpose", g.shaped(qkv, count, size, 3, HEADS, HEAD), perm=[2, 0, 3, 1, 4])
    q, k, v = (g.node("Gather", parts, g.constant(np.array(i)), axis=0) for i in range(3))
    q = g.node("Mul", q, g.constant(np.float32(HEAD**-0.5)))
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    at = np.arange(size)
    relative = (at[:, None] // WINDOW - at // WINDOW + 1) * 3 + at[:, None] % WINDOW - at % WINDOW + 1
    table = g.random.standard_normal((HEADS, 9)).astype("float32")
    scores = g.node("Add", scores, g.constant(table[None, :, relative]))
    region = g.random.integers(0, 2, (count, size))
    mask = np.where(region[:, :, None] == region[:, None], 0, -100).astype("float32")
    masked = g.node("Add", g.shaped(scores, 1, count, HEADS, size, size), g.constant(mask[None, :, None]))
    weights = g.node("Softmax", g.shaped(masked, count, HEADS, size, size), axis=-1)
    joined = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    return g.product(g.shaped(joined, count, size, WIDTH), WIDTH, WIDTH)


def shifted_windows(g: Writer) -> str:
    """A block of a Swin transformer with shifted windows (Liu et al., ICCV 2021, section 3.2)."""
    norm = lambda x: g.node("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH), axis=-1)  # noqa: E731
    image = g.shaped(norm("x"), 1, ROWS, COLUMNS, WIDTH)
    inside = window_attention(g, windowed(g, rolled(g, image, -(WINDOW // 2))))
    back = rolled(g, windowed(g, inside, back=True), WINDOW // 2)
    y = g.node("Add", "x", g.shaped(back, 1, LENGTH, WIDTH))
    return g.node("Add", y, g.product(gelu(g, g.product(norm(y), WIDTH, HIDDEN)), HIDDEN, WIDTH))


@pytest.mark.parametrize(
    ("block", "before", "after"), [(vision, 8, 6), (decoder, 9, 6), (experts, 13, 2), (shifted_windows, 6, 6)]
)
def test_projections_of_one_input_merge(tmp_path: Path, block: Callable[[Writer], str], before: int, after: int):
    g = Writer()
    path = g.save(tmp_path / "block.onnx", block(g))
    mod = frontend.load(path)
    done = optimize_module(mod, "cuda")

    def products(dag) -> int:
        return sum(n.kind in ("matmul", "dense") for n in dag.nodes)

    assert (products(done.read.dag), products(done.result.dag)) == (before, after)
    x = tvm.runtime.tensor(np.random.default_rng(1).standard_normal((1, LENGTH, WIDTH)).astype("float32"))
    old, new = (
        relax.VirtualMachine(tvm.compile(m, target=QUICK_TARGET), tvm.cpu())["main"](x).numpy() for m in (mod, done.mod)
    )
    np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)
    staged, _ = api.stages(path, target="cuda", time_limit=20)
    if after < before:
        assert staged["cost_ms"] < staged["sequential_ms"]
    else:  # attention takes the parts of one product where they lie: nothing is left to run beside
        assert staged["cost_ms"] <= staged["sequential_ms"]
