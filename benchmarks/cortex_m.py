"""Instructions of whole firmware in the emulator: `benchmarks/results/cortex_m.md`, from counts kept in `cortex_m.json`.

    python benchmarks/cortex_m.py --models DIR [--cores cortex-m4 ...] [--only person_detect ...] [--resume]
    python benchmarks/cortex_m.py --models DIR --again best [--plans "row rings"] [--cores cortex-m4 ...]

Every figure is one inference of the linked image, counted by the board's cycle counter under `-icount`: instructions,
not cycles. Outputs are compared with LiteRT's reference kernels, byte by byte, through both back ends. Instructions by
layer come from a second image that reads the counter between steps. With `--resume` counts in the JSON file are kept; with
`--again` those that it names are made anew, and all others kept.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from cortex_m_table import BOARDS, MODELS, PLANS, table
from step_profile import by_operator, profile

from tvm_cascade import pipeline
from tvm_cascade.boards.board import load_board
from tvm_cascade.cascading import Plan, plan_graph
from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.emit.codegen import emit_network
from tvm_cascade.emit.entry import hook_symbol
from tvm_cascade.emit.names import c_identifier
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.frontend import load
from tvm_cascade.runs import emulator
from tvm_cascade.schedules.tuning.tune import Database
from tvm_cascade.testing.builds import build
from tvm_cascade.testing.plan_options import rows_alone

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Count:
    """One network compiled and counted; sizes in bytes."""

    model: str
    core: str
    backend: str
    plan: str
    tuned: bool
    instructions: int
    macs: int
    arena: int
    flash: int
    weights: int
    stack: int
    exact: bool
    layers: tuple[tuple[str, int, int], ...] = ()  # name, multiply-accumulates, instructions


@lru_cache(maxsize=4)
def prepared_for(path: Path, core: str, backend: str, tuned: bool) -> pipeline.Prepared:
    """Graph and kernels, by the shipped counts or without any."""
    return pipeline.prepare(load(str(path)), kernel_target(core, backend), None if tuned else Database())


@lru_cache(maxsize=4)
def oracle(path: Path, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs of a model and what the reference kernels make of them."""
    prepared, rng = prepared_for(path, "cortex-m4", "c", True), np.random.default_rng(seed)
    feed = {}
    for spec in prepared.io.inputs:
        info = np.iinfo(spec.dtype)
        feed[spec.name] = rng.integers(info.min, info.max, spec.shape, dtype=spec.dtype, endpoint=True)
    return feed, reference_outputs(path, feed).outputs


def emit(
    made: pipeline.Prepared, plan: Plan, name: str, core: str, backend: str, hook: bool = False
) -> tuple[EmittedNetwork, int]:
    """The network's files, as `compile` makes them, and the bytes of its kernels' constants."""
    target = get_core(core)
    lowered = pipeline.lower(made, plan, hook=hook_symbol(name) if hook else None)
    llvm = target.llvm if backend == "obj" else None
    traces = sum(i.size for i in lowered.flash_items if i.label.startswith(("trace", "stripes")))
    network = emit_network(lowered, name, made.io, target=llvm, align=max(target.align, 8), prelude=made.prelude)
    network = replace(network, c_flags=target.c_flags)
    return network, len(lowered.flash) - traces


def layer_name(plan: Plan, op: int) -> str:
    node, tensors = plan.graph.ops[op], plan.graph.tensors
    shapes = [tensors[t].shape for t in (node.inputs[0], node.outputs[0])]
    return f"{node.kind} {' -> '.join('x'.join(str(d) for d in s[1:]) for s in shapes)}"


