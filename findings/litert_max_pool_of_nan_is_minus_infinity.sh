#!/usr/bin/env bash
# ai-edge-litert 2.3.0 (x86-64): MAX_POOL_2D of float32, one window that holds one NaN.
# Guess: NaN, as maxima in numpy and torch have it, or the largest of the other elements; the same wherever the NaN lies.
# Seen: BUILTIN_REF and the kernels without delegates leave the NaN out. The default resolver (XNNPACK) does so too, unless the
# NaN is the first element of the window: then the maximum of NaN, 2 and 3 is -inf, smaller than everything in the window.
#   [nan, 2, 3] BUILTIN_REF 3, no delegates 3, default -inf
#   [1, nan, 3] 3 everywhere;  [1, 2, nan] 2 everywhere
# The position depends on the size of the window: of 3 x 3 elements it is the sixth.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy
"$place/venv/bin/python" - <<'END'
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

RESOLVERS = {
    "BUILTIN_REF": OpResolverType.BUILTIN_REF,
    "no delegates": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "default": OpResolverType.AUTO,
}


def network(operator, version, tensors, inputs, options, values, constants=None):
    """One operator; a tensor is (shape, type, scale, zero point), the last one is the output."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, graph.tensors = 3, [schema.BufferT()], []
    for k, (shape, dtype, scale, zero_point) in enumerate(tensors):
        one = schema.TensorT()
        one.name, one.shape, one.type, one.buffer = f"t{k}", np.array(shape, "int32"), getattr(schema.TensorType, dtype.upper()), 0
        if scale:
            one.quantization = schema.QuantizationParametersT()
            one.quantization.scale, one.quantization.zeroPoint = np.array([scale], "float32"), np.array([zero_point], "int64")
        if k in (constants or {}):
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.array(constants[k], dtype).tobytes(), "uint8")
            model.buffers.append(buffer)
            one.buffer = len(model.buffers) - 1
        graph.tensors.append(one)
    code, op = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = getattr(schema.BuiltinOperator, operator)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
    op.opcodeIndex, op.inputs, op.outputs = 0, np.array(inputs, "int32"), np.array([len(tensors) - 1], "int32")
    op.builtinOptionsType, op.builtinOptions = getattr(schema.BuiltinOptions, options), getattr(schema, f"{options}T")()
    for key, value in values.items():
        setattr(op.builtinOptions, key, value)
    graph.inputs, graph.outputs = np.array([i for i in inputs if i not in (constants or {})], "int32"), op.outputs
    model.operatorCodes, graph.operators, model.subgraphs = [code], [op], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run(data, x, resolver):
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=RESOLVERS[resolver])
    interpreter.allocate_tensors()
    said = interpreter.get_input_details()[0]
    interpreter.set_tensor(said["index"], np.array(x, said["dtype"]).reshape(said["shape"]))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).ravel().tolist()


def pool(row):
    shape = (1, 1, len(row), 1)
    values = dict(filterHeight=1, filterWidth=len(row), strideH=1, strideW=1, padding=schema.Padding.VALID)
    data = network("MAX_POOL_2D", 1, [(shape, "float32", 0, 0), ((1, 1, 1, 1), "float32", 0, 0)], [0], "Pool2DOptions", values)
    return {name: run(data, row, name)[0] for name in RESOLVERS}


nan, inf = float("nan"), float("inf")
for row in ([nan, 2, 3], [1, nan, 3], [1, 2, nan]):
    print(row, pool(row))
assert pool([nan, 2, 3]) == {"BUILTIN_REF": 3, "no delegates": 3, "default": -inf}
assert set(pool([1, nan, 3]).values()) == {3}
assert set(pool([1, 2, nan]).values()) == {2}
END
