#!/usr/bin/env bash
# ai-edge-quantizer 0.10.0 (ai-edge-litert 2.3.0, x86-64): static int8 by the algorithm that is called min_max_uniform_quantize,
# its calibration as documented, of a RESHAPE; 21 samples, one of which reaches from -10 to 10 and the others from -1 to 1.
# Guess: the input's range is that of all samples, whatever their order: scale 20 / 255 = 0.0784.
# Seen: the range is a moving average, in which each new sample counts a twentieth and the first one as a whole. With the wide
# sample first the scale is 0.0331 and values beyond 4.23 are clipped; with it last, 0.0114 and 1.45. The library's own
# `min_max_update`, given to its Calibrator as `qsv_update_func`, makes it 0.0784 in any order; `Quantizer.calibrate` takes none.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q ai-edge-quantizer==0.10.0 ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy
"$place/venv/bin/python" - <<'END' 2>/dev/null
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import calibrator, quantizer, recipe, recipe_manager
from ai_edge_quantizer.utils import qsv_utils


def network():
    """A reshape of two floats, with a signature."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, graph.tensors = 3, [schema.BufferT()], []
    for name, shape in (("x", (1, 2)), ("y", (2,))):
        one = schema.TensorT()
        one.name, one.shape, one.type, one.buffer = name, np.array(shape, "int32"), schema.TensorType.FLOAT32, 0
        graph.tensors.append(one)
    code, op, signature = schema.OperatorCodeT(), schema.OperatorT(), schema.SignatureDefT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.RESHAPE
    code.version, op.opcodeIndex = 1, 0
    op.inputs, op.outputs = np.array([0], "int32"), np.array([1], "int32")
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.ReshapeOptions, schema.ReshapeOptionsT()
    op.builtinOptions.newShape = np.array([2], "int32")
    graph.inputs, graph.outputs = op.inputs, op.outputs
    signature.signatureKey, signature.subgraphIndex = "s", 0
    for index, held in ((0, "inputs"), (1, "outputs")):
        named = schema.TensorMapT()
        named.name, named.tensorIndex = graph.tensors[index].name, index
        setattr(signature, held, [named])
    model.operatorCodes, graph.operators, model.subgraphs, model.signatureDefs = [code], [op], [graph], [signature]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def scale(samples, update=None):
    tool = quantizer.Quantizer(network(), recipe.static_wi8_ai8())
    data = {"s": [{"x": np.array([[-v, v]], "float32")} for v in samples]}
    if update is None:
        ranges = tool.calibrate(data)
    else:
        manager = recipe_manager.RecipeManager()
        manager.load_quantization_recipe(recipe.static_wi8_ai8())
        own = calibrator.Calibrator(network(), qsv_update_func=update)
        own.calibrate(data, manager)
        ranges = own.get_model_qsvs()
    made = Interpreter(model_content=bytes(tool.quantize(ranges, enable_progress_report=False).quantized_model))
    return float(made.get_input_details()[0]["quantization"][0])


first, last = [10.0] + [1.0] * 20, [1.0] * 20 + [10.0]
found = {
    "wide first": scale(first),
    "wide last": scale(last),
    "min_max_update": scale(first, qsv_utils.min_max_update),
    "min_max_update, wide last": scale(last, qsv_utils.min_max_update),
}
for name, value in found.items():
    print(f"{name}: scale {value:.4f}, reach {127.5 * value:.2f}")
wanted = [(1 + 9 * 0.95**20) / 127.5, (1 + 9 * 0.05) / 127.5, 10 / 127.5, 10 / 127.5]
assert np.allclose(list(found.values()), wanted, rtol=0.01)
END
