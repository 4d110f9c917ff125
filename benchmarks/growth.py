"""How `plan` grows with the number of operators: bytes, processor time and memory, in `benchmarks/results/growth.md`.

    python benchmarks/growth.py [--only chain|cells|wired] [--most N]

Networks of 16 x 16 x 8: convolutions of 3 x 3 in a chain; cells of three convolutions and a sum; randomly wired ones, where
every convolution reads the sum of two of the last nine. Seconds are user + system seconds of the process, `loops` those in
a fixed loop that is timed before and after every command. An exponent is that of the seconds from 100 to the most operators,
less the seconds of a network of one operator.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from math import log
from pathlib import Path

from speed import RESULTS, Runner, loop
from speed_networks import Network, chain

PLAN = """
import contextlib, sys
from tvm_cascade.cli import main
with open(sys.argv.pop(1), "w") as file, contextlib.redirect_stdout(file):
    main(sys.argv[1:])
"""
SIZES = (100, 150, 200, 201, 300, 400, 800)


def cells(count: int) -> bytes:
    """Write cells of four operators: three convolutions, and the sum of the cell's input and the last convolution."""
    n = Network(16, 8)
    x = n.image
    for _ in range(count // 4):
        x = n.add(x, n.conv(n.conv(n.conv(x, 8), 8, 3), 8))
    return n.done(x)


def wired(count: int) -> bytes:
    """Write convolutions, each of the sum of two of the last nine, in `count` operators; unread values are summed up."""
    n = Network(16, 8)
    values, read = [n.conv(n.image, 8)], set[int]()
    while len(n._operators) < count:
        a, b = (int(v) for v in n.rng.integers(max(0, len(values) - 9), len(values), 2))
        read |= {a, b}
        x = values[a] if a == b else n.add(values[a], values[b])
        values.append(n.conv(x, 8, 1 if len(values) % 2 else 3))
    loose = [value for k, value in enumerate(values) if k not in read]
    for value in loose[1:]:
        loose[0] = n.add(loose[0], value)
    return n.done(loose[0])


FAMILIES: dict[str, Callable[[int], bytes]] = {"chain": chain, "cells": cells, "wired": wired}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="operators of the largest network")
    args = parser.parse_args()
    families = [args.only] if args.only else list(FAMILIES)
    sizes = [size for size in SIZES if size <= args.most]
    lines, exponents = [], []
    with tempfile.TemporaryDirectory() as text:
        runner = Runner(Path(text))
        subprocess.run([sys.executable, "-m", "tvm_cascade", "--help"], capture_output=True, check=True)
        for family in families:
            seconds = {}
            for size in (1, *sizes):
                path = Path(text) / f"{family}_{size}.tflite"
                path.write_bytes(chain(1) if size == 1 else FAMILIES[family](size))
                made = Path(text) / "plan.json"
                before = loop()
                ran = runner.run((sys.executable, "-c", PLAN, str(made), "plan", str(path), "--json"))
                unit = (before + loop()) / 2
                if ran.status != 0:
                    raise SystemExit(f"{path.name}: {(Path(text) / 'errors.txt').read_text()[-300:]}")
                seconds[size] = ran.seconds
                plan = json.loads(made.read_text())
                bound = plan["search_bound_bytes"]
                row = (
                    family, size, f"{plan['peak_bytes']:,}", f"{bound:,}", f"{ran.seconds:.1f}", f"{ran.seconds / unit:.1f}",
                    f"{ran.megabytes:.0f}", "yes" if plan["limited"] else "",
                )  # fmt: skip
                print(*row, flush=True)
                if size > 1:
                    lines.append("| " + " | ".join(map(str, row)) + " |")
            if len(sizes) > 1:
                few, many = (seconds[size] - seconds[1] for size in (sizes[0], sizes[-1]))
                exponents.append(f"- {family}: {log(many / few) / log(sizes[-1] / sizes[0]):.2f}")
    head = (
        f"# Growth of `plan`\n\n{(__doc__ or '').split(chr(10), 4)[4].strip()}\n\n"
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}.\n\n| network | operators | bytes | bound | seconds | loops | MB | limited |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"
    )
    (RESULTS / "growth.md").write_text(head + "\n".join(lines) + "\n\nExponents:\n\n" + "\n".join(exponents) + "\n")


if __name__ == "__main__":
    main()
