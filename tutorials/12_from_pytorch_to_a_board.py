"""
From PyTorch to a board
=======================

Train, export by ``torch.onnx.export``, quantize on data, look where accuracy went, compile for a board by name, and take the
package into your build system. PyTorch and onnxscript are needed: ``pip install torch onnx onnxscript``.

.. code-block:: console

    $ python tutorials/12_from_pytorch_to_a_board.py [--out DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import tvm_cascade
from tvm_cascade.errors import MissingToolError

try:
    import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise SystemExit(f"{error}: pip install torch onnx onnxscript") from None

parser = argparse.ArgumentParser(description="Bring a network from PyTorch to a board.")
parser.add_argument("--out", type=Path, default=Path("pytorch-out"))
out = parser.parse_known_args()[0].out.absolute()
out.mkdir(parents=True, exist_ok=True)
SIZE = 16


# %%
# Pictures
# --------
# Bars on noise: across, upright, or both ways. Yours are photographs, sounds, readings of a sensor.
def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw pictures [count, SIZE, SIZE] with a bar, and their classes: 0 across, 1 upright, 2 both."""
    rng = np.random.default_rng(seed)
    images, labels = rng.normal(0, 0.3, (count, SIZE, SIZE)).astype("float32"), rng.integers(0, 3, count)
    for image, label, at in zip(images, labels, rng.integers(2, SIZE - 2, (count, 2)), strict=True):
        if label != 1:
            image[at[0]] += 1
        if label != 0:
            image[:, at[1]] += 1
    return images, labels


train, train_labels = pictures(600, 0)
test, test_labels = pictures(200, 1)

# %%
# Train
# -----
# A small network and a minute of training, or less.
torch.manual_seed(0)
torch.set_num_threads(1)


def block(channels: int, out_channels: int, stride: int) -> torch.nn.Module:
    """Make a convolution with batch normalization, which folds into the weights later."""
    convolution = torch.nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
    return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(out_channels), torch.nn.ReLU())


net = torch.nn.Sequential(
    block(1, 8, 1),
    block(8, 16, 2),
    block(16, 16, 2),
    torch.nn.AdaptiveMaxPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(16, 3),
)
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for _ in range(8):
    for k in range(0, len(train), 50):
        scores = net(torch.from_numpy(train[k : k + 50, None]))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(train_labels[k : k + 50]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net.eval()
with torch.no_grad():
    right = (net(torch.from_numpy(test[:, None])).argmax(1).numpy() == test_labels).mean()
print(f"{100 * right:.1f} % of the test pictures are right in PyTorch")

# %%
# Export
# ------
# The batch is 1, as on the board. Data are saved under the name of the input; ``labels`` are the classes.
torch.onnx.export(
    net,
    (torch.zeros(1, 1, SIZE, SIZE),),
    str(out / "net.onnx"),
    input_names=["image"],
    output_names=["scores"],
    verbose=False,
)
np.savez(out / "calibration.npz", image=train[:300, None], labels=train_labels[:300])
np.savez(out / "test.npz", image=test[:, None], labels=test_labels)

# %%
# Quantize
# --------
# Ranges of the activations are measured on the calibration data. With labels the result has the accuracy before and after.
quantized = tvm_cascade.quantize(out / "net.onnx", data=out / "calibration.npz", output=out / "int8.onnx")
print(quantized.to_text())

# %%
# Where did accuracy go?
# ----------------------
# On other samples than those of the calibration, and by layer, against the float file: the worst tensor stands first.
report = tvm_cascade.validate(out / "int8.onnx", data=out / "test.npz", by_layer=out / "net.onnx")
print(report.to_text())
assert report.accuracy is not None and report.accuracy > right - 0.05

# %%
# To a board
# ----------
# ``plan`` says whether the network fits a board by its name. ``compile`` writes the project, ``run`` compares it with the
# reference kernels in an emulator of the board's core, and ``export`` makes a package for your build system. Its example tests
# the network on the device.
plan = tvm_cascade.plan(out / "int8.onnx", target="nucleo-f446re", stored_io=True)
print(plan.to_text())
try:
    made = tvm_cascade.compile(out / "int8.onnx", target="nucleo-f446re", stored_io=True, output=out / "firmware")
    print(made.to_text())
    done = tvm_cascade.run(out / "firmware", check=out / "int8.onnx")
except MissingToolError as error:
    raise SystemExit(f"the rest needs a cross compiler and an emulator: {error}") from None
print(done.to_text())
assert done.match
files = tvm_cascade.export(out / "firmware", kind="platformio", check=out / "int8.onnx", output=out / "lib")
print(f"{len(files)} files for PlatformIO in {out / 'lib'}")
