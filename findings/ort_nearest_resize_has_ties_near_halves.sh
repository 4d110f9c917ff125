#!/usr/bin/env bash
# onnx 1.23.2, onnxruntime 1.32.0: nearest Resize with asymmetric coordinates and round_prefer_ceil, 28 elements to 8 by sizes.
# Guess: places are float32 quotients by a float32 scale, rounded as they are: 1 / (8 / 28) = 3.4999998 gives element 3, and so on.
# Seen: 3.4999998 gives element 4, as a tie does, and 24.499998 gives 24: a place within about a millionth of a half is a tie, for both
# roundings to the nearest; floor and ceil have no such tolerance. Neither exact nor float32 arithmetic alone names these elements.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
from math import floor

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

node = helper.make_node(
    "Resize", ["x", "", "", "sizes"], ["y"],
    mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="round_prefer_ceil",
)
ends = [[helper.make_tensor_value_info("x", 1, [1, 1, 1, 28])], [helper.make_tensor_value_info("y", 1, None)]]
sizes = numpy_helper.from_array(np.array([1, 1, 1, 8], "int64"), "sizes")
made = helper.make_model(helper.make_graph([node], "g", *ends, [sizes]), opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
x = np.arange(28, dtype="float32").reshape(1, 1, 1, 28)
seen = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0].ravel().astype(int).tolist()
places = [float(np.float32(i) / np.float32(8 / 28)) for i in range(8)]
single = [floor(v + 0.5) for v in places]
exact = [floor(i * 28 / 8 + 0.5) for i in range(8)]
print("places", places)
print("seen", seen, "float32", single, "exact", exact)
assert seen == [0, 4, 7, 11, 14, 18, 21, 24] and seen != single and seen != exact
END
