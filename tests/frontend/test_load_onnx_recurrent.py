"""ONNX's LSTM, GRU and RNN in all their forms against ONNX Runtime, on the VM and as compiled programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_cascade
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.passes.extract_graph import extract_graph
from tvm_cascade.passes.main_rewriting import bindings_of, name_of
from tvm_cascade.relax_pipeline import cascade_pipeline
from tvm_cascade.testing.reference import Compiled

STEPS, BATCH, DEPTH, UNITS = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = ("initial_h", "initial_c")
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Form:
    """One form of an operator."""

    kind: str
    optional: str = "bias"  # of bias, initial_h, initial_c, peepholes
    lengths: tuple[int, ...] = ()
    outputs: str = "hidden steps cell"
    weights_given: bool = False  # weights are inputs of the model
    steps: int = STEPS
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(self.attributes)

    def model(self, arrays: Arrays, layout: int = 0) -> Any:
        """The model; weights and lengths are constants unless they are given."""
        inputs = ["x", "w", "r", "bias", "lengths", *STATES[: 2 if self.kind == "LSTM" else 1]]
        inputs += ["peepholes"] if self.kind == "LSTM" else []
        names = ["steps", "hidden", "cell"] if self.kind == "LSTM" else ["steps", "hidden"]
        results = [n if n in self.outputs else "" for n in names]
        given = [n for n in arrays if n in ("x", *STATES) or (self.weights_given and n != "lengths")]
        attributes: dict[str, Any] = self.attrs | ({"layout": layout} if layout else {})
        node = helper.make_node(
            self.kind, [n if n in arrays else "" for n in inputs], results, hidden_size=UNITS,
            **attributes,
        )  # fmt: skip
        graph = helper.make_graph(
            [node], "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, arrays[n].shape) for n in given],
            [helper.make_value_info(n, onnx.TypeProto(tensor_type={"elem_type": 1})) for n in results if n],
            [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in given],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        """What the operator is computed from, with the batch second."""
        rng, gates = np.random.default_rng(seed), GATES[self.kind]
        directions = 2 if self.attrs.get("direction") == "bidirectional" else 1
        shapes = {"x": (self.steps, BATCH, DEPTH), "w": (directions, gates * UNITS, DEPTH)}
        shapes |= {"r": (directions, gates * UNITS, UNITS), "bias": (directions, 2 * gates * UNITS)}
        shapes |= {n: (directions, BATCH, UNITS) for n in STATES} | {"peepholes": (directions, 3 * UNITS)}
        kept = [n for n in shapes if n in ("x", "w", "r") or n in self.optional]
        made = {n: (rng.standard_normal(shapes[n]) * (1 if n == "x" else 0.5)).astype("float32") for n in kept}
        return made | ({"lengths": np.array(self.lengths, "int32")} if self.lengths else {})


def _reference(model: Any, arrays: Arrays) -> list[np.ndarray]:
    """The outputs of ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, {i.name: arrays[i.name] for i in session.get_inputs()})]


