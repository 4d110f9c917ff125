"""Fit a network into less memory than its largest tensor, run it on an emulated board, and see that nothing changed.

    python tutorials/01_fit_a_network.py [--out DIR]

The network tells drawn shapes apart: 64x64 grey images, int8, trained by `tools/train_shapes.py`. Layer by layer it needs
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
BLOCKS = " ░▒▓█"


def show(image: np.ndarray) -> list[str]:
    """A 64x64 picture as 16 lines of text."""
    cells = image.reshape(16, 4, 32, 2).mean((1, 3))
    return ["".join(BLOCKS[min(int(v * len(BLOCKS)), len(BLOCKS) - 1)] for v in row) for row in cells]


def heading(text: str) -> None:
    print(f"\n== {text} ==")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    out = parser.parse_args().out

    # 1. What does the plain network need, and what is the least it could?
    heading("plan")
    plain = tvm_cascade.plan(MODEL, layerwise=True)
    print(f"layer by layer   {plain.plan.peak} bytes")
    result = tvm_cascade.plan(MODEL, sram=SRAM)
    print(result.to_text())
    print("frontier: " + ", ".join(f"{p} bytes at {f:.2f}x the work" for p, f in result.frontier))

    # 2. Firmware. Without a cross compiler and an emulator the same row kernels run on the host.
    heading("compile")
    tools = all(shutil.which(tool) for tool in ("arm-none-eabi-gcc", "qemu-system-arm"))
    target, board = ("cortex-m4", "mps2-an386") if tools else ("host", "host")
    firmware = tvm_cascade.compile(MODEL, target=target, board=board, sram=SRAM, output=out / "firmware")
    print(firmware.to_text())
    try:
        result.write_report(out / "report")
        print(f"pictures in {out / 'report'}")
    except tvm_cascade.errors.MissingToolError as missing:
        print(missing)

    # 3. Run it on pictures it has never seen.
    heading(f"run on {board}")
    images, labels = shapes.dataset(4, seed=99)
    pixels = np.clip(np.round(images * 255) - 128, -128, 127).astype(np.int8)
    runs = [tvm_cascade.run(out / "firmware", inputs={"image": p[None]}, check=MODEL) for p in pixels]
    answers = [int(r.outputs["scores"].argmax()) for r in runs]
    for lines in zip(*(show(i[..., 0]) for i in images), strict=True):
        print("  ".join(lines))
    print(
        "  ".join(
            f"{shapes.CLASSES[a]} (drawn: {shapes.CLASSES[t]})".ljust(32) for a, t in zip(answers, labels, strict=True)
        )
    )

    heading("memory report")
    print(runs[0].to_text())
    exact = all(r.match is not False and r.equals_host for r in runs)
    print(f"bit-exact: {exact}; {plain.plan.peak} bytes became {firmware.plan.peak}")
    if not exact:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
