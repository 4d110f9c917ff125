"""Random small DAGs of windowed operators, cascaded at several caps and run: `python benchmarks/random_dags.py`.

    python benchmarks/random_dags.py [--first N] [--count N] [--seconds S] [--most N]

Every plan is replayed by the validator, compiled for this machine, run between canaries, and compared bit for bit with
the module run by TVM itself; multiply-accumulates and the highest byte written are held to the plan. Failures are
listed, none hides another; exit status 1 where there is one. A third of the networks is tiny: for these the bound is
compared with all orders and cuts (`tests/cascading`).
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter

from tvm_cascade.testing.random_dags import check_dag


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=7200.0, help="stop after that long")
    parser.add_argument("--most", type=int, help="ways to plan each network; all by default")
    options = parser.parse_args()
    started = time.perf_counter()
    failed: list[tuple[int, str]] = []
    plans: Counter[str] = Counter()
    networks, operators, saved = 0, 0, []
    for seed in range(options.first, options.first + options.count):
        if time.perf_counter() - started > options.seconds:
            break
        networks += 1
        try:
            found = check_dag(seed, most=options.most)
        except Exception as error:
            failed.append((seed, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"))
            print(f"seed {seed}: {failed[-1][1]}", flush=True)
            traceback.print_exc(limit=-2)
            continue
        operators += found.operators
        plans.update("recomputing" if "work" in name else name for name, _, _ in found.plans)
        saved.append(found.baseline / max(found.plans[0][1], 1))
        if networks % 25 == 0:
            print(f"{networks} networks, {sum(plans.values())} plans, {len(failed)} failed", flush=True)
    print(f"{networks} networks of {operators} operators, {sum(plans.values())} different plans run:")
    print(", ".join(f"{name} {n}" for name, n in plans.most_common()))
    if saved:
        print(f"layer by layer takes {sorted(saved)[len(saved) // 2]:.2f}x the smallest arena (median)")
    print(f"{len(failed)} failed{': seeds ' + ', '.join(str(s) for s, _ in failed) if failed else ''}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