def _computed(form: Form, folder: Path, layout: int = 0) -> None:
    """What is loaded computes what ONNX Runtime does, which has no layout 1."""
    arrays = form.arrays()
    plain = form.model(arrays)
    want = _reference(plain, arrays)
    if layout:
        want = [a.transpose(2, 0, 1, 3) if a.ndim == 4 else a.swapaxes(0, 1) for a in want]
        arrays = {n: a.swapaxes(0, 1) if n in ("x", *STATES) else a for n, a in arrays.items()}
    onnx.save(form.model(arrays, layout), folder / "n.onnx")
    made = Compiled(load(folder / "n.onnx"))(*(arrays[i.name] for i in plain.graph.input))
    assert len(made) == len(want)
    for ours, theirs in zip(made, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def _form(kind: str, optional: str = "bias", **how: Any) -> Form:
    own = {k: how.pop(k) for k in ("lengths", "outputs", "weights_given", "steps") if k in how}
    return Form(kind, optional, **own, attributes=tuple(how.items()))


_STATES = "bias initial_h initial_c"
_BOTH = {"direction": "bidirectional"}


@pytest.mark.parametrize("kind", GATES)
def test_every_form(tmp_path: Path, kind: str) -> None:
    forms = [
        _form(kind, direction="reverse"),
        _form(kind, **_BOTH),
        _form(kind, ""),
        _form(kind, _STATES, **_BOTH),
        _form(kind, _STATES, weights_given=True, **_BOTH),
        _form(kind, "", weights_given=True),
        _form(kind, _STATES, lengths=(5, 3), **_BOTH),
        _form(kind, lengths=(2, 2)),
        _form(kind, lengths=(5, 5), outputs="hidden"),
        _form(kind, outputs="steps"),
        _form(kind, _STATES, clip=0.25),
        _form(kind, _STATES, steps=1),
    ]
    for form in forms:
        _computed(form, tmp_path)
    for form in (_form(kind), _form(kind, _STATES, **_BOTH)):
        _computed(form, tmp_path, layout=1)


@pytest.mark.parametrize(
    "form",
    [
        _form("LSTM", f"{_STATES} peepholes", **_BOTH),
        _form("LSTM", f"{_STATES} peepholes", clip=0.25),
        _form("LSTM", f"{_STATES} peepholes", weights_given=True),
        _form("LSTM", f"{_STATES} peepholes", input_forget=1),
        _form("LSTM", outputs="cell"),
        _form("GRU", _STATES, linear_before_reset=1, **_BOTH),
        _form("GRU", linear_before_reset=1, weights_given=True, clip=0.2),
    ],
)
def test_attributes_of_one_operator(tmp_path: Path, form: Form) -> None:
    _computed(form, tmp_path)


@pytest.mark.parametrize(
    ("kind", "functions", "alpha", "beta"),
    [
        ("RNN", ["Relu", "Affine"], [0.5], [0.1]),
        ("RNN", ["LeakyRelu", "ThresholdedRelu"], [0.3, 0.2], []),
        ("RNN", ["LeakyRelu", "Softsign"], [], []),
        ("RNN", ["ScaledTanh", "Elu"], [0.7, 0.6], [1.3]),
        ("RNN", ["Softplus", "HardSigmoid"], [], []),
        ("GRU", ["HardSigmoid", "LeakyRelu", "Sigmoid", "Elu"], [0.3, 0.2], [0.4]),
        ("LSTM", ["HardSigmoid", "Tanh", "Softsign", "sigmoid", "leakyrelu", "Tanh"], [0.3, 0.2], [0.4]),
    ],
)
def test_activations(tmp_path: Path, kind: str, functions: list[str], alpha: list[float], beta: list[float]) -> None:
    given = {name: v for name, v in (("activation_alpha", alpha), ("activation_beta", beta)) if v}
    _computed(_form(kind, _STATES, activations=functions, **_BOTH, **given), tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"activations": ["Cosine"]}, "the activation Cosine"),
        ({"activations": ["Affine"]}, "the activation Affine without its activation_alpha or activation_beta"),
        ({"activations": ["Tanh", "Tanh"]}, "2 activations, where 1 belong"),
        ({"lengths": (0, 5)}, r"sequence_lens \[0, 5\] of a sequence of 5 steps"),
    ],
)
def test_what_is_refused_is_said(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    form = _form("RNN", **wrong)
    onnx.save(form.model(form.arrays()), tmp_path / "n.onnx")
    with pytest.raises(LoadError, match=f"operator RNN has a form that is not supported: {said}"):
        load(tmp_path / "n.onnx")


def test_lengths_that_are_an_input_are_refused(tmp_path: Path) -> None:
    form = _form("GRU", lengths=(5, 3))
    model = form.model(form.arrays())
    held = next(w for w in model.graph.initializer if w.name == "lengths")
    model.graph.initializer.remove(held)
    model.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [BATCH]))
    onnx.save(model, tmp_path / "n.onnx")
    with pytest.raises(LoadError, match="sequence_lens that is computed, or an input: make it a constant"):
        load(tmp_path / "n.onnx")


@pytest.mark.usefixtures("quick_host")
@pytest.mark.parametrize(
    "form",
    [
        _form("LSTM", f"{_STATES} peepholes", **_BOTH),
        _form("GRU", _STATES, linear_before_reset=1),
        _form("GRU", direction="reverse"),
        _form("RNN", _STATES, **_BOTH),
        _form("GRU", "", weights_given=True),
    ],
)
def test_compiled_programs(tmp_path: Path, form: Form) -> None:
    """Work as planned, within an arena as planned, and results as the reference's."""
    onnx.save(form.model(form.arrays()), tmp_path / "n.onnx")
    made = tvm_cascade.compile(tmp_path / "n.onnx", target="host", output=tmp_path / "p")
    given = {n: a for n, a in form.arrays(1).items() if n in ("x", *STATES) or form.weights_given}
    ran = tvm_cascade.run(tmp_path / "p", inputs=given, check=tmp_path / "n.onnx")
    assert ran.match is True and ran.arena_high_water_bytes == made.plan.peak
    gates, directions = GATES[form.kind], len(form.arrays()["w"])
    products = STEPS * DEPTH + (STEPS if "initial_h" in form.optional else STEPS - 1) * UNITS
    assert ran.executed_macs == directions * BATCH * gates * UNITS * products


def test_neither_code_nor_memory_grows_with_steps_that_nothing_reads(tmp_path: Path) -> None:
    """A layer of a thousand steps is one operator, and keeps only its last state."""
    form = _form("LSTM", outputs="hidden", steps=1000)
    onnx.save(form.model(form.arrays()), tmp_path / "n.onnx")
    graph = extract_graph(load(tmp_path / "n.onnx")).graph
    (op,) = graph.ops
    assert [graph.tensors[t].shape for t in op.outputs] == [(1, BATCH, UNITS)]
    assert op.scratch_bytes <= 4 * 3 * UNITS + 32  # two states, a cell state, and alignment


