"""One network each from ONNX float, ONNX QDQ, torch.export and litert-torch, from the file to an emulated Cortex-M4.

`python benchmarks/ways_in.py` writes `benchmarks/results/ways_in.md`. Needs the extras `onnx` and `torch`, and torchao; without
them their rows say so. litert-torch (Apache-2.0) has an environment of its own, whose Python `TVM_CASCADE_LITERT_TORCH` names;
`make litert-torch` makes it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import tvm_cascade
from tvm_cascade.errors import MissingToolError
from tvm_cascade.testing.ways_in import WAYS

SIZE, CHANNELS = 96, 16
RESULTS = Path(__file__).parent / "results" / "ways_in.md"
HEAD = f"""# From a file to a board

A residual network on images of {SIZE}x{SIZE}x3 with {CHANNELS} channels (`tvm_cascade/testing/ways_in.py`), compiled for
cortex-m4, run on the emulated mps2-an386, compared with ONNX's evaluator, torch or LiteRT. Bytes; the difference is the largest
of any output, in steps of the output's quantization where there is one.

| way in | layerwise | arena | RAM | flash | MACs | instructions | difference | equal |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


LITERT_TORCH = "litert-torch, float"
_CONVERSION = """
import sys, torch, litert_torch
program = torch.export.load(sys.argv[1])
image = torch.zeros((1, 3, int(sys.argv[3]), int(sys.argv[3])))
litert_torch.convert(program.module(), (image,)).export(sys.argv[2])
"""


def write_litert_torch(path: Path, size: int, channels: int) -> None:
    """Write the float module of torch.export as a `.tflite` file. Raises `ImportError` without litert-torch."""
    python = os.environ.get("TVM_CASCADE_LITERT_TORCH", "")
    if not os.access(python, os.X_OK):
        raise ImportError("`make litert-torch` installs litert-torch")
    exported = path.with_suffix(".pt2")
    WAYS["torch.export, float"][1](exported, size, channels)
    subprocess.run([python, "-c", _CONVERSION, exported, path, str(size)], check=True, capture_output=True, env={})


def row(way: str, folder: Path) -> str:
    """A line of the table."""
    name, write = (WAYS | {LITERT_TORCH: ("litert_torch.tflite", write_litert_torch)})[way]
    try:
        write(folder / name, SIZE, CHANNELS)
    except (MissingToolError, ImportError) as error:
        return f"| {way} | {error} |"
    compiled = tvm_cascade.compile(folder / name, target="cortex-m4", output=folder / f"{name}-fw")
    done = tvm_cascade.run(folder / f"{name}-fw", check=folder / name)
    gap = done.max_abs_diff or 0.0
    difference = f"{gap / done.output_step:.2f} steps" if done.output_step else f"{gap:.1e}"
    return (
        f"| {way} | {compiled.plan.baseline_peak} | {compiled.plan.peak} | {compiled.ram_bytes} | {compiled.flash_bytes} "
        f"| {done.executed_macs} | {done.instructions} | {difference} | {'yes' if done.ok else 'no'} |"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(way, Path(folder)) for way in (*WAYS, LITERT_TORCH)]
    RESULTS.write_text(HEAD + "\n".join(rows) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
