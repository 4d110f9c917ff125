"""Cycles and bytes of every operator behind a convolution, estimated, and the dearest counted in the emulator.

python benchmarks/operator_costs.py [--only WORD ...] [--forms float qdq int8] [--core cortex-m4] [--count 10]

Networks are `tvm_cascade/testing/cost_cases.py`. Writes `results/operator_costs.md`, unless `--only` leaves some out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tvm_cascade import api
from tvm_cascade.errors import CascadeError
from tvm_cascade.testing.cost_cases import ALONE, Case, Price, cases, priced

RESULTS = Path(__file__).parent / "results" / "operator_costs.md"
_HEAD = """# Operators behind a convolution, in cycles and bytes

A convolution of 16 channels of 16 x 16 pixels and one operator, planned by default for a {core}. Cycles are estimated, of
the operator alone, by element of input or output (whichever are more) and by product; the arena is that of the network
relative to that of the convolution alone, or to the outputs where these are larger. Forms: float and quantized (QDQ) `.onnx`,
int8 `.tflite`. Made by `python benchmarks/operator_costs.py`.

| operator | form | kind | cycles by element | by product | arena |
| --- | --- | --- | ---: | ---: | ---: |
"""
_COUNTED = """
The dearest by element, as counted in the emulator: instructions of the whole network, its convolution included.

| operator | form | estimated | counted | ratio |
| --- | --- | ---: | ---: | ---: |
"""


def prices(chosen: list[Case], core: str) -> list[Price]:
    """Return the prices of cases, and print each."""
    found = []
    for case in chosen:
        try:
            found += priced([case], core)
        except CascadeError as why:
            print(f"{case.label}: {why}", flush=True)
            continue
        price = found[-1]
        print(f"{case.label:60} {price.by_element:9.1f} {price.by_product:7.2f} {price.arena:6.2f}", flush=True)
    return found


def counted(price: Price, core: str) -> int:
    """Return the instructions of an inference in the emulator."""
    with tempfile.TemporaryDirectory() as folder:
        path, form = price.case.write(Path(folder)), price.case.form
        api.compile(path, target=core, output=Path(folder) / "p", stored_io=form == "qdq")
        return api.run(Path(folder) / "p").instructions or 0


def row(price: Price) -> str:
    by_product = f"{price.by_product:.2f}" if price.products else ""
    name, form, kind = price.case.name, price.case.form, price.case.kind
    return f"| {name} | {form} | {kind} | {price.by_element:.1f} | {by_product} | {price.arena:.2f} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Cycles and bytes of operators behind a convolution.")
    parser.add_argument("--only", nargs="*", default=[], help="words, of which a case's name has one")
    parser.add_argument("--forms", nargs="*", default=["float", "qdq", "int8"])
    parser.add_argument("--core", default="cortex-m4")
    parser.add_argument("--count", type=int, default=10, help="cases of each form that are counted in the emulator")
    args = parser.parse_args()
    chosen = [c for c in cases() if c.form in args.forms and c.name != ALONE]
    chosen = [c for c in chosen if not args.only or any(word in c.name for word in args.only)]
    found = prices(chosen, args.core)
    counts = []
    for form in args.forms:
        dearest = sorted((p for p in found if p.case.form == form), key=lambda p: -p.by_element)[: args.count]
        for price in dearest:
            taken = counted(price, args.core)
            ratio = price.instructions / taken
            counts.append(f"| {price.case.name} | {form} | {price.instructions:,.0f} | {taken:,} | {ratio:.2f} |\n")
            print(counts[-1], end="", flush=True)
    if not args.only and len(args.forms) == 3:
        tables = "".join(map(row, found)), "".join(counts)
        RESULTS.write_text(_HEAD.format(core=args.core) + tables[0] + _COUNTED + tables[1], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
