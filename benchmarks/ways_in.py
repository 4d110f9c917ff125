"""One network each from ONNX float, ONNX QDQ and torch.export, from the file to an emulated Cortex-M4.

`python benchmarks/ways_in.py` writes `benchmarks/results/ways_in.md`. Needs the extras `onnx` and `torch`, and torchao; without
them their rows say so.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tvm_cascade
from tvm_cascade.errors import MissingToolError
from tvm_cascade.testing.ways_in import WAYS

SIZE, CHANNELS = 96, 16
RESULTS = Path(__file__).parent / "results" / "ways_in.md"
HEAD = f"""# From a file to a board

A residual network on images of {SIZE}x{SIZE}x3 with {CHANNELS} channels (`tvm_cascade/testing/ways_in.py`), compiled for
cortex-m4, run on the emulated mps2-an386, compared with ONNX's evaluator or torch. Bytes; the difference is the largest
of any output, in steps of the output's quantization where there is one.

| way in | layerwise | arena | RAM | flash | MACs | instructions | difference | equal |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


def row(way: str, folder: Path) -> str:
    """A line of the table."""
    name, write = WAYS[way]
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
        rows = [row(way, Path(folder)) for way in WAYS]
    RESULTS.write_text(HEAD + "\n".join(rows) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
