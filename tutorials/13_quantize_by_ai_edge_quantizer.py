"""
Quantize a .tflite file by ai-edge-quantizer
============================================

ai-edge-quantizer makes an int8 network of a float ``.tflite`` file, whether a converter or ``litert-torch`` wrote it. It needs
no TensorFlow: ``pip install ai-edge-quantizer``.

.. code-block:: console

    $ python tutorials/13_quantize_by_ai_edge_quantizer.py [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import tvm_cascade
from tvm_cascade.errors import MissingToolError
from tvm_cascade.testing.tflite import ModelWriter

try:
    from ai_edge_quantizer import quantizer, recipe  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise SystemExit(f"{error}: pip install ai-edge-quantizer") from None

parser = argparse.ArgumentParser(description="Quantize a .tflite file by ai-edge-quantizer.")
parser.add_argument("--out", type=Path, default=Path("aeq-out"))
out = parser.parse_known_args()[0].out.absolute()
out.mkdir(parents=True, exist_ok=True)
SIZE = 16

# %%
# A float network
# ---------------
# Yours comes from a converter. This one has random weights, which quantization treats alike.
rng, w = np.random.default_rng(0), ModelWriter()
x, extent, channels = w.activation((1, SIZE, SIZE, 3), "float32", name="image"), SIZE, 3
for k, (depth, size, stride) in enumerate(((8, 3, 2), (16, 3, 2), (10, 1, 1))):
    shape, extent = (depth, size, size, channels), extent // stride
    weights = rng.normal(0, 1 / np.sqrt(size * size * channels), shape).astype("float32")
    operands = [
        x,
        w.tensor(shape, "float32", data=weights),
        w.tensor((depth,), "float32", data=np.zeros(depth, "float32")),
    ]
    x, channels = w.tensor((1, extent, extent, depth), "float32", name=f"layer{k}"), depth
    window: dict[str, Any] = {
        "padding": 0,
        "strideH": stride,
        "strideW": stride,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
    }
    w.operator("CONV_2D", operands, [x], "Conv2DOptions", **window, fusedActivationFunction=1)
w.outputs = [x]
(out / "float.tflite").write_bytes(w.finish(signature="serving_default"))
images = rng.normal(0, 1, (100, SIZE, SIZE, 3)).astype("float32")
np.savez(out / "test.npz", image=images)

# %%
# Quantize
# --------
# ``static_wi8_ai8`` stores weights and activations as int8. Ranges are measured on samples, by signature and input.
# ``dynamic_wi8_afp32`` and ``weight_only_wi8_afp32`` leave activations float: the arena keeps its size.
tool = quantizer.Quantizer(str(out / "float.tflite"), recipe.static_wi8_ai8())
ranges = tool.calibrate({"serving_default": [{"image": image[None]} for image in images]})
tool.quantize(ranges).export_model(str(out / "int8.tflite"), overwrite=True)

# %%
# Where did accuracy go?
# ----------------------
# By layer, each tensor is compared with the same network in floats, the worst first.
report = tvm_cascade.validate(out / "int8.tflite", data=out / "test.npz", by_layer="own")
print(report.to_text())
assert report.layers and report.layers[0].snr_db > 15

# %%
# To a board
# ----------
# Input and output are int8 here; where they stay float, ``stored_io=True`` lets the program take and return integers. ``plan``
# says whether the network fits a board by its name. ``compile`` writes the project, ``run`` compares it with the reference
# kernels in an emulator of the board's core, and ``export`` makes a package for your build system.
plan = tvm_cascade.plan(out / "int8.tflite", target="nucleo-f446re")
print(plan.to_text())
try:
    made = tvm_cascade.compile(out / "int8.tflite", target="nucleo-f446re", output=out / "firmware")
    print(made.to_text())
    done = tvm_cascade.run(out / "firmware", check=out / "int8.tflite")
except MissingToolError as error:
    raise SystemExit(f"the rest needs a cross compiler and an emulator: {error}") from None
print(done.to_text())
assert done.match
files = tvm_cascade.export(out / "firmware", kind="platformio", check=out / "int8.tflite", output=out / "lib")
print(f"{len(files)} files for PlatformIO in {out / 'lib'}")
