"""Peak memory against published figures: `benchmarks/results/peaks.md`, from figures kept in `peaks.json`.

    python benchmarks/arena.py --models DIR [--only person_detect ...] [--plan-only] [--resume]
    python benchmarks/arena.py --minimalloc DIR        the arena search on minimalloc's public cases

Every byte is counted: inputs, outputs, intermediates, rings, counters, sums, scratch. Networks of files are compiled and
run on an emulated board that holds them, each within the usual time and whatever the time. Planned, allocated and measured
(the highest byte written, plus one) stand side by side, and whether the outputs are those of LiteRT's reference kernels.
MobileNetV2-w0.35 at 144x144 is also built as a Relax module, run in this process at several points of its frontier, and
compared with the module run by TVM. Figures without input and output leave these out of the graph that is planned.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.cascading import Plan, PlanOptions, bound_of, bounds, cascade, frontier
from tvm_cascade.cascading.channel_search import best_groups, plan_in_groups
from tvm_cascade.cascading.channels import in_groups
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import CascadeError
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder, mobilenet_v1, mobilenet_v2, vgg16, without_io
from tvm_cascade.testing.host_check import plan_prepared

RESULTS = Path(__file__).parent / "results"
CAN = PlanOptions()
WAYS: dict[str, dict[str, Any]] = {"min": {}, "no overlap": {"overlap": False}, "streamed": {"stream_input": True}}
MINIMALLOC = {"A": 7.6, "B": 4.6, "C": 0.9, "D": 4.9, "E": 7.0, "F": 10.7}  # seconds, its C++, measured by us
# what is aimed at, way by way, and what others need; bytes
TIMES = (1.2, 100.0)  # `--max-time`: the default, and the smallest arena whatever its steps take
FILES: dict[str, tuple[str, tuple[int | None, int | None, int | None], str]] = {
    "person_detect": ("Vela 30,720", (14_500, 20_500, 12_500), "mps2-an386"),
    "vww_96_int8": ("Vela 49,152", (31_500, 39_000, 13_000), "mps2-an386"),
    "resnet8_int8": ("Vela 35,840", (16_500, None, 14_000), "mps2-an386"),
    "kws_dscnn_int8": ("Vela 15,995", (None, None, None), "stm32vldiscovery"),
    "mobilenetv2_035_160_int8": ("layer by layer 384,000", (83_500, 104_000, 29_000), "mps2-an386"),
    "mobilenetv2_100_224_int8": (
        "Vela 361,984; MCUNetV2 172 kB, input patch alone",
        (190_000, 245_000, 110_000),
        "mps2-an386",
    ),
}
MSF_CNN = ((1.10, 67_905), (1.30, 21_288), (1.38, 15_340), (1.68, 7_887))  # factor of work, bytes


def file_rows(models: Path, name: str, plan_only: bool) -> Iterator[dict[str, Any]]:
    """One network of a file, way by way, within the usual time and without a limit."""
    from tvm_cascade import api

    rival, goals, board = FILES[name]
    path = models / f"{name}.tflite"
    target = "cortex-m3" if board == "stm32vldiscovery" else "cortex-m4"
    for (way, options), goal, most in ((w, g, t) for w, g in zip(WAYS.items(), goals, strict=True) for t in TIMES):
        row: dict[str, Any] = {"model": name, "way": way, "rival": rival, "goal": goal, "max time": most}
        started = time.perf_counter()
        if plan_only:
            planned = api.plan(path, target=target, max_time=most, **options)
            yield row | _figures(planned.plan, planned.bounds, started)
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                compiled = api.compile(
                    path, target=target, board=board, output=Path(folder) / "p", max_time=most, **options
                )
                row |= _figures(compiled.plan, compiled.bounds, started)
                ran = api.run(Path(folder) / "p", check=path)
        except CascadeError as error:  # a row that says so, and on with the others
            yield row | {"board": str(error)[:120], "exact": False}
            continue
        yield row | {
            "allocated": ran.arena_bytes,
            "measured": ran.arena_high_water_bytes,
            "exact": bool(ran.match and ran.equals_host),
            "work exact": ran.executed_macs == compiled.plan.macs == compiled.plan.baseline_macs,
            "board": ran.board,
            "ram": compiled.ram_bytes,
            "flash": compiled.flash_bytes,
            "stack": ran.stack_bytes,
        }


def _figures(plan: Plan, proven: Any, started: float) -> dict[str, Any]:
    once = plan.macs <= plan.baseline_macs  # of work done twice nothing is proven
    return {
        "planned": plan.peak,
        "layerwise": plan.baseline_peak,
        "bound": min(plan.bound, proven.pixels if proven else plan.bound) if once else None,
        "any schedule": bound_of(plan) if once else None,
        "work": round(plan.macs / max(plan.baseline_macs, 1), 4),
        "seconds": round(time.perf_counter() - started, 1),
    }


def graph_rows(name: str, graph: Graph, rival: str, goals: tuple[int | None, ...]) -> Iterator[dict[str, Any]]:
    """A network that is planned only, way by way."""
    for (way, options), goal in zip(WAYS.items(), goals, strict=True):
        started = time.perf_counter()
        chosen = replace(CAN, **options)
        plan = cascade(graph, chosen)
        row = {"model": name, "way": way, "rival": rival, "goal": goal, "board": "planned only"}
        yield row | _figures(plan, bounds(graph, chosen), started)


def two_convolutions() -> Graph:
    """321x212x6 -> 3x2, 10 channels, VALID, dilation (2, 1) -> 1x1, 3 channels, stride (3, 2), SAME."""
    b = Builder()
    x = b.conv(b.input(321, 212, 6), 10, (3, 2), valid=True, dilation=(2, 1))
    return without_io(b.finish(b.conv(x, 3, 1, (3, 2))))


def four_operators() -> Graph:
    """80x75x3 -> conv 3x2 -> depthwise 3x3 and relu -> conv 3x2 -> max pool 3x3."""
    b = Builder()
    x = b.conv(b.input(80, 75, 3), 7, (3, 2), valid=True)
    x = b.relu(b.depthwise(x, 3, valid=True))
    return without_io(b.finish(b.max_pool(b.conv(x, 2, (3, 2)), 3, 1)))


def msf_rows() -> Iterator[dict[str, Any]]:
    """The frontier of MobileNetV2-w0.35 144x144x3 without input and output, at the rival's factors of work."""
    graph = without_io(mobilenet_v2(144, 144, 3, alpha=0.35, plain=True))
    model = "MobileNetV2-w0.35-144, without I/O"
    started = time.perf_counter()
    plain = cascade(graph, replace(CAN, overlap=False))
    yield {"model": model, "way": "no overlap", "rival": "", "goal": 18_000, "board": "planned only"} | _figures(
        plain, bounds(graph, replace(CAN, overlap=False)), started
    )
    started = time.perf_counter()
    points: list[Plan] = []
    for overlap in (False, True):
        limits = replace(CAN, overlap=overlap, max_macs=1.68)
        points += frontier(graph, limits)
        for most in (replace(limits, max_macs=factor) for factor, _ in MSF_CNN):
            chosen = best_groups(graph, most)
            points += [plan_in_groups(graph, in_groups(graph, chosen), most)] if chosen else []
    for factor, rival in MSF_CNN:
        plan = min((p for p in points if p.macs <= factor * p.baseline_macs), key=lambda p: (p.peak, p.macs))
        row = {"model": model, "way": f"at {factor:.2f}x work", "rival": f"msf-CNN {rival:,}", "goal": rival}
        yield row | _figures(plan, None, started) | {"board": "planned only"}


