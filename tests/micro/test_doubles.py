"""`run --check` of quantized networks: outputs equal ONNX Runtime's, or the same in double precision, or differ by what elements
next to a tie explain; nothing else is granted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper

import tvm_cascade
from tvm_cascade.checking.check import Check
from tvm_cascade.checking.doubles import DoubleReference, Turn
from tvm_cascade.checking.onnx_reference import OnnxReference
from tvm_cascade.emit.image import read_image

_SHAPE = [1, 8, 6, 6]


def _layers(path: Path, count: int, bias: str = "", weights: int = 0, ties: bool = False) -> Path:
    """Write `count` quantized convolutions of bytes, with a bias that is stored, float, or none, and a stored output."""
    rng = np.random.default_rng(weights)
    step = 0.0625 if ties else 0.0473
    held: dict[str, Any] = {"s": np.float32(step), "z": np.int8(3), "zw": np.int8(0), "zb": np.int32(0)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["r0"])]
    for k in range(count):
        ratio = np.float32(2.0**-6 if ties else rng.uniform(0.012, 0.016))
        held |= {f"w{k}": rng.integers(-9, 10, (8, 8, 3, 3)).astype("int8"), f"sw{k}": ratio}
        held |= {f"b{k}": rng.integers(-300, 300, 8).astype("int32"), f"sb{k}": np.float32(step) * ratio}
        held[f"f{k}"] = (rng.uniform(-1, 1, 8)).astype("float32")
        nodes.append(helper.make_node("DequantizeLinear", [f"w{k}", f"sw{k}", "zw"], [f"rw{k}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"b{k}", f"sb{k}", "zb"], [f"rb{k}"]))
        operands = [f"r{k}", f"rw{k}", *({"stored": [f"rb{k}"], "float": [f"f{k}"]}.get(bias, []))]
        nodes.append(helper.make_node("Conv", operands, [f"c{k}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("QuantizeLinear", [f"c{k}", "s", "z"], [f"q{k}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"r{k + 1}"]))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.INT8, _SHAPE) for n in ("x", f"q{count - 1}")]
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes[:-1], "layers", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def _bytes_through(path: Path, node: Any, scale: float) -> None:
    """Write a network of one quantized operator, from "r" to "m", with equal scales."""
    held = {"s": np.float32(scale), "z": np.int8(0)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["r"]),
        node,
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.INT8, s) for n, s in (("x", _SHAPE), ("y", None))]
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def _bytes(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).integers(-128, 128, _SHAPE).astype("int8")}


@pytest.mark.usefixtures("quick_host")
def test_kernels_compute_what_double_precision_does(tmp_path: Path) -> None:
    """Of four layers the sums that float32 rounds otherwise are moved on; none is left in double precision."""
    path = _layers(tmp_path / "m.onnx", 4, "stored", ties=True)
    tvm_cascade.compile(path, target="host", output=tmp_path / "p")
    for seed in range(4):
        (made,) = tvm_cascade.run(tmp_path / "p", inputs=_bytes(seed)).outputs.values()
        (wide,) = DoubleReference(path, {}).run(_bytes(seed)).values()
        np.testing.assert_array_equal(made, wide)


class _Program:
    """A compiled network whose output is exchanged before it is checked."""

    def __init__(self, folder: Path, path: Path, seed: int = 0) -> None:
        if not folder.exists():
            tvm_cascade.compile(path, target="host", output=folder)
        self.folder, self.image, self.path, self.feed = folder, read_image(folder), path, _bytes(seed)
        ((self.name, self.own),) = tvm_cascade.run(folder, inputs=self.feed).outputs.items()

    def on(self, seed: int) -> _Program:
        return _Program(self.folder, self.path, seed)

    def turned(self) -> np.ndarray:
        turn = Turn(np.random.default_rng(0))
        return next(iter(DoubleReference(self.path, {}, turn).run(self.feed).values()))

    def verdict(self, output: np.ndarray) -> Any:
        return Check(self.image, self.path, [self.feed]).compare([{self.name: output}]).verdict


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize(("bias", "count"), [("stored", 1), ("stored", 3), ("", 1), ("", 3), ("float", 1)])
def test_a_step_away_from_ties_is_told(tmp_path: Path, bias: str, count: int) -> None:
    """A tenth of the elements is, with a bias in floats too, and a single one if nothing lies next to a tie."""
    program = _Program(tmp_path / "p", _layers(tmp_path / "m.onnx", count, bias))
    own = program.own
    assert program.verdict(own).match is True
    calm = np.flatnonzero((program.turned() == own) & (np.abs(own.astype(int)) < 100))
    moved = own.copy()
    moved.reshape(-1)[calm[:: len(calm) // 30]] += 1
    found = program.verdict(moved)
    assert found.match is False and found.differing >= 30 and found.elements == own.size
    if bias != "float" and count == 1:
        program = next(p for p in map(program.on, range(20)) if (p.turned() == p.own).all())
        alone = program.own.copy()
        alone.reshape(-1)[100] += 1
        found = program.verdict(alone)
        assert (found.match, found.gap, found.differing) == (False, 1.0, 1)


@pytest.mark.usefixtures("quick_host")
def test_halves_that_are_rounded_away_from_zero_are_told(tmp_path: Path) -> None:
    """Ties that floats compute exactly have one result."""
    held = {"s": np.float32(1 / 128), "z": np.int8(0)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    ends = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [256])]
    ends.append(helper.make_tensor_value_info("y", onnx.TensorProto.INT8, [256]))
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    tvm_cascade.compile(tmp_path / "m.onnx", target="host", output=tmp_path / "p")
    x = ((np.arange(256) - 128) / 256).astype("float32")
    image = read_image(tmp_path / "p")
    check = Check(image, tmp_path / "m.onnx", [{"x": x}])
    own = tvm_cascade.run(tmp_path / "p", inputs={"x": x}).outputs["y"]
    away = (np.sign(x) * np.floor(np.abs(x) * 128 + 0.5)).clip(-128, 127).astype("int8")
    assert check.compare([{"y": own}]).verdict.match is True
    assert (away != own).sum() == 64 and check.compare([{"y": away}]).verdict.match is False


@pytest.mark.usefixtures("quick_host")
def test_sums_that_float32_rounds_otherwise_are_no_difference(tmp_path: Path) -> None:
    """Means of four bytes lie at a tie once in four times; ONNX Runtime's sums of floats lie beside it."""
    path, feed = tmp_path / "m.onnx", _bytes(0)
    _bytes_through(path, helper.make_node("AveragePool", ["r"], ["m"], kernel_shape=[2, 2]), 0.1)
    (theirs,), (wide,) = OnnxReference(path).run(feed).values(), DoubleReference(path, {}).run(feed).values()
    assert (theirs != wide).any()
    tvm_cascade.compile(path, target="host", output=tmp_path / "p")
    report = tvm_cascade.run(tmp_path / "p", inputs=feed, check=path)
    assert report.match is True and report.verdict.startswith(
        "equal in double precision; the reference's float32 is up to "
    )
    assert json.loads(json.dumps(report.to_dict()))["max_abs_diff"] == np.abs(theirs.astype(int) - wide).max()