def count(path: Path, core: str, backend: str, plan_name: str, tuned: bool = True, layers: bool = True) -> Count:
    """Compile, run and check one network, then once more between steps."""
    target, board = get_core(core), load_board(BOARDS[core])
    prepared, name = prepared_for(path, core, backend, tuned), c_identifier(path.stem)
    options = rows_alone(
        alignment=target.align,
        pixels=True,
        accumulators=True,
        stripes=True,
        steps=get_core(core).steps,
        **PLANS[plan_name],  # type: ignore[arg-type]
    )
    plan = plan_graph(prepared.graph, options)
    feed, want = oracle(path)
    with tempfile.TemporaryDirectory() as folder:
        network, weights = emit(prepared, plan, name, core, backend)
        built = build(Path(folder) / "p", network, target, board)
        ran = emulator.run(built.elf, board, network.interface, [list(feed.values())])
        steps: list[int] = []
        if layers:
            hooked, _ = emit(prepared, plan, name, core, backend, hook=True)
            write_image(Path(folder) / "h", (hooked,), BuildOptions(target, board))
            steps = profile(Path(folder) / "h", plan, board)
    assert ran.instructions is not None
    parts = by_operator(plan, steps, ran.instructions) if layers else []
    exact = all(np.array_equal(a, b) for a, b in zip(ran.outputs[0], want.values(), strict=True))
    ops = [op for op in plan.graph.ops if not op.view] if layers else []
    return Count(
        path.stem,
        core,
        backend,
        plan_name,
        tuned,
        ran.instructions,
        plan.macs,
        plan.peak,
        built.flash_bytes,
        weights,
        ran.stack_bytes,
        exact and ran.arena_high_water_bytes <= plan.peak,
        tuple((layer_name(plan, op.index), op.macs, parts[op.index]) for op in ops),
    )


def work(models: list[Path], cores: list[str], backends: list[str]) -> list[tuple[Path, str, str, str, bool]]:
    """Everything to count, in order: all plans, and row rings without the shipped counts by the better back end."""
    listed = []
    for path in models:
        for core in cores:
            for backend in backends:
                listed += [(path, core, backend, plan, True) for plan in PLANS]
                if backend == get_core(core).backend:
                    listed.append((path, core, backend, "row rings", False))
    return listed


def chosen(key: tuple[Path, str, str, str, bool], which: str) -> bool:
    """Whether `--again` names a row: of the better back end, of the other, or without the shipped counts."""
    _, core, backend, _, tuned = key
    better = backend == get_core(core).backend
    return {"best": tuned and better, "other": tuned and not better, "usual": not tuned, "all": True}[which]


def read(path: Path) -> dict[tuple[str, str, str, str, bool], Count]:
    """Counts of an earlier run."""
    if not path.is_file():
        return {}
    counts = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        one = Count(**{**row, "layers": tuple((n, m, i) for n, m, i in row["layers"])})
        counts[one.model, one.core, one.backend, one.plan, one.tuned] = one
    return counts


def write(path: Path, counts: Mapping[object, Count]) -> None:
    """The JSON file, a line a count, and the tables beside it."""
    rows = [json.dumps(asdict(c)) for c in counts.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    path.with_suffix(".md").write_text(table([asdict(c) for c in counts.values()]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("TVM_CASCADE_TEST_DATA", ".")) / "models")
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--cores", nargs="*", default=list(BOARDS), choices=list(BOARDS))
    parser.add_argument("--backends", nargs="*", default=["c", "obj"], choices=["c", "obj"])
    parser.add_argument("--resume", action="store_true", help="keep what the JSON file has")
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--again", choices=("best", "other", "usual", "all"), help="rows to make anew; others are kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "cortex_m.json")
    options = parser.parse_args()
    models = [options.models / f"{name}.tflite" for name in options.only]
    for path in models:
        if not path.exists():
            print(f"{path} is not there: left out")
    known = read(options.out) if options.resume or options.again else {}
    listed = work([p for p in models if p.exists()], options.cores, options.backends)
    listed = [key for key in listed if key[3] in options.plans and (not options.again or chosen(key, options.again))]
    counts: dict[tuple[str, str, str, str, bool], Count] = dict(known) if options.again else {}
    for path, core, backend, plan, tuned in listed:
        key = (path.stem, core, backend, plan, tuned)
        earlier = None if options.again else known.get(key)
        counts[key] = earlier or count(path, core, backend, plan, tuned, layers=tuned)
        one = counts[key]
        print(*key, one.instructions, one.flash - one.weights, "exact" if one.exact else "NOT EXACT", flush=True)
        write(options.out, counts)
    write(options.out, counts)


if __name__ == "__main__":
    main()
