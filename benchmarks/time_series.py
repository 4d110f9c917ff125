"""Networks along time: the default plan beside the fastest, arenas and counted instructions of an inference.

python benchmarks/time_series.py

The networks are those of `tvm_cascade.testing.time_series` (int8, and two of float32), compiled for a Cortex-M4 and run in
the emulator: by default, which may take 1.2 times the instructions of the fastest plan by estimate, and with `--max-time 1.0`.
Writes results/time_series.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tvm_cascade import api
from tvm_cascade.testing import time_series

RESULTS = Path(__file__).parent / "results"
_PLANS: dict[str, dict[str, Any]] = {"default": {}, "--max-time 1.0": {"max_time": 1.0}}
_CASES = [(net, "int8") for net in time_series.NETWORKS] + [
    (net, "float32") for net in (time_series.dilated, time_series.keyword)
]


def row(network: Any, dtype: str) -> str:
    """Return the table's line of a network."""
    cells = list[str]()
    layerwise = api.plan(network(dtype), target="cortex-m4").plan.baseline_peak
    counted = {}
    for name, options in _PLANS.items():
        with tempfile.TemporaryDirectory() as folder:
            made = api.compile(network(dtype), target="cortex-m4", output=Path(folder) / "p", **options)
            counted[name] = (made.plan.peak, api.run(Path(folder) / "p").instructions or 0)
    fastest = counted["--max-time 1.0"][1]
    for peak, instructions in counted.values():
        cells.append(f"{peak:,} | {instructions:,} ({instructions / fastest:.2f})")
    return f"| {network.__name__} {dtype} | {layerwise:,} | {' | '.join(cells)} |"


def main() -> None:
    lines = [row(*case) for case in _CASES]
    heads = " | ".join(f"{name}: bytes | instructions" for name in _PLANS)
    text = f"""# Networks along time

`python benchmarks/time_series.py`. Bytes of the arena, and instructions of an inference on a Cortex-M4, counted in the
emulator; in parentheses as a multiple of those with `--max-time 1.0`. The default may take 1.2 times the fastest plan's by
estimate.

| network | layer by layer | {heads} |
| --- | ---: | {" | ".join("---: | ---:" for _ in _PLANS)} |
""" + "\n".join(lines)
    (RESULTS / "time_series.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
