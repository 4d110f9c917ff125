#!/usr/bin/env bash
# onnx 1.23.2: onnx.version_converter from opset 11 to 13, across the change of axis of Softmax, LogSoftmax and Hardmax.
# Guess: all three are rewritten, since all three changed alike in opset 13 (from a matrix that the axis splits off to one axis).
# Seen: Softmax and LogSoftmax become Flatten, Softmax, Reshape, and keep their values. Hardmax is handed on as it was: of a tensor
# 2 x 3 x 4 it has 2 ones before and 6 after, or another place for them. No error.
#   Softmax, LogSoftmax same values: True;  Hardmax same values: False (ones before and after: 2 8)
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import numpy as np
import onnxruntime as ort
from onnx import checker, helper, version_converter

x = np.random.RandomState(0).rand(2, 3, 4).astype("float32")
same = {}
for kind in ("Softmax", "LogSoftmax", "Hardmax"):
    ends = [[helper.make_tensor_value_info(n, 1, [2, 3, 4])] for n in ("x", "y")]
    old = helper.make_model(helper.make_graph([helper.make_node(kind, ["x"], ["y"], axis=1)], "g", *ends), opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    new = version_converter.convert_version(old, 13)
    checker.check_model(new, full_check=True)
    before, after = (ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (old, new))
    same[kind] = bool(np.allclose(before, after))
    print(kind, [n.op_type for n in new.graph.node], "same values:", same[kind])
    if kind == "Hardmax":
        print("ones before and after:", int(before.sum()), int(after.sum()))
assert same == {"Softmax": True, "LogSoftmax": True, "Hardmax": False}
END