@pytest.mark.parametrize("kind", GATES)
def test_weights_that_are_dequantized(tmp_path: Path, kind: str) -> None:
    """Weights stored as int8 become constants of the kernel."""
    form = _form(kind)
    arrays = form.arrays()
    model = form.model(arrays)
    stored = np.round(arrays["w"] * 50).astype("int8")
    kept = [w for w in model.graph.initializer if w.name != "w"]
    del model.graph.initializer[:]
    scale = numpy_helper.from_array(np.array(0.02, "float32"), "scale")
    model.graph.initializer.extend([*kept, numpy_helper.from_array(stored, "stored"), scale])
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["stored", "scale"], ["w"]))
    onnx.save(model, tmp_path / "n.onnx")
    mod = load(tmp_path / "n.onnx")
    for ours, theirs in zip(Compiled(mod)(arrays["x"]), _reference(model, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert len(extract_graph(mod).graph.ops) == 1


def _reading(form: Form, arrays: Arrays, step: int) -> Any:
    """The model of an operator of whose steps a single one is read."""
    model = form.model(arrays)
    del model.graph.output[:]
    model.graph.initializer.append(numpy_helper.from_array(np.array(step, "int64"), "step"))
    model.graph.node.append(helper.make_node("Gather", ["steps", "step"], ["y"], axis=0))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_the_step_that_is_read_is_kept(tmp_path: Path, kind: str, direction: str) -> None:
    form = _form(kind, _STATES, outputs="steps", steps=40, direction=direction)
    arrays = form.arrays()
    for step in (0, 39, 17):
        model = _reading(form, arrays, step)
        onnx.save(model, tmp_path / "n.onnx")
        mod: Any = load(tmp_path / "n.onnx")
        (want,) = _reference(model, arrays)
        np.testing.assert_allclose(
            Compiled(mod)(*(arrays[i.name] for i in model.graph.input))[0], want, rtol=0, atol=1e-5
        )
        call = next(b.value for b in bindings_of(mod["main"]) if name_of(b.value) == "call_tir")
        made_last = {"forward": 39, "reverse": 0}.get(direction)  # of both directions, no step is made last
        assert int(call.ty.shape.values[0]) == (1 if step == made_last else 40)


def test_a_written_out_step_that_is_read_is_kept(tmp_path: Path) -> None:
    """Of steps joined by a Concat, the last alone; another step, or two of them, leave it."""
    for step, parts in ((3, 0), (1, 1)):
        names = [f"s{k}" for k in range(4)]
        nodes = [helper.make_node("Tanh" if k % 2 else "Sigmoid", ["x"], [name]) for k, name in enumerate(names)]
        nodes += [helper.make_node("Concat", names, ["steps"], axis=1)]
        nodes += [helper.make_node("Transpose", ["steps"], ["t"], perm=[1, 0, 2])]
        nodes += [helper.make_node("Gather", ["t", "step"], ["y"], axis=0)]
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (1, 1, 6)), ("y", (1, 6)))]
        graph = helper.make_graph(nodes, "g", info[:1], info[1:], [numpy_helper.from_array(np.array(step), "step")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, tmp_path / "n.onnx")
        mod = load(tmp_path / "n.onnx")
        assert [name_of(b.value) for b in bindings_of(mod["main"])].count("concat") == parts
        x = np.random.default_rng(0).standard_normal((1, 1, 6)).astype("float32")
        np.testing.assert_allclose(Compiled(mod)(x)[0], _reference(model, {"x": x})[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_a_single_step_compiles_in_the_pipeline(kind: str, tmp_path: Path) -> None:
    """The memory of a state is of a size that TVM knows, also for one step, as calls frame by frame have."""
    rng, gates = np.random.default_rng(3), GATES[kind]
    sizes = {"w": (1, gates * UNITS, DEPTH), "r": (1, gates * UNITS, UNITS), "bias": (1, 2 * gates * UNITS)}
    held = {n: rng.uniform(-1, 1, s).astype("float32") for n, s in sizes.items()}
    x = rng.standard_normal((1, 1, DEPTH)).astype("float32")
    node = helper.make_node(kind, ["x", *held], ["y"], hidden_size=UNITS)
    sides = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x.shape), ("y", (1, 1, 1, UNITS)))
    ]
    graph = helper.make_graph(
        [node], "g", sides[:1], sides[1:], [numpy_helper.from_array(a, n) for n, a in held.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    (want,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    built = tvm.compile(load(tmp_path / "m.onnx"), "llvm", relax_pipeline=cascade_pipeline(objective="bytes"))
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
