#!/usr/bin/env bash
# onnx 1.23.2, onnxruntime 1.32.0: MaxPool and AveragePool with auto_pad SAME_UPPER, kernel 3, stride 1, dilation 2, six elements.
# Guess: six elements at run time, as SAME says and shape inference infers; the padding is two at either end.
# Seen: four. ONNX Runtime pads for a window that is not dilated, one at either end, and warns of the shape alone. With these pads
# written out it returns six. A Conv with the same attributes is refused.
#   MaxPool inferred 6 by SAME_UPPER [3 4 5 4] by pads [2 3 4 5 4 5]
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import numpy as np
import onnxruntime as ort
from onnx import helper, shape_inference

options = ort.SessionOptions()
options.log_severity_level = 4


def model(kind, **padding):
    node = helper.make_node(kind, ["x"], ["y"], kernel_shape=[3], dilations=[2], **padding)
    ends = [[helper.make_tensor_value_info("x", 1, [1, 1, 6])], [helper.make_tensor_value_info("y", 1, None)]]
    return helper.make_model(helper.make_graph([node], "g", *ends), opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def run(made):
    return ort.InferenceSession(made.SerializeToString(), options).run(None, {"x": np.arange(6, dtype="float32").reshape(1, 1, 6)})[0].ravel()


for kind in ("MaxPool", "AveragePool"):
    same, written = model(kind, auto_pad="SAME_UPPER"), model(kind, pads=[2, 2])
    inferred = shape_inference.infer_shapes(same).graph.output[0].type.tensor_type.shape.dim[2].dim_value
    print(kind, "inferred", inferred, "by SAME_UPPER", run(same), "by pads", run(written))
    assert (inferred, run(same).size, run(written).size) == (6, 4, 6)
    assert np.array_equal(run(same), run(written)[1:-1])
END