def built_rows() -> Iterator[dict[str, Any]]:
    """The same network as a Relax module with everything counted: run in this process, compared with TVM."""
    import tvm
    from tvm import relax

    from tvm_cascade import pipeline
    from tvm_cascade.passes import LowerQuantized
    from tvm_cascade.testing.host_check import run_plan
    from tvm_cascade.testing.zoo.mobilenet import mobilenet_v2 as built

    mod = built(0.35, 144)
    feed = np.random.default_rng(0).integers(-128, 128, (1, 144, 144, 3)).astype(np.int8)
    plain = relax.VirtualMachine(tvm.compile(LowerQuantized()(mod), target=tvm.target.Target("llvm")), tvm.cpu())
    expected = plain["main"](tvm.runtime.tensor(feed)).numpy()
    prepared = pipeline.prepare(mod, KernelTarget())
    ways = {
        **WAYS,
        "1.10x work": {"max_macs": 1.10, "overlap": False},
        "1.38x work": {"max_macs": 1.38, "overlap": False},
    }
    for way, options in ways.items():
        started = time.perf_counter()
        chosen = plan_prepared(mod, prepared, replace(CAN, **options))
        plan = chosen.plan
        row = {"model": "MobileNetV2-w0.35-144, built, I/O counted", "way": way, "rival": "", "goal": None}
        row |= _figures(plan, bounds(prepared.graph, replace(CAN, **options)), started)
        ran = run_plan(chosen.prepared, plan, [feed])
        yield row | {
            "allocated": plan.peak,
            "measured": ran.arena_high_water,
            "exact": bool(np.array_equal(ran.outputs[0], expected)),
            "work exact": ran.executed_macs == plan.macs,
            "board": "host",
        }


