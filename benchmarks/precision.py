"""How much results change where tensors between kernels are narrow: `--precision fp16` and `bf16` beside fp32, run on this CPU.

    python benchmarks/precision.py [MODEL.onnx ...]      # writes results/precision.md

On a CPU the same values are rounded as on a GPU, and products are summed up in float32 in another order. Without files the
networks of cpu_networks.py, whose weights are random. Inputs are drawn from a standard normal distribution.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from cpu_networks import NETWORKS

from tvm_cascade import frontend
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.runtime import Session, compile_stages
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.staging.program.precision import FP32, PRECISIONS, in_precision
from tvm_cascade.staging.program.schedule_stages import LowerOptions, lower_stages

RESULTS = Path(__file__).parent / "results"
INPUTS = 8
NARROW = [name for name, precision in PRECISIONS.items() if precision.narrow]  # TF32 is rounded by tensor cores alone
_HEAD = f"""# Accuracy of narrow tensors between kernels

Written by `benchmarks/precision.py` on a CPU: {INPUTS} inputs each. Error: the largest difference between an output of a
precision and of fp32, relative to the largest output of fp32. Same class: inputs whose largest output is the same one.

| network | precision | largest error | median error | same class | bytes of weights and tensors |
| --- | --- | --- | --- | --- | --- |
"""


def main() -> None:
    """Compare the networks and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    given = parser.parse_args().models
    with tempfile.TemporaryDirectory() as folder:
        made = [] if given else [Path(folder) / f"{name}.onnx" for name in NETWORKS]
        for path in made:
            onnx.save(NETWORKS[path.stem](), path)
        rows = []
        for path in given or made:
            for row in rows_of(path):
                rows.append(row)
                print(row, flush=True)
    (RESULTS / "precision.md").write_text(_HEAD + "\n".join(rows) + "\n")


def rows_of(path: Path) -> Iterator[str]:
    """The lines of one network, one a narrow precision."""
    plain = stage_graph(frontend.load(path))
    sessions, sizes = {}, {}
    for precision in (FP32, *NARROW):
        net = in_precision(plain, precision)
        model = AnalyticCost(find_device("h100"), precision)
        found = schedule(net.graph, model, Options(variant="sequential")).schedule
        sessions[precision] = Session(
            compile_stages(lower_stages(net, unit_graph(net.graph, "fused"), found, LowerOptions()))
        )
        sizes[precision] = sum(o.weight_bytes for o in net.graph.ops) + sum(t.bytes for t in net.graph.tensors)
    random = np.random.default_rng(0)
    shapes = [plain.graph.tensors[t].shape for t in plain.graph.inputs]
    errors: dict[str, list[float]] = {p: [] for p in NARROW}
    same = dict.fromkeys(errors, 0)
    for _ in range(INPUTS):
        data = [random.standard_normal(shape).astype("float32") for shape in shapes]
        results = {p: sessions[p].run(*data)[0].reshape(-1) for p in (FP32, *NARROW)}
        wide = results[FP32]
        for p, found in errors.items():
            found.append(float(np.abs(wide - results[p]).max() / np.abs(wide).max()))
            same[p] += int(wide.argmax() == results[p].argmax())
    for p, found in errors.items():
        told = f"{max(found):.1e} | {np.median(found):.1e} | {same[p]} of {INPUTS}"
        yield f"| {path.stem} | {p} | {told} | {sizes[p] / sizes[FP32]:.2f} of fp32's |"


if __name__ == "__main__":
    main()
