#!/usr/bin/env bash
# torch 2.13.0 (its CPU file does), onnxscript 0.7.2, onnx 1.23.2, onnxruntime 1.32.0: torch.onnx.export (dynamo=True) of Conv3d(bias=False),
# with optimize=True, the default, and with optimize=False.
# Guess: the optimizer makes models smaller or faster; a model that it has not seen runs as well.
# Seen: without it the Conv has a bias of zeros of shape [channels, 2], so ONNX Runtime refuses every input. onnx's full check
# accepts the model. Conv3d with a bias, and Conv2d without one, are right either way.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0 numpy
"$place/venv/bin/python" - <<'END'
import warnings

import numpy as np
import onnx
import onnxruntime
import torch

warnings.simplefilter("ignore")


def right(rank, bias, optimize):
    x = torch.randn(1, 2, *[4] * rank)
    layer = getattr(torch.nn, f"Conv{rank}d")(2, 3, 2, bias=bias).eval()
    model = torch.onnx.export(layer, (x,), dynamo=True, verbose=False, optimize=optimize).model_proto
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    try:
        made = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    except Exception as error:
        print(f"Conv{rank}d, bias={bias}, optimize={optimize}:", str(error).split("Status Message: ")[-1][:120])
        return False
    return float(np.abs(made - layer(x).detach().numpy()).max()) < 1e-5


assert right(3, True, False) and right(3, False, True) and right(2, False, False)
assert not right(3, False, False)
END
