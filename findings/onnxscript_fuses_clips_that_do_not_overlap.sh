#!/usr/bin/env bash
# onnxscript 0.7.2: onnxscript.optimizer.optimize on Clip(Clip(x, 0, 1), 2, 3), and on Relu(Clip(x, -3, -1)).
# Guess: the values stay: 2 everywhere, and 0 everywhere.
# Seen: two clips become one with the larger of the lower bounds and the smaller of the upper ones. Where the ranges do not overlap that is
# Clip(x, 2, 1), for which ONNX says the upper bound: 1 instead of 2. Relu behind Clip(-3, -1) becomes -1 instead of 0. No warning.
#   Clip(Clip(x, 0, 1), 2, 3) before [2 2 2 2] after [1 1 1 1]
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2 numpy
"$place/venv/bin/python" - <<'END'
import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnxscript import optimizer

x = np.array([-4, 0.5, 2.5, 9], "float32")
constants = [numpy_helper.from_array(np.array(v, "float32"), f"c{v}") for v in (-3, -1, 0, 1, 2, 3)]
clip = lambda a, low, high, y: helper.make_node("Clip", [a, f"c{low}", f"c{high}"], [y])
cases = {
    "Clip(Clip(x, 0, 1), 2, 3)": ([clip("x", 0, 1, "a"), clip("a", 2, 3, "y")], 2, 1),
    "Relu(Clip(x, -3, -1))": ([clip("x", -3, -1, "a"), helper.make_node("Relu", ["a"], ["y"])], 0, -1),
}
for text, (nodes, right, wrong) in cases.items():
    ends = [[helper.make_tensor_value_info(n, 1, [4])] for n in ("x", "y")]
    used = [c for c in constants if any(c.name in n.input for n in nodes)]
    old = helper.make_model(helper.make_graph(nodes, "g", *ends, used), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    new = optimizer.optimize(old)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    before, after = (ort.InferenceSession(m.SerializeToString(), options).run(None, {"x": x})[0].tolist() for m in (old, new))
    print(text, "before", before, "after", after, [n.op_type for n in new.graph.node])
    assert before == [right] * 4 and after == [wrong] * 4
END
