"""Networks along time by way in: the default plan beside the fastest, arenas and counted instructions of an inference.

python benchmarks/time_doors.py FOLDER [PATTERN]

FOLDER has the files of `time_files.py`. Each is compiled for a Cortex-M4 by default, which may take 1.2 times the instructions
of the fastest plan by estimate, and with `--max-time 1.0`, and run in the emulator; int8 `.onnx` and `.pt2` have
`--stored-io`. Counts are kept in FOLDER, and what is counted is not counted again. Writes results/time_doors.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from time_networks import NETWORKS

from tvm_cascade import api

RESULTS = Path(__file__).parent / "results" / "time_doors.md"
_DOORS = {"tflite": ".tflite", "onnx": ".onnx", "pt2": ".pt2"}
_LIMIT = 1.27  # of counted instructions: 1.2 by estimate, and its error
_APART = 128  # bytes by which the arenas of one network may differ from way to way


def counted(path: Path) -> list[int]:
    """Return the bytes layer by layer, then bytes and instructions of the default and of the fastest plan."""
    kept = path.with_name(path.name + ".json")
    if kept.exists():
        return json.loads(kept.read_text())
    stored = ".int8." in path.name and path.suffix != ".tflite"
    numbers = list[int]()
    for most in (1.2, 1.0):
        with tempfile.TemporaryDirectory() as folder:
            made = api.compile(path, target="cortex-m4", output=Path(folder) / "p", max_time=most, stored_io=stored)
            numbers += [made.plan.peak, api.run(Path(folder) / "p").instructions or 0]
            first = made.plan.baseline_peak
    kept.write_text(json.dumps([first, *numbers]))
    return [first, *numbers]


def table(folder: Path) -> str:
    """Return the table of what is counted."""
    lines = ["| network | way in | layer by layer | default | instructions | fastest | instructions | factor |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for kept in sorted(folder.glob("*.json")):
        name, dtype, door, _ = kept.name.split(".")
        first, peak, taken, most, least = json.loads(kept.read_text())
        cells = f"{first:,} | {peak:,} | {taken:,} | {most:,} | {least:,} | {taken / least:.2f}"
        lines.append(f"| {name} {dtype} | `{_DOORS[door]}` | {cells} |")
    return "\n".join(lines)


def apart(folder: Path) -> list[str]:
    """Return the networks whose arenas differ by more than `_APART` bytes from way to way."""
    peaks: dict[str, list[int]] = {}
    for kept in sorted(folder.glob("*.json")):
        name, dtype, *_ = kept.name.split(".")
        peaks.setdefault(f"{name} {dtype}", []).append(json.loads(kept.read_text())[1])
    return [name for name, of in peaks.items() if max(of) - min(of) > _APART]


def main() -> None:
    folder, pattern = Path(sys.argv[1]), (*sys.argv[2:], "*")[0]
    for suffix in _DOORS:
        for path in sorted(folder.glob(f"{pattern}.{suffix}")):
            try:
                print(path.name, *counted(path), flush=True)
            except Exception as error:  # the table is of the rest
                print(path.name, type(error).__name__, error, flush=True)
    rows = table(folder)
    high = [line for line in rows.splitlines()[2:] if float(line.split("|")[-2]) > _LIMIT]
    RESULTS.write_text(f"""# Networks along time, by way in

`python benchmarks/time_files.py FOLDER torch`, the same with `keras` where TensorFlow is, then
`python benchmarks/time_doors.py FOLDER`. Bytes of the arena and instructions of an inference on a Cortex-M4, counted in the
emulator: of the default plan, and of `--max-time 1.0`. The default may take 1.2 times the fastest plan's instructions by
estimate, {_LIMIT} as counted; {len(high)} of {len(rows.splitlines()) - 2} files take more, of {2 * len(_DOORS) * len(NETWORKS)}
that the builders make; the others are not counted here. Weights, scales and paddings of strided
layers differ from way to way. Arenas differ by more than {_APART} bytes for: {", ".join(apart(folder)) or "none"}. What a
quantizer leaves in floats takes four times the bytes: layer norms by `.onnx` and `.pt2`, products of two activations and the
softmax between them by `.pt2` too.

{rows}
""")
    print(f"{len(high)} above {_LIMIT}")


if __name__ == "__main__":
    main()
