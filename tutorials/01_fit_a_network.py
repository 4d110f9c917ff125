"""
Fit a network into less memory than its largest tensor
======================================================

Plan a network, compile it for a board, run it on the emulated board, and see that nothing changed.

.. code-block:: console

    $ python tutorials/01_fit_a_network.py [--out DIR]

The network tells drawn shapes apart: 64x64 grey images, int8, trained by ``tools/train_shapes.py``. Layer by layer it needs
over 40,000 bytes of RAM; its board here has an SRAM budget of 12 KiB.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

import tvm_cascade
from tvm_cascade.testing import shapes

MODEL = Path(shapes.__file__).parent / "data" / "shapes.tflite"
SRAM = 12 * 1024

parser = argparse.ArgumentParser(description="Fit a network into less memory than its largest tensor.")
parser.add_argument("--out", type=Path, default=Path("demo-out"))
out = parser.parse_known_args()[0].out

# %%
# What does the plain network need?
# ---------------------------------
# ``layerwise`` plans it as any other tool would run it: one operator after the other, every tensor whole.
plain = tvm_cascade.plan(MODEL, layerwise=True)
print(f"layer by layer   {plain.plan.peak} bytes")

# %%
# The cascade under the cap
# -------------------------
# Without a cap, ``plan`` looks for the smallest arena. With one it takes the plan that costs least within it. The first lines
# say what it takes, which boards hold it, and which other plans are worth having. ``details=True`` adds tables: what the steps
# of every segment make, then where every block lies in the arena and how long it lives.
result = tvm_cascade.plan(MODEL, sram=SRAM)
print(result.to_text(details=True))
print("frontier: " + ", ".join(f"{p} bytes at {f:.2f}x the work" for p, f in result.frontier))

# %%
# Firmware
# --------
# A folder with C sources, weights, linker script and ``main.c``, compiled and linked. Without a cross compiler and an emulator
# the same row kernels run on this machine.
tools = all(shutil.which(tool) for tool in ("arm-none-eabi-gcc", "qemu-system-arm"))
target, board = ("cortex-m4", "mps2-an386") if tools else ("host", "host")
firmware = tvm_cascade.compile(MODEL, target=target, board=board, sram=SRAM, output=out / "firmware")
print(firmware.to_text())

# %%
# The plan as a page, with its pictures as files beside it.
result.write_report(out / "report")
print(f"pictures in {out / 'report'}")

# %%
# Run it on pictures it has never seen
# ------------------------------------
# ``check`` compares every output with LiteRT's reference kernels on the same input.
images, labels = shapes.dataset(4, seed=99)
pixels = np.clip(np.round(images * 255) - 128, -128, 127).astype(np.int8)
runs = [tvm_cascade.run(out / "firmware", inputs={"image": p[None]}, check=MODEL) for p in pixels]
answers = [int(r.outputs["scores"].argmax()) for r in runs]


def drawn(image: np.ndarray) -> list[str]:
    """A 64x64 picture as 16 lines of text."""
    blocks = " ░▒▓█"
    cells = image.reshape(16, 4, 32, 2).mean((1, 3))
    return ["".join(blocks[min(int(v * len(blocks)), len(blocks) - 1)] for v in row) for row in cells]


print(f"on {board}:")
for lines in zip(*(drawn(i[..., 0]) for i in images), strict=True):
    print("  ".join(lines))
said = (f"{shapes.CLASSES[a]} (drawn: {shapes.CLASSES[t]})" for a, t in zip(answers, labels, strict=True))
print("  ".join(text.ljust(32) for text in said))

# %%
# The memory report
# -----------------
# The peak that was planned is the arena that was allocated, and what the emulator saw being touched.
print(runs[0].to_text())
exact = all(r.match is not False and r.equals_host for r in runs)
print(f"bit-exact: {exact}; {plain.plan.peak} bytes became {firmware.plan.peak}")
if not exact:
    raise SystemExit(1)
