#!/usr/bin/env bash
# ai-edge-litert 2.3.0: RESIZE_BILINEAR with align_corners and half_pixel_centers both set, which exclude each other.
# Guess: refused when tensors are allocated, by every resolver; RESIZE_NEAREST_NEIGHBOR alike.
# Seen: BUILTIN_REF and the kernels without delegates refuse it ("If half_pixel_centers is True, align_corners must be False"). The
# default resolver computes it, as if align_corners alone were set: 0 10 20 to six pixels is 0 4 8 12 16 20.
# RESIZE_NEAREST_NEIGHBOR takes both flags with every resolver.
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


def resize(operator, options, resolver):
    tensors = [((1, 1, 3, 1), "float32", 0, 0), ((2,), "int32", 0, 0), ((1, 1, 6, 1), "float32", 0, 0)]
    flags = dict(alignCorners=True, halfPixelCenters=True)
    try:
        return run(network(operator, 3, tensors, [0, 1], options, flags, {1: [1, 6]}), [0, 10, 20], resolver)
    except RuntimeError as error:
        return "refused: " + str(error).split("Node")[0]


found = {}
for operator, options in (("RESIZE_BILINEAR", "ResizeBilinearOptions"), ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")):
    for name in RESOLVERS:
        found[operator, name] = resize(operator, options, name)
        print(operator, name, found[operator, name])
assert "must be False" in found["RESIZE_BILINEAR", "BUILTIN_REF"]
assert "must be False" in found["RESIZE_BILINEAR", "no delegates"]
assert found["RESIZE_BILINEAR", "default"] == [0, 4, 8, 12, 16, 20]
assert len({str(found["RESIZE_NEAREST_NEIGHBOR", name]) for name in RESOLVERS}) == 1
assert "refused" not in str(found["RESIZE_NEAREST_NEIGHBOR", "default"])
END
