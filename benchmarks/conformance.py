"""The whole ONNX backend suite: `python benchmarks/conformance.py` writes `benchmarks/results/conformance.md`.

    python benchmarks/conformance.py [--update] [--jobs N] [--resume FILE] [PATTERN ...]

Exit status 1 where a case is wrong, crashes or hangs, or does not end as `tests/conformance/expected.txt` says; `--update`
writes that list anew (the lines of the cases that were run): read the diff, and commit it with the change. A PATTERN, such as
`node/test_pad*`, runs those cases only, and writes the table only with `--update`, from the list. `--resume FILE` appends
every outcome to FILE as soon as it is known, and takes from there what an earlier run, which was interrupted, has found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # every case is a fork of this process

import onnx

from tvm_cascade.testing.conformance import (
    COMPILE,
    CONSTANTS,
    PIPELINE,
    REFUSES,
    line,
    outcomes,
    read_expected,
    written,
)
from tvm_cascade.testing.forked import PASS, REFUSED, Outcome
from tvm_cascade.testing.onnx_suite import Case, suite

HERE = Path(__file__).parent
EXPECTED = HERE.parent / "tests" / "conformance" / "expected.txt"
RESULTS = HERE / "results" / "conformance.md"
_ROADS = tuple(f"pass by {road}{more}" for more in ("", f", {CONSTANTS}") for road in (COMPILE, PIPELINE))
_UNRECORDED = "pass, by a road that was not recorded"  # of a run before roads were
HEAD = f"""# The ONNX backend suite

Every case of onnx {onnx.__version__} with tensors of numbers in and out, compiled for the host and run (`compile`), or
through the Relax pipeline for bytes (`pipeline`): one of them comes first, by the name of the case, and the other is asked where
that refuses. Where both refuse, the inputs after the first become constants (`tvm_cascade/testing/conformance.py`). What is
expected of each, and by which road, is in
`tests/conformance/expected.txt`.

"""


def table(expected: Mapping[str, Outcome], operators: Mapping[str, str]) -> str:
    """Return the counts of the roads and verdicts by group of cases, and of the refusals by operator and reason."""
    ends = {name: _end(outcome) for name, outcome in expected.items()}
    first = (*_ROADS, _UNRECORDED, REFUSED)
    columns = [*(c for c in first if c in ends.values()), *sorted({*ends.values()} - {*first})]
    groups = Counter((name.split("/")[0], end) for name, end in ends.items())
    lines = [f"| cases | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for group in sorted({group for group, _ in groups}):
        lines.append(f"| {group} | {' | '.join(str(groups[group, c]) for c in columns)} |")
    totals = Counter(ends.values())
    lines.append(f"| all {len(expected)} | {' | '.join(str(totals[c]) for c in columns)} |")
    if left := len(operators) - len(expected):
        lines += ["", f"{left} cases were not run."]
    refused = Counter((operators[name], o.reason) for name, o in expected.items() if o.verdict != PASS)
    lines += _reasons("What is refused, by the operator that the case is of:", refused)
    pipeline = Counter(
        (operators[name], o.reason.split(REFUSES, 1)[1])
        for name, o in expected.items()
        if o.verdict == PASS and REFUSES in o.reason
    )
    head = "What `compile` refuses of the cases that pass by `relax_pipeline`; it was not asked of those that came to that first:"
    lines += _reasons(head, pipeline)
    return HEAD + "\n".join(lines) + "\n"


def _end(outcome: Outcome) -> str:
    """Return the road of a case that passed, else its verdict."""
    if outcome.verdict != PASS:
        return outcome.verdict
    if not outcome.reason:
        return _UNRECORDED
    road, *rest = outcome.reason.split("; ")
    return f"pass by {road}{f', {CONSTANTS}' if CONSTANTS in rest else ''}"


def _reasons(head: str, counts: Mapping[tuple[str, str], int]) -> list[str]:
    rows = [
        f"| {n} | {operator} | {reason.replace('|', '/')} |"
        for (operator, reason), n in sorted(counts.items(), key=_most_first)
    ]
    return ["", head, "", "| cases | operator | reason |", "| ---: | --- | --- |", *rows] if rows else []


def _most_first(item: tuple[tuple[str, str], int]) -> tuple[int, tuple[str, str]]:
    return -item[1], item[0]


def _operator(case: Case) -> str:
    """The operator that a case is of: its only one, or the group's name."""
    kinds = {node.op_type for node in case.model.graph.node if node.op_type != "Constant"}
    return kinds.pop() if len(kinds) == 1 else f"several ({case.name.split('/')[0]})"


def run(
    cases: Sequence[Case], known: Mapping[str, Outcome], jobs: int, resume: Path | None = None
) -> tuple[dict[str, Outcome], int]:
    """The outcomes by name, and how many are wrong, crash, hang or are not as known."""
    found, bad = {}, 0
    for case, outcome in _resumed(cases, jobs, resume) if resume else outcomes(cases, jobs):
        found[case.name] = outcome
        expected = known.get(case.name)
        failed = outcome.verdict not in (PASS, REFUSED)
        changed = expected is None or expected.verdict != outcome.verdict
        bad += failed or changed
        if failed or changed:
            was = "new" if expected is None else f"was {expected.verdict}"
            print(f"{case.name}: {outcome.verdict} ({was}) {outcome.reason}", flush=True)
    return found, bad


def _resumed(cases: Sequence[Case], jobs: int, path: Path) -> Iterator[tuple[Case, Outcome]]:
    """The outcomes that a file holds, and those of all other cases, which are appended to it one by one."""
    held = read_expected(path) if path.is_file() else {}
    yield from ((case, held[case.name]) for case in cases if case.name in held)
    with path.open("a") as file:
        for case, outcome in outcomes((case for case in cases if case.name not in held), jobs):
            file.write(line(case.name, outcome) + "\n")
            file.flush()
            yield case, outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="The whole ONNX backend suite")
    parser.add_argument("--update", action="store_true", help="write the list of expected outcomes anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with, and keep, the outcomes in this file")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    args = parser.parse_args()
    cases = suite()
    chosen = [c for c in cases if not args.patterns or any(fnmatch(c.name, p) for p in args.patterns)]
    known = read_expected(EXPECTED) if EXPECTED.is_file() else {}
    found, bad = run(chosen, known, args.jobs, args.resume)
    counts = Counter(o.verdict for o in found.values())
    print(f"{len(found)} cases: " + ", ".join(f"{v} {n}" for v, n in counts.most_common()))
    listed = {**(known if args.patterns else {}), **found}
    if args.update:
        EXPECTED.write_text(written(listed))
    if args.update or not args.patterns:
        operators = {c.name: _operator(c) for c in cases}
        RESULTS.write_text(table({name: o for name, o in listed.items() if name in operators}, operators))
    return int(bad > 0 and not args.update)


if __name__ == "__main__":
    sys.exit(main())
