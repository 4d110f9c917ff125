#!/usr/bin/env bash
# ai-edge-litert 2.3.0: RESIZE_BILINEAR of int8, equal scales, five pixels to twelve, align_corners.
# Guess: every resolver gives the same integers, the float result rounded, as a mean of neighbours needs no rescaling.
# Seen: BUILTIN_REF and the kernels without delegates are up to 1.27 steps off: positions and weights have ten bits, so that the last
# pixel, which lies exactly on an input pixel of 127, is 126, and what is left over is cut toward zero. The default resolver
# (XNNPACK) is within 0.5.
#   float        ... 80.64 -12.09 -104.82 -58.45 34.27 127
#   BUILTIN_REF  ... 81    -11    -104    -59    33    126
#   default      ... 81    -12    -105    -58    34    127
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


def resize(dtype, scale, x, resolver):
    tensors = [((1, 1, 5, 1), dtype, scale, 0), ((2,), "int32", 0, 0), ((1, 1, 12, 1), dtype, scale, 0)]
    flags = dict(alignCorners=True, halfPixelCenters=False)
    return run(network("RESIZE_BILINEAR", 3, tensors, [0, 1], "ResizeBilinearOptions", flags, {1: [1, 12]}), x, resolver)


x = [-128, 127, 127, -128, 127]
true = resize("float32", 0, x, "BUILTIN_REF")
print("float  ", [round(v, 2) for v in true])
off = {}
for name in RESOLVERS:
    made = resize("int8", 1.0, x, name)
    off[name] = round(max(abs(a - b) for a, b in zip(made, true)), 2)
    print(name, made, "at most", off[name], "steps off")
assert off["BUILTIN_REF"] == off["no delegates"] > 1
assert off["default"] < 0.6
END
