#!/usr/bin/env bash
# onnx 1.23.2, onnxruntime 1.32.0: MaxPool and AveragePool with ceil_mode=1, five elements, kernel 2, stride 2, padding 1 at both ends.
# Guess: 3 elements in onnx's shape inference and at run time: a fourth window would begin in the padding, and is dropped (PyTorch's rule).
# Seen: shape inference says 4, in strict mode too. ONNX Runtime and the evaluator of the same onnx release return 3. Whatever plans
# memory, or reshapes, by inferred shapes has the wrong one.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import numpy as np
import onnxruntime as ort
from onnx import helper, shape_inference
from onnx.reference import ReferenceEvaluator

for kind in ("MaxPool", "AveragePool"):
    node = helper.make_node(kind, ["x"], ["y"], kernel_shape=[2], strides=[2], pads=[1, 1], ceil_mode=1)
    ends = [[helper.make_tensor_value_info("x", 1, [1, 1, 5])], [helper.make_tensor_value_info("y", 1, None)]]
    made = helper.make_model(helper.make_graph([node], "g", *ends), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    inferred = shape_inference.infer_shapes(made, check_type=True, strict_mode=True).graph.output[0].type.tensor_type.shape.dim[2].dim_value
    x = {"x": np.ones((1, 1, 5), "float32")}
    run = ort.InferenceSession(made.SerializeToString()).run(None, x)[0].shape[2]
    evaluated = ReferenceEvaluator(made).run(None, x)[0].shape[2]
    print(kind, "inferred", inferred, "ONNX Runtime", run, "evaluator", evaluated)
    assert (inferred, run, evaluated) == (4, 3, 3)
END
