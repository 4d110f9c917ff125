"""Random graphs against brute force, more of them than the test suite has time for.

    python benchmarks/order_sweep.py [small] [large]

`small` graphs of up to 10 operators, `large` ones of 11 to 14, with views, joins, in-place and multi-output operators,
scratch and kept tensors; the reference walks over all downsets and measures steps with the validator.
"""

from __future__ import annotations

import sys
import time

from tvm_cascade.ordering import order
from tvm_cascade.testing.brute_force import least_peak_by_sets
from tvm_cascade.testing.random_graphs import mixed_graph


def sweep(count: int, least: int, most: int, first_seed: int) -> None:
    began, wrong, cut = time.perf_counter(), 0, 0
    for seed in range(first_seed, first_seed + count):
        graph = mixed_graph(seed, least + seed % (most - least + 1))
        ordering = order(graph)
        wrong += ordering.peak != least_peak_by_sets(graph) or not ordering.optimal
        cut += ordering.partitions > 1
    print(
        f"{count} graphs of {least} to {most} operators: {wrong} wrong, {cut} cut, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    small, large = (int(a) for a in (*sys.argv[1:], "3000", "300")[:2])
    sweep(small, 2, 10, 100_000)
    sweep(large, 11, 14, 200_000)
