#!/usr/bin/env bash
# onnx 1.23.2: onnx.version_converter from opset 9 or 10 to 11, one Upsample (or Resize of opset 10), which takes pixels from x / scale.
# Guess: the Resize of opset 11 that comes out says so, coordinate_transformation_mode asymmetric, and keeps the values.
# Seen: it has no such attribute, and opset 11's default is half_pixel. 0 1 2, linear, doubled, is 0 0.5 1 1.5 2 2 before and
# 0 0.25 0.75 1.25 1.75 2 after. With nearest and whole factors nothing is to be seen; at 1.7 pixels differ. No error, and the checker is content.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import numpy as np
import onnxruntime as ort
from onnx import checker, helper, numpy_helper, version_converter

x = np.arange(3, dtype="float32").reshape(1, 1, 1, 3)
for opset, kind in ((9, "Upsample"), (10, "Resize")):
    ends = [[helper.make_tensor_value_info("x", 1, x.shape)], [helper.make_tensor_value_info("y", 1, [1, 1, 1, 6])]]
    scales = numpy_helper.from_array(np.array([1, 1, 1, 2], "float32"), "s")
    graph = helper.make_graph([helper.make_node(kind, ["x", "s"], ["y"], mode="linear")], "g", *ends, [scales])
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)
    new = version_converter.convert_version(old, 11)
    checker.check_model(new, full_check=True)
    before, after = (ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0].ravel().tolist() for m in (old, new))
    print(kind, "before", before, "after", after, [a.name for a in new.graph.node[-1].attribute])
    assert before == [0, 0.5, 1, 1.5, 2, 2] and after == [0, 0.25, 0.75, 1.25, 1.75, 2]
END