def test_elements_next_to_a_tie_are_turned_and_ties_are_not() -> None:
    steps = np.array([-1.5, 2.499999, 2.500001, 2.49, 126.500001, 100.0])
    turned = Turn(np.random.default_rng(0)).of(np.rint(steps).astype("int8"), steps)
    assert turned.tolist() == [-2, 3, 2, 2, 126, 100]
    slack = Turn(np.random.default_rng(0)).of(np.rint(steps).astype("int8"), steps, slack=0.02)
    assert slack.tolist() == [-2, 3, 2, 3, 126, 100]
    some = Turn(np.random.default_rng(0), 0.5).of(np.full(4000, 2, "int8"), np.full(4000, 2.499999))
    assert 1900 < int((some == 3).sum()) < 2100


def test_biases_in_floats_widen_the_distance_from_a_tie_by_half_a_step_of_the_sum(tmp_path: Path) -> None:
    from tvm_cascade.checking.doubles import _slacks
    from tvm_cascade.importers.onnx.file import read_model

    stored, floats = (_layers(tmp_path / f"{b}.onnx", 2, b) for b in ("stored", "float"))
    assert set(_slacks(read_model(stored).graph).values()) == {0.0}
    for slack in _slacks(read_model(floats).graph).values():
        assert 0.5 * 0.012 <= slack <= 0.5 * 0.016


def test_max_pools_of_unequal_pads_are_computed_right(tmp_path: Path) -> None:
    """ONNX's evaluator gives another shape, of steps by one pixel."""
    for pads in ([0, 0, 2, 0], [1, 0, 0, 1], [0, 0, 1, 1]):
        _bytes_through(
            tmp_path / "m.onnx", helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[3, 3], pads=pads), 0.5
        )
        (theirs,) = OnnxReference(tmp_path / "m.onnx").run(_bytes(0)).values()
        (wide,) = DoubleReference(tmp_path / "m.onnx", {}).run(_bytes(0)).values()
        np.testing.assert_array_equal(theirs, wide)
