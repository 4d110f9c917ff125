"""How well plans guess their time: estimated against counted instructions of the smallest arenas, as factors of rows.

    python benchmarks/step_model.py --models DIR

Counts are those of `benchmarks/results/cortex_m.json` (default back end of each core); plans are made anew.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from cortex_m import RESULTS, prepared_for, read
from cortex_m_table import BOARDS, MODELS, PLANS

from tvm_cascade.cascading import plan_graph
from tvm_cascade.cascading.timing import instruction_factor
from tvm_cascade.cores import get_core
from tvm_cascade.testing.plan_options import rows_alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("TVM_CASCADE_TEST_DATA", ".")) / "models")
    options = parser.parse_args()
    counts = read(RESULTS / "cortex_m.json")
    print(f"{'model':>26} {'core':>11} {'arena':>7} {'estimated':>9} {'counted':>8}")
    for name in MODELS:
        for core in BOARDS:
            target, model = get_core(core), get_core(core).steps
            smallest = counts.get((name, core, target.backend, "smallest arena", True))
            rows = counts.get((name, core, target.backend, "row rings", True))
            if model is None or smallest is None or rows is None:
                continue
            graph = prepared_for(options.models / f"{name}.tflite", core, target.backend, True).graph
            can: dict[str, Any] = {"pixels": True, "accumulators": True, "stripes": True, **PLANS["smallest arena"]}
            plan = plan_graph(graph, rows_alone(alignment=target.align, steps=model, **can))
            estimated, counted = instruction_factor(plan, model), smallest.instructions / rows.instructions
            note = "" if plan.peak == smallest.arena else f"  (counted with an arena of {smallest.arena})"
            print(f"{name:>26} {core:>11} {plan.peak:>7} {estimated:>9.3f} {counted:>8.3f}{note}", flush=True)


if __name__ == "__main__":
    main()
