"""Orders by the program of HMCOS's authors (DAC 2022), for `benchmarks/order.py`.

The program is `op_sched` of the repository wzh99/HMCOS, built by whoever runs the benchmark. It reads an ONNX file and prints
the peak of every round of its search in KiB, rounded down, but no order. It counts what our validator counts: inputs and
outputs of the running operator and what later ones read. Sizes are written as KiB here, so that it prints them exactly.

It ends in a fault where a graph's input is live at the peak. So the file has an input of no bytes and one operator more, which
makes the graph's inputs and has to run first: the same peak. Cells end at operators named `Concat`, its rule. A plain graph does
not say where they are: every rule of `CELL_ENDS` is tried within the limits, until one ends no round in its time. The best peak
counts, also that of a run which did not end.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import tempfile
from pathlib import Path

from tvm_cascade.graph import Graph

SECONDS = 20  # of processor time, a run
MEMORY = 3 << 30  # bytes of address space, a run
CELL_ENDS = (2, 3, None)  # a cell ends at an operator of at least so many inputs, or nowhere


def peak_by_hmcos(program: Path, graph: Graph) -> int | None:
    """The best peak in bytes that the program prints within its limits; None if it prints none."""
    peaks: list[int] = []
    for least in CELL_ENDS:
        ends_cell = [least is not None and len(op.inputs) >= least for op in graph.ops]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            path.write_bytes(_onnx_file(graph, ends_cell))
            printed, out_of_time = _run(program, path)
        peaks += printed
        if out_of_time and not printed:
            break
    return min(peaks, default=None)


def _onnx_file(graph: Graph, ends_cell: list[bool]) -> bytes:
    from onnx import TensorProto, helper  # an extra of the project

    def info(name: str, size: int):
        return helper.make_tensor_value_info(name, TensorProto.INT8, [size * 1024])

    infos = [info(f"t{t.index}", t.bytes) for t in graph.tensors]
    nodes = [helper.make_node("Conv", ["start"], [f"t{t}" for t in graph.inputs])]
    for op in graph.ops:
        kind = "Concat" if ends_cell[op.index] else "Conv"
        nodes.append(helper.make_node(kind, [f"t{t}" for t in op.inputs], [f"t{t}" for t in op.outputs]))
    outputs = [infos[t] for t in graph.outputs]
    inner = [known for t, known in enumerate(infos) if t not in graph.outputs]
    made = helper.make_graph(nodes, "graph", [info("start", 0)], outputs, value_info=inner)
    return helper.make_model(made).SerializeToString()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _run(program: Path, model: Path) -> tuple[list[int], bool]:
    """Peaks in bytes of the rounds that the program finished, and whether its time ran out."""
    asked = [str(program.resolve()), str(model), str(model.parent)]
    ended = subprocess.run(asked, capture_output=True, text=True, preexec_fn=_limit, check=False)
    if ended.returncode == 127:
        raise SystemExit(f"{program} does not start: {ended.stderr.strip()}")
    peaks = re.findall(r"\] (?:HMCOS )?Peak: (\d+)", ended.stderr)
    return [int(peak) for peak in peaks], ended.returncode in (-signal.SIGKILL, -signal.SIGXCPU)
