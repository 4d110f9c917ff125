"""Products of two float activations in the emulator, by rows and by pixels, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

from tvm_cascade import api

PRODUCTS = [  # shapes of both operands
    ((1, 4, 6, 8), (1, 4, 8, 12)),
    ((1, 3, 5, 7), (1, 3, 7, 9)),  # a row and a column that fill no block
    ((1, 2, 9, 4), (1, 2, 4, 3)),  # no vector of columns
    ((1, 5, 6), (1, 6, 10)),
    ((1, 4, 3, 5), (1, 1, 5, 8)),  # one right operand for all
    ((1, 1, 1, 3), (1, 1, 3, 5)),
    ((2, 3, 4, 5), (2, 3, 5, 4)),  # two images: the generic kernel's
    ((6, 5), (5, 7)),
]


def model(path: Path, pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Write a network of products side by side; return the shapes of its inputs by name."""
    shapes = {f"{side}{k}": shape for k, pair in enumerate(pairs) for side, shape in zip("ab", pair, strict=True)}
    nodes = [helper.make_node("MatMul", [f"a{k}", f"b{k}"], [f"y{k}"]) for k in range(len(pairs))]
    made = [(*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]) for a, b in pairs]
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in named.items()]
        for named in (shapes, {f"y{k}": s for k, s in enumerate(made)})
    ]
    graph = helper.make_graph(nodes, "products", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return shapes


@pytest.mark.parametrize("granularity", ["row", "pixel"])
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
@pytest.mark.usefixtures("emulator")
def test_products_in_the_emulator(core: str, granularity: str, tmp_path: Path) -> None:
    shapes = model(tmp_path / "products.onnx", PRODUCTS)
    api.compile(tmp_path / "products.onnx", target=core, granularity=granularity, output=tmp_path / "firmware")
    rng = np.random.default_rng(3)
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    api.run(tmp_path / "firmware", inputs=given, outputs=tmp_path / "made.npz")
    outputs = np.load(tmp_path / "made.npz")
    for k in range(len(PRODUCTS)):
        want = np.matmul(given[f"a{k}"].astype(np.float64), given[f"b{k}"])
        np.testing.assert_allclose(outputs[f"y{k}"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("core", "most"), [("cortex-m4", 3.5), ("cortex-m55", 1.2)])
@pytest.mark.usefixtures("emulator")
def test_instructions_of_a_product_of_attention(core: str, most: float, tmp_path: Path) -> None:
    shapes = model(tmp_path / "products.onnx", [((1, 4, 32, 16), (1, 4, 16, 32))])
    api.compile(tmp_path / "products.onnx", target=core, output=tmp_path / "firmware")
    given = {n: np.ones(s, np.float32) for n, s in shapes.items()}
    assert (api.run(tmp_path / "firmware", inputs=given).instructions or 0) <= most * 4 * 32 * 16 * 32
