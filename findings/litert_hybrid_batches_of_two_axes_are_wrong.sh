#!/usr/bin/env bash
# ai-edge-litert 2.3.0 (x86-64): BATCH_MATMUL of float32 inputs by a matrix of int8 weights, as a converter without calibration data
# writes a product by constants. The same rows, laid out as 4 batches of 2 rows, as 2 x 2 batches, and as 1 x 4.
# Guess: the layout of batches is a matter of strides, so all three agree in every bit.
# Seen: 4 and 1 x 4 agree and lie within the rounding of inputs of the float product; of 2 x 2 the last two batches are off by up to
# half of the largest output, with the reference kernels and with the default ones, whether inputs are stored around zero or not.
# Weights written as 1 x 1 x 8 x 4 are right, and so is XNNPACK, which takes inputs around zero unless delegates are off.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy
"$place/venv/bin/python" - <<'END' 2>/dev/null
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

rng = np.random.RandomState(0)
ROWS = (rng.standard_normal((4, 2, 8)) + 0.5).astype("float32")
WEIGHTS = rng.randint(-127, 128, (8, 4)).astype("int8")
REAL = ROWS @ (WEIGHTS * np.float32(0.02))


def network(lead, weights, asymmetric):
    rows = [("x", (*lead, 2, 8), "FLOAT32", None), ("w", weights.shape, "INT8", weights), ("y", (*lead, 2, 4), "FLOAT32", None)]
    model, graph, code, op = schema.ModelT(), schema.SubGraphT(), schema.OperatorCodeT(), schema.OperatorT()
    model.version, model.buffers, graph.tensors = 3, [schema.BufferT()], []
    for name, extents, kind, data in rows:
        one = schema.TensorT()
        one.name, one.shape, one.type, one.buffer = name, np.array(extents, "int32"), getattr(schema.TensorType, kind), 0
        if data is not None:
            held = schema.BufferT()
            held.data = np.frombuffer(data.tobytes(), "uint8")
            model.buffers.append(held)
            one.buffer = len(model.buffers) - 1
            q = one.quantization = schema.QuantizationParametersT()
            q.scale, q.zeroPoint = np.array([0.02], "float32"), np.zeros(1, "int64")
        graph.tensors.append(one)
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.BATCH_MATMUL
    code.version, op.opcodeIndex, op.inputs, op.outputs = 4, 0, np.array([0, 1], "int32"), np.array([2], "int32")
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.BatchMatMulOptions, schema.BatchMatMulOptionsT()
    op.builtinOptions.asymmetricQuantizeInputs = asymmetric
    graph.inputs, graph.outputs = np.array([0], "int32"), np.array([2], "int32")
    model.operatorCodes, graph.operators, model.subgraphs = [code], [op], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run(data, resolver, lead):
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], ROWS.reshape(*lead, 2, 8))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).reshape(4, 2, 4)


for resolver in OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES:
    for asymmetric in False, True:
        flat, square, line = (run(network(lead, WEIGHTS, asymmetric), resolver, lead) for lead in ((4,), (2, 2), (1, 4)))
        off = np.abs(square - REAL).max(axis=(1, 2))
        print(resolver.name, "asymmetric" if asymmetric else "symmetric", "2 x 2 batches off by", off.round(3), "of", abs(REAL).max().round(2))
        assert (flat == line).all() and np.abs(flat - REAL).max() < 0.2
        assert (square[:2] == flat[:2]).all() and off[2:].max() > 1
    ranked = run(network((2, 2), WEIGHTS.reshape(1, 1, 8, 4), False), resolver, (2, 2))
    assert np.abs(ranked - REAL).max() < 0.2
delegated = run(network((2, 2), WEIGHTS, False), OpResolverType.AUTO, (2, 2))
assert np.abs(delegated - REAL).max() < 0.2
END
