#!/usr/bin/env bash
# ai-edge-litert 2.3.0 (x86-64): CONV_2D of float32 inputs by int8 weights with a scale for each of four output channels, as a
# converter without calibration data writes it. Three files with the same weights: a single scale; four scales, all 0.01; four
# scales, of which the first is 0.0100001.
# Guess: the number of scales decides how inputs are quantized, so the second and the third file agree to about 1e-5 of the largest output.
# Seen: the first and the second agree in every bit, with inputs stored around zero; with the third inputs are stored around a
# zero point of their own, and outputs move by 0.6 % of the largest. DEPTHWISE_CONV_2D stores both alike.
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

CHANNELS, DEPTH = 4, 5
rng = np.random.RandomState(0)
BIAS = rng.standard_normal(CHANNELS).astype("float32")
IMAGE = (rng.standard_normal((1, 7, 6, DEPTH)) + 0.5).astype("float32")


def network(operator, weights, scales, axis):
    shape, out = IMAGE.shape, (*IMAGE.shape[:3], weights.shape[axis])
    rows = [("x", shape, "FLOAT32", None), ("w", weights.shape, "INT8", weights), ("b", BIAS.shape, "FLOAT32", BIAS), ("y", out, "FLOAT32", None)]
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
        if name == "w":
            q = one.quantization = schema.QuantizationParametersT()
            q.scale, q.zeroPoint, q.quantizedDimension = np.array(scales, "float32"), np.zeros(len(scales), "int64"), axis
        graph.tensors.append(one)
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, operator)
    name = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}[operator]
    code.version, op.opcodeIndex, op.inputs, op.outputs = 5, 0, np.array([0, 1, 2], "int32"), np.array([3], "int32")
    op.builtinOptionsType, op.builtinOptions = getattr(schema.BuiltinOptions, name), getattr(schema, f"{name}T")()
    op.builtinOptions.strideH = op.builtinOptions.strideW = 1
    op.builtinOptions.dilationHFactor = op.builtinOptions.dilationWFactor = 1
    if operator == "DEPTHWISE_CONV_2D":
        op.builtinOptions.depthMultiplier = 1
    graph.inputs, graph.outputs = np.array([0], "int32"), np.array([3], "int32")
    model.operatorCodes, graph.operators, model.subgraphs = [code], [op], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run(data, resolver):
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], IMAGE)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


resolvers = OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
alike, apart = [0.01] * CHANNELS, [0.0100001, *[0.01] * (CHANNELS - 1)]
weights = rng.randint(-100, 101, (CHANNELS, 3, 3, DEPTH)).astype("int8")
for resolver in resolvers:
    one, equal, near = (run(network("CONV_2D", weights, s, 0), resolver) for s in ([0.01], alike, apart))
    moved = float(np.abs(near - equal).max() / np.abs(equal).max())
    print(resolver.name, "one and four equal scales:", float(np.abs(one - equal).max()), "four that differ:", round(moved, 4))
    assert (one == equal).all() and 0.002 < moved < 0.05
CHANNELS = DEPTH
BIAS = rng.standard_normal(CHANNELS).astype("float32")
weights = rng.randint(-100, 101, (1, 3, 3, CHANNELS)).astype("int8")
equal, near = (run(network("DEPTHWISE_CONV_2D", weights, [first, *[0.01] * (CHANNELS - 1)], 3), resolvers[0]) for first in (0.01, 0.0100001))
moved = float(np.abs(near - equal).max() / np.abs(equal).max())
print("depthwise:", moved)
assert moved < 1e-4
END
