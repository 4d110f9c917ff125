"""Six Keras applications in int8: arena beside layer by layer, and equality with LiteRT's reference kernels.

`python benchmarks/zoo.py FOLDER` reads the `.tflite` files that `zoo_convert.py FOLDER` made (with TensorFlow, in
an environment of its own) and writes `benchmarks/results/zoo.md`. One process a network, so that a slow one costs no
other; `--append` keeps the rows of networks that have one already.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
HEAD = """# Keras applications, int8, batch 1

Converted by the TFLite converter (full integer quantization, int8 inputs and outputs) with random weights and random
representative data; see `zoo_convert.py`. RAM in bytes: inputs, outputs, intermediates, counters, scratch,
all in the arena. "Exact" compares every output element of a run on the host with LiteRT's reference kernels. The arena
touched and the multiply-accumulates executed are measured in that run, "bound" is a proven lower bound of the plan, and
"compile s" was measured on a machine that was busy with other work.

| network | file | layerwise | arena | factor | bound | MACs | touched | executed | exact | compile s | all s |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |
"""


def measure(model: Path) -> dict[str, object]:
    """Compile `model` for the host and run it against the reference."""
    import tvm_cascade

    started = time.perf_counter()
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        made = tvm_cascade.compile(model, target="host", output=Path(folder) / "p", progress=say)
        compiled = time.perf_counter() - started
        ran = tvm_cascade.run(Path(folder) / "p", board="host", check=model, progress=say)
    report = made.to_dict()
    keys = ("baseline_peak_bytes", "peak_bytes", "search_bound_bytes", "macs")
    return {k: report[k] for k in keys} | {
        "touched": ran.arena_high_water_bytes,
        "executed": ran.executed_macs,
        "match": ran.match,
        "compile_s": compiled,
        "seconds": time.perf_counter() - started,
    }


def row(model: Path, timeout: float) -> str:
    """A line of the table; a network that fails or takes too long says so."""
    command = [sys.executable, __file__, "--one", str(model)]
    size = model.stat().st_size
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"| {model.stem} | {size} | not done in {timeout:.0f} s |"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"| {model.stem} | {size} | {last[:200].replace('|', '/')} |"
    d = json.loads(done.stdout.splitlines()[-1])
    factor = d["baseline_peak_bytes"] / d["peak_bytes"]
    return (
        f"| {model.stem} | {size} | {d['baseline_peak_bytes']} | {d['peak_bytes']} | {factor:.2f}x "
        f"| {d['search_bound_bytes']} | {d['macs']} | {d['touched']} | {d['executed']} "
        f"| {'yes' if d['match'] else 'no'} | {d['compile_s']:.0f} | {d['seconds']:.0f} |"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", action="store_true", help="measure this one file and print JSON")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="S")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.folder)))
        return
    target = RESULTS / "zoo.md"
    rows: dict[str, str] = {}
    if args.append and target.exists():
        lines = [line for line in target.read_text().splitlines() if line.startswith("| ")][2:]
        rows = {line.split("|")[1].strip(): line for line in lines}
    for model in sorted(args.folder.glob("*.tflite"), key=lambda p: p.stat().st_size):
        if args.names and model.stem not in args.names:
            continue
        rows[model.stem] = row(model, args.timeout)
        print(rows[model.stem], flush=True)
        target.write_text(HEAD + "\n".join(rows[k] for k in sorted(rows)) + "\n")


if __name__ == "__main__":
    main()
