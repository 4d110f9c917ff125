"""Random small DAGs of windowed operators, cascaded in many ways and run: `python benchmarks/random_dags.py`.

    python benchmarks/random_dags.py [--first N] [--count N] [--seconds S] [--most N] [--output DIR]

Every plan is replayed by the validator, compiled for this machine, run between canaries, and compared bit for bit with
the module run by TVM itself; multiply-accumulates and the highest byte written are held to the plan. Failures are
listed, none hides another; exit status 1 where there is one. What ran is kept in `random_dags.json` by its first seed,
and `random_dags.md` written from it. On tiny graphs the planner is compared with all orders and cuts
(`tests/cascading/test_brute_force.py`).
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tvm_cascade.testing.random_dags import DagResult, check_dag

RESULTS = Path(__file__).parent / "results"


class Run:
    """What one call of this script ran."""

    def __init__(self, first: int, most: int | None) -> None:
        self.first, self.most, self.networks = first, most, 0
        self.operators: Counter[str] = Counter()
        self.plans: Counter[str] = Counter()
        self.saved: list[float] = []
        self.failed: dict[int, str] = {}

    def add(self, result: DagResult) -> None:
        self.operators.update(result.operators)
        self.plans.update(name for name, _, _ in result.plans)
        self.saved.append(result.baseline / max(result.plans[0][1], 1))

    def to_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "last": self.first + self.networks - 1,
            "networks": self.networks,
            "most": self.most,
            "operators": dict(self.operators.most_common()),
            "plans": dict(self.plans.most_common()),
            "saved": round(sorted(self.saved)[len(self.saved) // 2], 2) if self.saved else None,
            "failed": {str(seed): text for seed, text in self.failed.items()},
        }


def page(runs: list[dict[str, Any]]) -> str:
    """The runs as Markdown."""
    operators, plans = Counter[str](), Counter[str]()
    for run in runs:
        operators.update(run["operators"])
        plans.update(run["plans"])
    lines = [
        "# Random DAGs of windowed operators, cascaded and run\n",
        "Written by `benchmarks/random_dags.py`. Every plan is replayed by the validator, compiled for this machine, run between",
        "canaries, and compared bit for bit with the module run by TVM; multiply-accumulates and the highest byte written are",
        "held to the plan. Ways: how many each network is planned in, the smallest arena first and others drawn; equal plans",
        "run once. Saved: the arena layer by layer, over the smallest (median).\n",
        "| seeds | networks | operators | ways | different plans run | saved | failed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        ran, found = sum(run["plans"].values()), sum(run["operators"].values())
        seeds = f"{run['first']} to {run['last']}{run.get('note', '')}"
        saved = "" if run["saved"] is None else f"{run['saved']}x"
        cells = (seeds, run["networks"], found or "", run["most"] or "all", ran, saved, len(run["failed"]))
        lines.append(f"| {' | '.join(str(c) for c in cells)} |")
    lines += [f"\nSeed {seed}: {text}" for run in runs for seed, text in run["failed"].items()]
    lines.append(f"\nOperators: {', '.join(f'{n} {name}' for name, n in operators.most_common())}.\n")
    lines.append(f"Plans: {', '.join(f'{n} {name}' for name, n in plans.most_common())}.")
    return "\n".join(lines) + "\n"


def keep(run: Run, folder: Path) -> None:
    """Put a run beside those kept before, and write the page."""
    path = folder / "random_dags.json"
    runs = json.loads(path.read_text()) if path.is_file() else []
    runs = sorted([r for r in runs if r["first"] != run.first] + [run.to_dict()], key=lambda r: r["first"])
    path.write_text(json.dumps(runs, indent=1) + "\n")
    (folder / "random_dags.md").write_text(page(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=7200.0, help="stop after that long")
    parser.add_argument("--most", type=int, help="ways to plan each network; all by default")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    started, run = time.perf_counter(), Run(options.first, options.most)
    for seed in range(options.first, options.first + options.count):
        if time.perf_counter() - started > options.seconds:
            break
        run.networks += 1
        try:
            run.add(check_dag(seed, most=options.most))
        except Exception as error:
            run.failed[seed] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            print(f"seed {seed}: {run.failed[seed]}", flush=True)
            traceback.print_exc(limit=-2)
        if run.networks % 25 == 0:
            keep(run, options.output)
            print(f"{run.networks} networks, {sum(run.plans.values())} plans, {len(run.failed)} failed", flush=True)
    keep(run, options.output)
    print(f"{run.networks} networks, {sum(run.plans.values())} different plans run, {len(run.failed)} failed")
    if run.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
