"""ONNX's Scan, and Loop of known steps, as one operator that runs its body in every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_cascade.cores import KernelTarget, get_core
from tvm_cascade.frontend import load
from tvm_cascade.importers.onnx.scans import is_kept, kept
from tvm_cascade.passes.candidates.candidate import PlannedCandidate
from tvm_cascade.passes.executed_plan import check_executed
from tvm_cascade.passes.lower_quantized import lowered
from tvm_cascade.passes.plan_network import plan_network
from tvm_cascade.request import PlanRequest
from tvm_cascade.schedules.driver.lower_plan import lower_plan
from tvm_cascade.schedules.forms.scan import ScanSteps
from tvm_cascade.schedules.tuning.code_size import code_bytes
from tvm_cascade.testing.reference import Compiled

DEPTH, UNITS = 5, 8
_VALUE = helper.make_tensor_value_info
_RNG = np.random.default_rng(0)
_WEIGHTS = {
    name: (_RNG.standard_normal(shape) * 0.3).astype("float32")
    for name, shape in {"wz": (DEPTH, UNITS), "uz": (UNITS, UNITS), "wn": (DEPTH, UNITS), "un": (UNITS, UNITS)}.items()
}


def _cell() -> list[Any]:
    """A gated cell: `hn = n + z (h - n)` with `z = sigmoid(xt wz + h uz)` and `n = tanh(xt wn + h un)`; `y` is `hn` too."""
    nodes = [
        *(
            ("MatMul", ["xt", "wz"], "a"),
            ("MatMul", ["h", "uz"], "b"),
            ("Add", ["a", "b"], "c"),
            ("Sigmoid", ["c"], "z"),
        ),
        *(("MatMul", ["xt", "wn"], "d"), ("MatMul", ["h", "un"], "e"), ("Add", ["d", "e"], "f"), ("Tanh", ["f"], "n")),
        *(("Sub", ["h", "n"], "g"), ("Mul", ["z", "g"], "k"), ("Add", ["n", "k"], "hn"), ("Neg", ["hn"], "y")),
    ]
    return [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes]


def _numpy(x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last state and `y` of every step of `x`."""
    made = []
    for row in x:
        z = 1 / (1 + np.exp(-(row @ _WEIGHTS["wz"] + h @ _WEIGHTS["uz"])))
        n = np.tanh(row @ _WEIGHTS["wn"] + h @ _WEIGHTS["un"])
        h = n + z * (h - n)
        made.append(-h)
    return h, np.stack(made)


