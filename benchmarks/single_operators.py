"""Single operators of raw `.tflite` files, changed at random, against LiteRT's reference kernels.

`python benchmarks/single_operators.py` draws 2,000 (`--count`, from `--first` on) and writes
`benchmarks/results/single_operators.md`; exit status 1 where one is wrong, crashes or hangs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # every case is a fork of this process

from tvm_cascade.testing.forked import PASS, REFUSED, forked
from tvm_cascade.testing.single_operators import UNKNOWN, drawn, examined

RESULTS = Path(__file__).parent / "results" / "single_operators.md"
HEAD = """# Single operators, changed at random

One operator a file, in up to three places changed to scales, zero points, types and attributes that no converter writes
(`tvm_cascade/testing/single_operators.py`), against LiteRT's reference kernels; unknown is what these do not take.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Single operators of raw .tflite files, changed at random")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    args = parser.parse_args()
    counts, bad = Counter[str](), []
    cases = (drawn(seed) for seed in range(args.first, args.first + args.count))
    for case, outcome in forked(cases, examined, args.jobs):
        counts[outcome.verdict] += 1
        if outcome.verdict not in (PASS, REFUSED, UNKNOWN):
            bad.append(f"| {outcome.verdict} | {case.name} | {outcome.reason.replace('|', '/')} |")
            print(bad[-1], flush=True)
    said = f"{args.count} from seed {args.first}: " + ", ".join(f"{v} {n}" for v, n in counts.most_common())
    found = ["", "| verdict | operator, type, seed, changes | difference |", "| --- | --- | --- |", *bad] if bad else []
    print(said)
    RESULTS.write_text(HEAD + "\n".join([said, *found]) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