def groups(models: Path | None, plan_only: bool) -> dict[str, Callable[[], Iterator[dict[str, Any]]]]:
    """Everything to measure, by the name that `--only` takes."""
    measurements: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {}
    if models is not None:
        measurements |= {
            n: lambda n=n: file_rows(models, n, plan_only) for n in FILES if (models / f"{n}.tflite").is_file()
        }
    measurements["msf"] = msf_rows
    measurements["two"] = lambda: graph_rows(
        "TVM's former case 1, without I/O", two_convolutions(), "4,080", (4_080,) * 3
    )
    measurements["four"] = lambda: graph_rows(
        "TVM's former case 2, without I/O", four_operators(), "15,200", (15_200,) * 3
    )
    v1, vgg = mobilenet_v1(224, 224, 3), vgg16()
    third = "a third of layer by layer (the RFC)"
    measurements["mobilenetv1"] = lambda: graph_rows("MobileNetV1-1.0-224", v1, third, (None, 290_000, None))
    measurements["vgg16"] = lambda: graph_rows("VGG16-224", vgg, third, (None, 670_000, None))
    if not plan_only:
        measurements["built"] = built_rows
    return measurements


def code() -> str:
    """The commit that figures are of, `-dirty` where files were changed; empty outside of a checkout."""
    asked = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(asked, cwd=RESULTS, capture_output=True, text=True, check=False).stdout.strip()


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""

    def cell(row: dict[str, Any], key: str) -> str:
        value = row.get(key)
        if isinstance(value, bool):
            return "yes" if value else "NO"
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    def above(row: dict[str, Any]) -> str:
        least = (row.get("bound"), row.get("any schedule"))
        return " / ".join(f"{(row['planned'] / b - 1) * 100:.1f} %" for b in least if b and row.get("planned"))

    names = ("model", "way", "rival", "goal", "max time", "planned", "allocated", "measured", "bound", "any schedule", "above",
             "layerwise", "work", "exact", "work exact", "board", "ram", "flash", "stack", "seconds", "code")  # fmt: skip
    lines = [
        "# Peak memory against published figures\n",
        "Bytes, everything counted unless it says otherwise. Written by `benchmarks/arena.py`. Way: `min` is the smallest arena",
        "at 1.00x work with the input in it; `no overlap` writes no output into the space of a dying input; `streamed` asks for",
        "the input row by row. Max time: `--max-time`, 1.2 by default; none where bytes alone counted. Measured: the highest",
        "byte of the arena written, plus one. Bound: proven for what is searched at 1.00x, rings by pixels and rows at addresses",
        "of their own; any schedule: proven for every order of pixels at any addresses (rfc/0002); above: by how much the",
        "planned arena exceeds each of them. None where work is done twice.",
        "Beyond 1.00x channels may be made in groups. Ram: arena, data and bss of the linked image; flash: the rest of",
        "it. Seconds: planning (and compiling), on a busy machine. Code: the commit that a row was measured with; rows without",
        "are older than this column.\n",
        f"| {' | '.join(names)} | met |",
        f"| {' | '.join('---' for _ in names)} | --- |",
    ]
    for row in ({**row, "above": above(row)} for row in rows):
        goal = row.get("goal")
        planned = row.get("planned")
        met = "" if goal is None or planned is None else "yes" if planned <= goal else f"NO, {planned - goal:,} above"
        lines.append(f"| {' | '.join(cell(row, n) for n in names)} | {met} |")
    return "\n".join(lines) + "\n"


def minimalloc(folder: Path) -> None:
    """The arena search on minimalloc's public cases."""
    from tvm_cascade.memory.minimalloc_csv import run
    from tvm_cascade.request import AllocateRequest

    print("| case | peak | bound | seconds | minimalloc |\n| --- | --- | --- | --- | --- |")
    for path in sorted(folder.glob("?.1048576.csv")):
        result, name = run(path, AllocateRequest(1_048_576)), path.name[0]
        print(
            f"| {name} | {result['peak_bytes']} | {result['bound_bytes']} | {result['seconds']} | {MINIMALLOC.get(name)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path)
    parser.add_argument("--minimalloc", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--plan-only", action="store_true", help="compile and run nothing")
    parser.add_argument("--resume", action="store_true", help="keep what the JSON file has")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.minimalloc is not None:
        minimalloc(options.minimalloc)
        return
    figures = options.output / "peaks.json"
    done: dict[str, list[dict[str, Any]]] = json.loads(figures.read_text()) if figures.is_file() else {}
    work, commit = groups(options.models, options.plan_only), code()
    for name, rows in work.items():
        if (options.only and name not in options.only) or (options.resume and name in done):
            continue
        done[name] = []
        for row in rows():
            row["code"] = commit
            print(json.dumps(row), flush=True)
            done[name].append(row)
        figures.write_text(json.dumps(done, indent=1) + "\n")
    listed = [row for name in work for row in done.get(name, [])]
    (options.output / "peaks.md").write_text(table(listed))
    print(f"{sum(1 for r in listed if r.get('goal') and r['planned'] > r['goal'])} figures missed")


if __name__ == "__main__":
    main()
