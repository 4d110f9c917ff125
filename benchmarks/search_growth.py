"""How `stages` and `optimize` grow with the number of operators: processor time and work, in `results/search_growth.md`.

    python benchmarks/search_growth.py [--sizes 400 800 2000]

Networks of 16 x 16 x 8: cells of two convolutions, a concatenation and a sum; randomly wired ones, where every convolution
reads the sum of two of the last nine. Seconds are user + system seconds of the whole command. Work: what the schedule's search
priced and passed through, and the graphs that `optimize` visited.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import onnx
from cpu_networks import Writer

RESULTS = Path(__file__).parent / "results"
_WORK = {"stages": "transitions", "optimize": "graphs_explored"}


def cells(count: int) -> onnx.ModelProto:
    """Build cells of six operators, each one's input added to what two convolutions make of it."""
    w, x = Writer(wide=8), "input"
    for _ in range(count // 6):
        x = w.apply("Add", x, w.concat(w.conv(x, 4), w.conv(x, 4, 3, 1, 1)))
    return w.model((1, 8, 16, 16), x)


def wired(count: int) -> onnx.ModelProto:
    """Build convolutions, each of the sum of two of the last nine, in about `count` operators."""
    w, random = Writer(wide=8), np.random.default_rng(0)
    values, read = [w.conv("input", 8)], set[int]()
    while len(values) < count // 2:
        a, b = (int(t) for t in random.integers(max(0, len(values) - 9), len(values), 2))
        read |= {a, b}
        x = values[a] if a == b else w.apply("Add", values[a], values[b])
        one = len(values) % 2
        values.append(w.conv(x, 8, 1 if one else 3, 1, 0 if one else 1, relu=False))
    y, *loose = [value for k, value in enumerate(values) if k not in read]
    for value in loose:
        y = w.apply("Add", y, value)
    return w.model((1, 8, 16, 16), y)


FAMILIES: dict[str, Callable[[int], onnx.ModelProto]] = {"cells": cells, "wired": wired}


def main() -> None:
    """Measure every family at every size and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[400, 800, 2000])
    sizes = parser.parse_args().sizes
    lines = [
        "# Growth of `stages` and `optimize`",
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
        f"Written by `python benchmarks/search_growth.py`; {os.cpu_count()} cores, Python {sys.version.split()[0]}, load average "
        f"{os.getloadavg()[0]:.1f}: beside other jobs processor seconds are up to half as many again.",
        "",
        "| network | command | " + " | ".join(f"{n:,} operators" for n in sizes) + " | exponent of the work |",
        "| --- | --- |" + " ---: |" * (len(sizes) + 1),
    ]
    for name, family in FAMILIES.items():
        for command, key in _WORK.items():
            rows = [measure(family(size), command, key) for size in sizes]
            told = " | ".join(f"{seconds:.1f} s, {work:,} {key.replace('_', ' ')}" for seconds, work in rows)
            grown = log(rows[-1][1] / rows[0][1]) / log(sizes[-1] / sizes[0]) if len(sizes) > 1 else 0.0
            lines.append(f"| {name} | {command} | {told} | {grown:.2f} |")
            print(lines[-1], flush=True)
    (RESULTS / "search_growth.md").write_text("\n".join(lines) + "\n")


def measure(model: onnx.ModelProto, command: str, key: str) -> tuple[float, int]:
    """Return a command's processor seconds and work."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        line = [sys.executable, "-m", "tvm_cascade", command, str(path), "--target", "llvm", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(json.loads(done.stdout)[key])


if __name__ == "__main__":
    main()