def _model(kind: str, steps: int, ends: list[Any], outputs: list[str], axis: int = 0, **attributes: Any) -> Any:
    """A network of a Scan or a Loop with the results `hl` (the last state) and `ys` (all steps), then the nodes `ends`."""
    shape = [1, DEPTH]
    shape.insert(axis, steps)
    states = [_VALUE("h", 1, (1, UNITS)), _VALUE("hn", 1, (1, UNITS)), _VALUE("y", 1, (1, UNITS))]
    if kind == "Loop":
        nodes = [
            helper.make_node("Gather", ["x", "i"], ["xt"], axis=0),
            *_cell(),
            helper.make_node("Identity", ["on"], ["goes"]),
        ]
        given = [_VALUE("i", TensorProto.INT64, ()), _VALUE("on", TensorProto.BOOL, ()), states[0]]
        body = helper.make_graph(nodes, "body", given, [_VALUE("goes", TensorProto.BOOL, ()), *states[1:]])
        node = helper.make_node("Loop", ["trips", "true", "h0"], ["hl", "ys"], body=body)
    else:
        body = helper.make_graph(_cell(), "body", [states[0], _VALUE("xt", 1, (1, DEPTH))], states[1:])
        node = helper.make_node("Scan", ["h0", "x"], ["hl", "ys"], body=body, num_scan_inputs=1, **attributes)
    held = {**_WEIGHTS, "trips": np.array(steps), "true": np.array(True), "last": np.array(-1), "tail": np.array([-1])}
    held |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "sizes": np.array([steps - 1, 1])}
    held |= {"before": np.array([-2]), "end": np.array([1 << 31])}
    inputs = [_VALUE("x", 1, shape), _VALUE("h0", 1, (1, UNITS))]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    weights = [numpy_helper.from_array(a, name) for name, a in held.items()]
    graph = helper.make_graph([node, *ends], "g", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _inputs(steps: int, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    shape = [1, DEPTH]
    shape.insert(axis, steps)
    return tuple(_RNG.standard_normal(s).astype("float32") for s in (shape, (1, UNITS)))


def _planned(path: Path, core: str = "cortex-m4") -> PlannedCandidate:
    """The plan of a file whose kernels were run beside the network's definition."""
    made = plan_network(lowered(load(path)), PlanRequest(), KernelTarget(get_core(core)))
    check_executed(made.prepared, made.plan)
    return made


@pytest.mark.parametrize("kind", ["Scan", "Loop"])
def test_is_one_operator_that_computes_every_step(tmp_path: Path, kind: str) -> None:
    onnx.save(_model(kind, 6, [], ["hl", "ys"]), path := tmp_path / "n.onnx")
    x, h = _inputs(6)
    for made, expected in zip(Compiled(load(path))(x, h), _numpy(x, h), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    for core in ("host", "cortex-m4", "cortex-m55"):
        planned = _planned(path, core)
        assert [op.kind for op in planned.prepared.graph.ops] == ["scan"]
        assert planned.plan.macs == 6 * 2 * (DEPTH + UNITS) * UNITS


@pytest.mark.parametrize("kind", ["Scan", "Loop"])
def test_code_and_scratch_are_independent_of_the_steps(tmp_path: Path, kind: str) -> None:
    sizes = []
    for steps in (4, 400):
        onnx.save(_model(kind, steps, [], ["hl"]), path := tmp_path / f"{steps}.onnx")
        made = _planned(path)
        kernels = made.prepared.kernels_of(made.plan)
        code = code_bytes(made.plan, kernels, get_core("cortex-m4"))
        sizes.append((code, made.plan.peak - 4 * steps * DEPTH, len(made.prepared.graph.ops)))
    assert sizes[0] == sizes[1]


def test_more_scratch_than_planned_lies_behind_the_arena(tmp_path: Path) -> None:
    """As where the host computes a body by other kernels than the board that was planned for."""
    onnx.save(_model("Scan", 4, [], ["hl"]), path := tmp_path / "n.onnx")
    made = _planned(path)
    (kernel,) = made.prepared.kernels_of(made.plan)
    assert isinstance(kernel, ScanSteps) and lower_plan(made.plan, [kernel]).spare_bytes == 0
    larger = replace(kernel, body=replace(kernel.body, peak=kernel.body.peak + 64))
    assert lower_plan(made.plan, [larger]).spare_bytes >= kernel.body.peak + 64


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("back", [0, 1])
def test_axes_and_directions(tmp_path: Path, axis: int, back: int) -> None:
    attributes = {"scan_input_axes": [axis], "scan_output_axes": [axis], "scan_input_directions": [back]}
    model = _model("Scan", 6, [], ["hl", "ys"], axis, **attributes, scan_output_directions=[1 - back])
    onnx.save(model, path := tmp_path / "n.onnx")
    x, h = _inputs(6, axis)
    rows = np.moveaxis(x, axis, 0)
    state, every = _numpy(rows[::-1] if back else rows, h)
    made = Compiled(load(path))(x, h)
    np.testing.assert_allclose(made[0], state, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made[1], np.moveaxis(every if back else every[::-1], 0, axis), rtol=1e-5, atol=1e-5)
    _planned(path)


_LAST = {
    "take": [("Gather", ["ys", "last"], {"axis": 0})],
    "take of a tail": [("Gather", ["ys", "tail"], {"axis": 0})],
    "slice": [("Slice", ["ys", "tail", "end", "zero"], {})],
    "backward slice": [("Slice", ["ys", "tail", "before", "zero", "tail"], {})],
    "split": [("Split", ["ys", "sizes"], {"axis": 0})],
    "moved": [
        ("Transpose", ["ys"], {"perm": [2, 0, 1]}),
        ("Squeeze", ["t1", "two"], {}),
        ("Slice", ["t2", "tail", "end", "one"], {}),
    ],
}


@pytest.mark.parametrize("ends", _LAST)
@pytest.mark.parametrize("back", [0, 1])
def test_keeps_the_last_step_where_it_alone_is_read(tmp_path: Path, ends: str, back: int) -> None:
    """Whatever moves it. Of a result that is stacked backward, the last row is the first step's, and all rows are kept."""
    peaks = []
    for steps in (10, 40):
        nodes, name = [], "ys"
        for k, (kind, inputs, attributes) in enumerate(_LAST[ends], 1):
            outputs = ["front", f"t{k}"] if kind == "Split" else [f"t{k}"]
            nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
            name = f"t{k}"
        nodes.append(helper.make_node("Neg", [name], ["out"]))
        attributes = {"scan_output_directions": [back]}
        onnx.save(_model("Scan", steps, nodes, ["out"], **attributes), path := tmp_path / "n.onnx")
        x, h = _inputs(steps)
        (made,) = Compiled(load(path))(x, h)
        expected = _numpy(x, h)[1][0 if back else -1]
        np.testing.assert_allclose(made.reshape(1, UNITS), -expected, rtol=1e-5, atol=1e-5)
        peaks.append(_planned(path).plan.peak - 4 * steps * DEPTH)
    assert (peaks[0] == peaks[1]) != back


def test_values_and_the_number_of_the_step_are_given_to_the_body(tmp_path: Path) -> None:
    """`h` grows by `v + step` in each of 5 steps; `v` is computed outside."""
    nodes = [
        helper.make_node("Cast", ["i"], ["step"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["v", "step"], ["s"]),
        helper.make_node("Add", ["h", "s"], ["hn"]),
        helper.make_node("Identity", ["on"], ["goes"]),
    ]
    scalars = [_VALUE("i", TensorProto.INT64, ()), _VALUE("on", TensorProto.BOOL, ())]
    state = [_VALUE(name, 1, (1, UNITS)) for name in ("h", "hn")]
    body = helper.make_graph(nodes, "b", [*scalars, state[0]], [_VALUE("goes", TensorProto.BOOL, ()), state[1]])
    outer = [
        helper.make_node("Abs", ["x"], ["v"]),
        helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body),
    ]
    given = [_VALUE("x", 1, (1, UNITS))]
    trips = numpy_helper.from_array(np.array(5), "trips")
    graph = helper.make_graph(outer, "g", given, [_VALUE("y", 1, (1, UNITS))], [trips])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path := tmp_path / "n.onnx")
    x = _RNG.standard_normal((1, UNITS)).astype("float32")
    np.testing.assert_allclose(Compiled(load(path))(x)[0], x + 5 * np.abs(x) + 10, rtol=1e-5, atol=1e-5)
    kinds = [op.kind for op in _planned(path).prepared.graph.ops]
    assert kinds.count("scan") == 1


def test_steps_are_written_out_on_demand(tmp_path: Path) -> None:
    model = _model("Scan", 6, [], ["hl", "ys"])
    made = kept(model, {"x": (6, 1, DEPTH), "h0": (1, UNITS)}, 0)
    assert made is not None
    assert is_kept(made.graph.node[0])
    onnx.save(model, path := tmp_path / "n.onnx")
    x, h = _inputs(6)
    one, other = (Compiled(load(path, unrolled=unrolled))(x, h) for unrolled in (False, True))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


_SCALES = {"xt": 0.0312137, "h": 0.00787331, "a": 0.0303127, "b": 0.0203971, "c": 0.0407193, "hn": 0.00787331}


def _quantized(steps: int, ends: list[Any]) -> Any:
    """A network of quantized operators: `hn = tanh(xt wn + h un)` in each step of a Scan, with results `hl` and `ys`."""
    held: dict[str, np.ndarray] = {"h0": np.zeros((1, UNITS), "float32"), "last": np.array(-1)}
    nodes, now = [], dict[str, str]()

    def stored(name: str) -> None:
        held.update({f"{name}_s": np.float32(_SCALES[name]), f"{name}_z": np.int8(0)})
        ends_of = [f"{name}_s", f"{name}_z"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *ends_of], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *ends_of], [f"{name}_d"]))
        now[name] = f"{name}_d"

    for name in ("wn", "un"):
        scale = np.float32(np.abs(_WEIGHTS[name]).max() / 127)
        values = np.rint(_WEIGHTS[name] / scale).astype("int8")
        held |= {f"{name}_q": values, f"{name}_s": scale, f"{name}_z": np.int8(0)}
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name]))
    stored("xt")
    stored("h")
    operators = [
        ("MatMul", ["xt", "wn"], "a"),
        ("MatMul", ["h", "un"], "b"),
        ("Add", ["a", "b"], "c"),
        ("Tanh", ["c"], "hn"),
    ]
    for kind, inputs, output in operators:
        nodes.append(helper.make_node(kind, [now.get(i, i) for i in inputs], [output]))
        stored(output)
    nodes.append(helper.make_node("Identity", ["hn_d"], ["y"]))
    float_values = [_VALUE(name, 1, (1, n)) for name, n in (("h", UNITS), ("xt", DEPTH), ("hn_d", UNITS), ("y", UNITS))]
    body = helper.make_graph(nodes, "body", float_values[:2], float_values[2:])
    outer = [
        helper.make_node("QuantizeLinear", ["x", "xt_s", "xt_z"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "xt_s", "xt_z"], ["x_d"]),
        helper.make_node("Scan", ["h0", "x_d"], ["hl", "ys"], body=body, num_scan_inputs=1),
        *ends,
    ]
    outputs = [helper.make_value_info("out", onnx.TypeProto())]
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(outer, "g", [_VALUE("x", 1, (steps, 1, DEPTH))], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("last", [False, True])
def test_stored_integers_are_passed_on(tmp_path: Path, last: bool) -> None:
    """States, parts and results of a quantized body are bytes, and what is computed equals ONNX Runtime's bit for bit."""
    ort = pytest.importorskip("onnxruntime")
    node = ("Gather", ["ys", "last"]) if last else ("Identity", ["ys"])
    model = _quantized(9, [helper.make_node(*node, ["out"], **({"axis": 0} if last else {}))])
    onnx.save(model, path := tmp_path / "n.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = _RNG.standard_normal((9, 1, DEPTH)).astype("float32")
    np.testing.assert_array_equal(Compiled(lowered(load(path)))(x)[0], session.run(None, {"x": x})[0])
    graph = _planned(path).prepared.graph
    (scan,) = (op for op in graph.ops if op.kind == "scan")
    assert {graph.tensors[t].dtype for t in (*scan.inputs, *scan.outputs)} == {"int8"}


def _random_scan(rng: np.random.Generator) -> Any:
    """A Scan of random numbers of states, sequences and results, whose body is of random operators, and readers behind it."""
    steps, states, parts = int(rng.integers(2, 7)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    results = int(rng.integers(0, 3))
    pool = [*(f"h{k}" for k in range(states)), *(f"p{k}" for k in range(parts)), "cap"]
    nodes = []
    for k in range(int(rng.integers(2, 7))):
        kind, (a, b) = str(rng.choice(["Add", "Mul", "Tanh", "MatMul", "Identity"])), rng.choice(pool, 2)
        inputs = [str(a)] if kind in ("Tanh", "Identity") else [str(a), "w" if kind == "MatMul" else str(b)]
        nodes.append(helper.make_node(kind, inputs, [f"v{k}"]))
        pool.append(f"v{k}")
    made = [f"o{k}" for k in range(states + results)]
    own = [p for p in pool if p != "cap"]
    nodes += [helper.make_node("Identity", [str(rng.choice(own))], [o]) for o in made]
    row = {name: _VALUE(name, 1, (1, UNITS)) for name in (*own, *made)}
    names = [*(f"h{k}" for k in range(states)), *(f"p{k}" for k in range(parts))]
    body = helper.make_graph(nodes, "body", [row[n] for n in names], [row[o] for o in made])
    axes = [int(a) for a in rng.integers(0, 3, parts + results)]
    ways = [int(a) for a in rng.integers(0, 2, parts + results)]
    attributes = {"scan_input_axes": axes[:parts], "scan_input_directions": ways[:parts]}
    if results:
        attributes |= {"scan_output_axes": axes[parts:], "scan_output_directions": ways[parts:]}
    given = [*(f"i{k}" for k in range(states)), *(f"x{k}" for k in range(parts))]
    ends = [f"e{k}" for k in range(states + results)]
    outer = [helper.make_node("Neg", ["c"], ["cap"])]
    outer.append(helper.make_node("Scan", given, ends, body=body, num_scan_inputs=parts, **attributes))
    returned = [e for e in ends if rng.integers(4)] or ends[:1]
    for k, end in enumerate(ends):
        if end in returned and k >= states and rng.integers(2):
            outer.append(helper.make_node("Gather", [end, "last"], [f"r{end}"], axis=axes[parts + k - states]))
        elif end in returned:
            outer.append(helper.make_node("Abs", [end], [f"r{end}"]))
    shapes = [[1, UNITS] for _ in range(parts)]
    for shape, axis in zip(shapes, axes, strict=False):
        shape.insert(axis, steps)
    fixed = {f"i{k}": np.zeros((1, UNITS), "float32") for k in range(states) if rng.integers(2)}
    inputs = [_VALUE(name, 1, (1, UNITS)) for name in given[:states] if name not in fixed]
    inputs += [_VALUE(f"x{k}", 1, shape) for k, shape in enumerate(shapes)]
    held = {"w": (rng.standard_normal((UNITS, UNITS)) * 0.3).astype("float32"), "last": np.array(-1), **fixed}
    results_of = [helper.make_value_info(f"r{e}", onnx.TypeProto()) for e in returned]
    weights = [numpy_helper.from_array(a, name) for name, a in held.items()]
    graph = helper.make_graph(outer, "g", [*inputs, _VALUE("c", 1, (1, UNITS))], results_of, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("seed", range(12))
def test_random_scans(tmp_path: Path, seed: int) -> None:
    """The definition equals ONNX Runtime, and the kernels of a plan equal the definition."""
    ort = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(seed)
    onnx.save(_random_scan(rng), path := tmp_path / "n.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {i.name: rng.standard_normal(i.shape).astype("float32") for i in session.get_inputs()}
    for made, expected in zip(Compiled(load(path))(*given.values()), session.run(None, given), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
    _planned(path)


def test_only_what_no_step_changes_is_read(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["hn"]), helper.make_node("Neg", ["xt"], ["y"])],
        "body",
        [_VALUE("h", 1, (1, UNITS)), _VALUE("xt", 1, (1, DEPTH))],
        [_VALUE("hn", 1, (1, UNITS)), _VALUE("y", 1, (1, DEPTH))],
    )
    nodes = [
        helper.make_node("Scan", ["h0", "x"], ["hl", "ys"], body=body, num_scan_inputs=1),
        helper.make_node("Abs", ["hl"], ["out"]),
    ]
    inputs = [_VALUE("x", 1, (3, 1, DEPTH)), _VALUE("h0", 1, (1, UNITS))]
    graph = helper.make_graph(nodes, "g", inputs, [_VALUE("out", 1, (1, UNITS))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path := tmp_path / "n.onnx")
    x, h = _inputs(3)
    np.testing.assert_array_equal(Compiled(load(path))(x, h)[0], np.abs(h))


@pytest.mark.parametrize("outside", [False, True])
def test_a_result_that_is_stored_stays_so(tmp_path: Path, outside: bool) -> None:
    """A body that quantizes its result, or a network that quantizes a sequence, returns and takes stored integers."""
    int8, scales = TensorProto.INT8, {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        helper.make_node("DequantizeLinear", ["xt", "s", "z"], ["a"]),
        helper.make_node("Add", ["a", "h"], ["hn"]),
        helper.make_node("QuantizeLinear", ["hn", "s", "z"], ["y"]),
    ]
    given, made = (
        [_VALUE("h", 1, (1, 4)), _VALUE("xt", int8, (1, 4))],
        [_VALUE("hn", 1, (1, 4)), _VALUE("y", int8, (1, 4))],
    )
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in scales.items()]
    body = helper.make_graph(nodes, "body", given, made)
    front = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])] if outside else []
    node = helper.make_node("Scan", ["h0", "q" if outside else "x"], ["hl", "ys"], body=body, num_scan_inputs=1)
    inputs = [_VALUE("h0", 1, (1, 4)), _VALUE("x", 1 if outside else int8, (3, 1, 4))]
    outputs = [_VALUE("hl", 1, (1, 4)), _VALUE("ys", int8, (3, 1, 4))]
    graph = helper.make_graph([*front, node], "g", inputs, outputs, held)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path := tmp_path / "n.onnx"
    )
    stored = _RNG.integers(-10, 11, (3, 1, 4)).astype("int8")
    x = (stored * np.float32(0.1)).astype("float32") if outside else stored
    last, every = Compiled(load(path))(np.zeros((1, 4), "float32"), x)
    np.testing.assert_allclose(last, stored.sum(0) * 0.1, atol=1e-5)
    np.testing.assert_array_equal(every, stored.cumsum(0).astype("int8"))
