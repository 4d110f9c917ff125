"""
A network that does not fit its flash
=====================================

Weights take flash as activations take RAM. Which bytes can go, what does that cost, and where else can they lie?

.. code-block:: console

    $ python tutorials/11_a_network_that_does_not_fit_its_flash.py [--out DIR]

Here a small network is given too little flash. The refusal says what would help, with prices; the weights then lie in a file
beside the image, bound by pointer, and in memory that the core does not address, read layer by layer. At the end the network
is trained again: its new weights are taken by the old image, those of another network are refused. All of it runs in the
emulator. (Why things are so: rfc 0025.)
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

import tvm_cascade
from tvm_cascade.errors import InfeasibleError, LoadError, MissingToolError
from tvm_cascade.testing.tflite import ModelWriter

parser = argparse.ArgumentParser(description="Take weights out of the flash of an image.")
parser.add_argument("--out", type=Path, default=Path("flash-out"))
out = parser.parse_known_args()[0].out.absolute()
out.mkdir(parents=True, exist_ok=True)


# %%
# A network
# ---------
# Seven int8 convolutions. The seed decides the weights alone, as training would.
def network(seed: int, channels: int = 24) -> Path:
    """Write a network whose weights depend on `seed`."""
    rng, w = np.random.default_rng(seed), ModelWriter()
    x = w.activation((1, 16, 16, 3), "int8", 0.1, 3, name="image")
    for depth, size, stride in ((8, 3, 2), (channels, 3, 2), *4 * ((24, 3, 1),), (10, 1, 2)):
        x = w.convolution(x, depth, size, stride, rng)
    w.outputs = [x]
    path = out / f"detector{seed}_{channels}.tflite"
    path.write_bytes(w.finish())
    return path


model = network(0)

# %%
# What is in flash
# ----------------
# ``plan`` tells weights and tables, and estimates the code. For every ``optimise`` it shows flash against time.
plan = tvm_cascade.plan(model, target="cortex-m4")
print(plan.to_text(details=True))
assert plan.need is not None
weights = plan.need.constants

# %%
# Too little
# ----------
# ``--flash`` caps code, weights and tables of the linked image, as the flash of a chip does. The refusal lists what saves bytes,
# and what that costs. (Where weights are mostly small, as trained ones are, the cap codes them first. Random ones have nothing to
# save.)
cap = weights - 1000
try:
    tvm_cascade.plan(model, target="cortex-m4", flash=cap)
    raise AssertionError("it fits")
except InfeasibleError as error:
    print(error)
    remedies = error.to_dict().get("remedies", [])
for one in remedies:
    print(f"{one['option']:<22}{one['saved_bytes']:>7} bytes saved, {one['ram_bytes']:>6} bytes of RAM")

# %%
# A file beside the image
# -----------------------
# Other memory that the core addresses, such as flash behind a QSPI bus, can hold the weights: ``weights="file"`` writes
# ``weights.bin``, and the program binds it by pointer. The image keeps the cap now. In the emulator the file lies behind it.
try:
    made = tvm_cascade.compile(
        model, target="cortex-m4", flash=cap, weights="file", name="detector", output=out / "detector"
    )
except MissingToolError as error:
    raise SystemExit(f"the rest needs a cross compiler: {error}") from None
print(made.to_text())
assert made.flash_bytes is not None and made.flash_bytes <= cap
try:
    done = tvm_cascade.run(out / "detector", check=model)
except MissingToolError as error:
    raise SystemExit(f"the rest needs an emulator: {error}") from None
print(done.to_text())
assert done.match

# %%
# The header says what the program calls, and which errors it gets:
text = (out / "detector/detector.h").read_text()
print("\n".join(line for line in text.splitlines() if "WEIGHTS" in line or "bind_weights" in line))

# %%
# Memory that the core does not address
# -------------------------------------
# Flash behind plain SPI, or an SD card, is read by a function of yours, ``port_read_weights``. The weights of a layer are read
# into one of two buffers while the layer before computes from the other. They are RAM, and the plan counts them.
streamed = tvm_cascade.compile(model, target="cortex-m4", weights="stream", name="detector", output=out / "streamed")
print(
    f"{streamed.peak_bytes} bytes of arena, {streamed.ram_weight_bytes} bytes of buffers, {streamed.flash_bytes} of flash"
)
assert streamed.ram_weight_bytes < weights and tvm_cascade.run(out / "streamed", check=model).match

# %%
# Trained again
# -------------
# New weights of the same network have the same code: the old image takes them, and nothing is linked again. The host's program
# has kernels of its own and a copy of the first weights, so outputs are compared with the reference alone.
again = network(1)
tvm_cascade.compile(again, target="cortex-m4", weights="file", name="detector", output=out / "again")
shutil.copy(out / "again/weights.bin", out / "detector/weights.bin")
done = tvm_cascade.run(out / "detector", check=again)
print(done.to_text())
assert done.match

# %%
# Weights of another network are refused before anything reads them: here in a sentence, on the device by the error
# ``DETECTOR_WEIGHTS_FOREIGN``.
other = network(0, channels=20)
tvm_cascade.compile(other, target="cortex-m4", weights="file", name="detector", output=out / "other")
shutil.copy(out / "other/weights.bin", out / "detector/weights.bin")
try:
    tvm_cascade.run(out / "detector")
    raise AssertionError("it was taken")
except LoadError as error:
    print(error)
