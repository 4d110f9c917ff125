"""`make bench`: every benchmark that needs no device, one after the other; results go to `benchmarks/results/`.

    python benchmarks/run_all.py [--models FOLDER]

FOLDER holds public models (default: $TVM_CASCADE_TEST_DATA/models); what needs them is left out without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    data = os.environ.get("TVM_CASCADE_TEST_DATA")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path(data) / "models" if data else None)
    models = parser.parse_args().models
    commands = [
        ["random_dags.py"],
        ["differential.py", "--graphs", "300"],
        ["anchors.py", "--only", "msf", "stm32"],
        ["serenity.py"],
        ["order.py"],
        *(["metaflow.py", "--figure", f] for f in ("table2", "6", "7", "9", "10")),
    ]
    commands += [["growth.py"], ["search_growth.py"], ["conformance.py"], ["single_operators.py"], ["ways_in.py"]]
    commands += [["operator_costs.py"], *(["ios.py", "--figure", f] for f in ("6", "cpu"))]
    if models is not None:
        commands = [
            ["cortex_m.py", "--models", str(models)],
            ["step_model.py", "--models", str(models)],
            ["arena.py", "--minimalloc", str(models.parent / "cases" / "minimalloc")],
            ["arena.py", "--models", str(models)],
            ["memories.py", "--data", str(models.parent)],
            ["time_series.py"],
            ["serenity_traffic.py", "--data", str(models.parent)],
            ["speed.py", "--models", str(models), "--cases", str(models.parent / "cases" / "minimalloc")],
            *commands,
        ]
    failed = []
    for command in commands:
        print(f"== {' '.join(command)}", flush=True)
        if subprocess.run([sys.executable, str(HERE / command[0]), *command[1:]], check=False).returncode:
            failed.append(command[0])
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
