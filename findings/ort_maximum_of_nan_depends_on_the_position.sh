#!/usr/bin/env bash
# onnx 1.23.2, onnxruntime 1.32.0 (x86-64): ReduceMax, ArgMax and MaxPool over five elements, one of which is NaN.
# Guess: one rule, wherever the NaN lies: NaN (numpy, torch, and ONNX Runtime's own Max), or the NaN left out.
# Seen: ReduceMax is NaN if the NaN is the first element, and leaves it out otherwise; ArgMax follows it. MaxPool is NaN if it is the last but one,
# and leaves it out otherwise. Max of two inputs is NaN always.
#   ReduceMax nan 5 5 5 4;  ArgMax 0 4 4 4 3;  MaxPool 5 5 5 nan 4
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper


def run(kind, x, dtype=TensorProto.FLOAT, **attributes):
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape), helper.make_tensor_value_info("y", dtype, None)]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"], **attributes)], "g", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0].ravel()[0].item()


rows = {"ReduceMax": [], "ArgMax": [], "MaxPool": []}
for position in range(5):
    x = np.arange(1, 6, dtype="float32")[None, None]
    x[0, 0, position] = np.nan
    rows["ReduceMax"].append(run("ReduceMax", x, axes=[2]))
    rows["ArgMax"].append(run("ArgMax", x, TensorProto.INT64, axis=2))
    rows["MaxPool"].append(run("MaxPool", x, kernel_shape=[5]))
print(rows)
assert str(rows["ReduceMax"]) == "[nan, 5.0, 5.0, 5.0, 4.0]"
assert rows["ArgMax"] == [0, 4, 4, 4, 3]
assert str(rows["MaxPool"]) == "[5.0, 5.0, 5.0, nan, 4.0]"
END
