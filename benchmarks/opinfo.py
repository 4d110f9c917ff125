"""PyTorch's OpInfo database as `.pt2` files: `python benchmarks/opinfo.py` writes `benchmarks/results/opinfo.md`.

    python benchmarks/opinfo.py [--update] [--jobs N] [--resume FILE] [PATTERN ...]

Exit status 1 where a sample is wrong, crashes or hangs, or does not end as `tests/conformance/opinfo.txt` says; `--update`
writes that list anew (the lines of what was run): read the diff, and commit it with the change. A PATTERN, such as
`'topk *'`, runs those entries only, and writes the table only with `--update`. `--resume FILE` appends every outcome to FILE as
soon as it is known, and takes from there what an earlier run, which was interrupted, has found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # every entry is a fork of this process

import torch

from tvm_cascade.testing.forked import CRASH, HANG, PASS, REFUSED, WRONG, Outcome
from tvm_cascade.testing.opinfo import LEFT_OUT, Entry, entries, line, outcomes, read_expected, written

HERE = Path(__file__).parent
EXPECTED = HERE.parent / "tests" / "conformance" / "opinfo.txt"
RESULTS = HERE / "results" / "opinfo.md"
HEAD = f"""# PyTorch's OpInfo database

One sample of every operator of the database of torch {torch.__version__}, of each of three types, as a `.pt2` file, compiled
for the host and run; the reference is torch. What is expected of each is in `tests/conformance/opinfo.txt`. Left out are
samples that torch does not compute or export, or whose results are no numbers of fixed value.

"""


def table(expected: Mapping[str, Outcome]) -> str:
    """Return the counts of the verdicts by type, and of the refusals by operator and reason."""
    verdicts = [
        v for v in (PASS, REFUSED, WRONG, CRASH, HANG, LEFT_OUT) if any(o.verdict == v for o in expected.values())
    ]
    groups = Counter((name.split()[-1], o.verdict) for name, o in expected.items())
    totals = Counter(o.verdict for o in expected.values())
    lines = [f"| entries | {' | '.join(verdicts)} |", "| --- |" + " ---: |" * len(verdicts)]
    for group in sorted({group for group, _ in groups}):
        lines.append(f"| {group} | {' | '.join(str(groups[group, v]) for v in verdicts)} |")
    lines.append(f"| all {len(expected)} | {' | '.join(str(totals[v]) for v in verdicts)} |")
    lines += ["", "What is refused:", "", "| entries | operator | reason |", "| ---: | --- | --- |"]
    refused = Counter((name.split()[0], _short(o.reason)) for name, o in expected.items() if o.verdict == REFUSED)
    for (operator, reason), count in sorted(refused.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"| {count} | {operator} | {reason.replace('|', '/')} |")
    return HEAD + "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """Return a reason without the name of the file and without remedies."""
    return reason.removeprefix("sample.pt2: ").split(": --")[0]


def run(
    chosen: Sequence[Entry], known: Mapping[str, Outcome], jobs: int, resume: Path | None
) -> tuple[dict[str, Outcome], int]:
    """Return the outcomes by name, and how many are wrong, crash, hang or are not as known."""
    found, bad = {}, 0
    for entry, outcome in _resumed(chosen, jobs, resume) if resume else outcomes(chosen, jobs):
        found[entry.name] = outcome
        expected = known.get(entry.name)
        failed = outcome.verdict in (WRONG, CRASH, HANG)
        changed = expected is None or expected.verdict != outcome.verdict
        bad += failed or changed
        if failed or changed:
            was = "new" if expected is None else f"was {expected.verdict}"
            print(f"{entry.name}: {outcome.verdict} ({was}) {outcome.reason}", flush=True)
    return found, bad


def _resumed(chosen: Sequence[Entry], jobs: int, path: Path) -> Iterator[tuple[Entry, Outcome]]:
    """Yield the outcomes that a file holds, and those of all other entries, which are appended to it one by one."""
    held = read_expected(path) if path.is_file() else {}
    yield from ((entry, held[entry.name]) for entry in chosen if entry.name in held)
    with path.open("a") as file:
        for entry, outcome in outcomes((e for e in chosen if e.name not in held), jobs):
            file.write(line(entry.name, outcome) + "\n")
            file.flush()
            yield entry, outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="PyTorch's OpInfo database")
    parser.add_argument("--update", action="store_true", help="write the list of expected outcomes anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with, and keep, the outcomes in this file")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    args = parser.parse_args()
    chosen = [e for e in entries() if not args.patterns or any(fnmatch(e.name, p) for p in args.patterns)]
    known = read_expected(EXPECTED) if EXPECTED.is_file() else {}
    found, bad = run(chosen, known, args.jobs, args.resume)
    counts = Counter(o.verdict for o in found.values())
    print(f"{len(found)} entries: " + ", ".join(f"{v} {n}" for v, n in counts.most_common()))
    listed = {**(known if args.patterns else {}), **found}
    if args.update:
        EXPECTED.write_text(written(listed))
    if args.update or not args.patterns:
        RESULTS.write_text(table(listed))
    return int(bad > 0 and not args.update)


if __name__ == "__main__":
    sys.exit(main())
