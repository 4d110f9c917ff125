#!/usr/bin/env bash
# torch 2.13.0 (its CPU file does), onnxscript 0.7.2, onnxruntime 1.32.0: torch.onnx.export (dynamo=True, the default) of small functions.
# Guess: what the exporter takes has the values of torch; what it does not know it refuses.
# Seen: four are exported without a word and compute something else.
#   logsigmoid(-100)                                  torch -100, ONNX -inf (log of a sigmoid that is 0: a loss or a score of -inf)
#   avg_pool2d(divisor_override=3) of 2x2 ones        torch 4/3, ONNX 1 (the divisor is left out)
#   scatter_reduce(mean) of 1 and 2 onto 9            torch 4, ONNX 2 (the reduction is left out: the last one wins)
#   log1p(1e-10)                                      torch 1e-10, ONNX 0 (log of 1 + x; expm1 alike)
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import logging
import warnings

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
T = torch.tensor


class Network(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


def both(function, *arguments):
    program = torch.onnx.export(Network(function).eval(), arguments, verbose=False)
    session = ort.InferenceSession(program.model_proto.SerializeToString())
    feeds = {i.name: a.numpy() for i, a in zip(session.get_inputs(), arguments)}
    return function(*arguments).numpy().ravel()[0], session.run(None, feeds)[0].ravel()[0]


cases = {
    "logsigmoid": (both(F.logsigmoid, T([-100.0, 0.0])), (-100, -np.inf)),
    "divisor_override": (both(lambda x: F.avg_pool2d(x, 2, divisor_override=3), torch.ones(1, 1, 2, 2)), (4 / 3, 1)),
    "scatter_reduce mean": (both(lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), T([9.0, 9, 9]), T([0, 0, 1]), T([1.0, 2, 3])), (4, 2)),
    "log1p": (both(torch.log1p, T([1e-10, 1.0])), (1e-10, 0)),
}
for name, (made, expected) in cases.items():
    print("SEEN", name, "torch", made[0], "ONNX", made[1])
assert all(np.allclose(made, expected, rtol=1e-3, atol=0) for made, expected in cases.values())
END
