"""Published plans of other planners on their own networks: `benchmarks/results/anchors.md`.

    python benchmarks/anchors.py [--files DIR] [--only msf tinyengine stm32]

Three sources. msf-CNN (Huang and Baccelli, NeurIPS 2025) publishes bytes and work of its plans for three networks, in the
file `msf_CNN_eval_models/result.json` of its repository: rings of one row, input and output left out, bytes by its own
model. TinyEngine (Lin et al., 2020 and 2021) publishes, in its README, peak memory measured on an STM32H743 beside that
of TensorFlow Lite Micro and X-CUBE-AI, and has files of networks in its folder `assets`: DIR holds copies of these. ST's
model zoo publishes the activation RAM of X-CUBE-AI 10, input and output in it, in `image_classification/mobilenetv1`.
Networks whose files are not to be had are built here from their published layers, residual adds included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_cascade.cascading import Plan, PlanOptions, frontier, plan_graph
from tvm_cascade.cascading.channel_search import best_groups, plan_in_groups
from tvm_cascade.cascading.channels import in_groups
from tvm_cascade.graph import Graph
from tvm_cascade.testing.graphs import Builder, mobilenet_v1, mobilenet_v2, without_io

RESULTS = Path(__file__).parent / "results"
CAN = PlanOptions()
Block = tuple[int, int, int, int]  # output channels, expansion, kernel, stride
VWW: tuple[Block, ...] = (
    (16, 6, 3, 2), (16, 3, 3, 1), (16, 3, 3, 1), (24, 3, 7, 2), (24, 6, 3, 1), (24, 5, 5, 1), (40, 6, 7, 2), (40, 6, 7, 1),
    (48, 6, 3, 1), (48, 4, 3, 1), (96, 5, 5, 2), (96, 5, 3, 1), (96, 4, 3, 1), (160, 3, 7, 1),
)  # fmt: skip
IMAGENET: tuple[Block, ...] = (
    (16, 3, 7, 2), (16, 5, 3, 1), (16, 5, 7, 1), (16, 4, 5, 1), (24, 5, 5, 2), (24, 5, 5, 1), (24, 5, 5, 1), (40, 5, 3, 2),
    (40, 6, 7, 1), (40, 4, 5, 1), (48, 5, 5, 1), (48, 5, 7, 1), (48, 5, 3, 1), (96, 6, 3, 2), (96, 5, 7, 1), (96, 4, 3, 1),
    (160, 5, 7, 1),
)  # fmt: skip
# factor of work and bytes of every plan that msf-CNN publishes
MSF: dict[str, tuple[tuple[float, int], ...]] = {
    "MobileNetV2-w0.35, 144x144": (
        (1.0, 181_440), (1.0188, 83_065), (1.0974, 67_905), (1.2295, 63_741), (1.2534, 25_674), (1.2976, 21_288),
        (1.382, 15_340), (1.5632, 13_926), (1.6795, 7_887),
    ),
    "MCUNet-VWW-5fps, 80x80": (
        (1.0, 89_600), (1.0226, 38_576), (1.0385, 32_792), (1.1131, 26_128), (1.2956, 17_760), (1.3453, 13_376),
        (1.9567, 12_000),
    ),
    "MCUNet-320kB-ImageNet, 176x176": (
        (1.0, 247_808), (1.0412, 190_096), (1.1944, 186_736), (1.2509, 186_032), (1.3688, 156_672), (1.4549, 94_184),
        (2.0195, 62_880), (2.6949, 42_643),
    ),
}  # fmt: skip
# kB as published: TensorFlow Lite Micro, X-CUBE-AI 7.3, TinyEngine
TINYENGINE: dict[str, tuple[str, tuple[int, int, int] | None]] = {
    "vww": ("mcunet-vww1", (220, 113, 92)),
    "detection": ("person-det", None),
}
STM32: tuple[tuple[float, int, int, float], ...] = (  # alpha, side, channels, KiB
    (0.25, 96, 1, 52.8), (0.25, 96, 3, 66.96), (0.25, 224, 3, 272.96), (0.5, 224, 3, 431.07), (1.0, 224, 3, 1331.13),
)  # fmt: skip


def mcunet(side: int, blocks: Sequence[Block], classes: int) -> Graph:
    """A network of MCUNet's search space: a stem, inverted residuals of several kernel sizes, a pool and a dense layer."""
    b = Builder()
    x = b.conv(b.depthwise(b.conv(b.input(side, side, 3), 16, 3, 2), 3), 8)
    for wide, grow, kernel, stride in blocks:
        before = x
        x = b.conv(b.depthwise(b.conv(x, b.tensors[x].shape[3] * grow), kernel, stride), wide)
        if b.tensors[x].shape == b.tensors[before].shape:
            x = b.add(before, x)
    return b.finish(b.dense(b.flatten(b.global_pool(x)), classes))


def networks() -> dict[str, Graph]:
    """msf-CNN's three networks, with input and output."""
    return {
        "MobileNetV2-w0.35, 144x144": mobilenet_v2(144, 144, 3, alpha=0.35, plain=True),
        "MCUNet-VWW-5fps, 80x80": mcunet(80, VWW, 2),
        "MCUNet-320kB-ImageNet, 176x176": mcunet(176, IMAGENET, 1000),
    }


def points(graph: Graph, factors: Sequence[float]) -> list[Plan]:
    """Plans within every factor of work, channels in groups among them."""
    limits = replace(CAN, max_macs=max(factors))
    found = list(frontier(graph, limits))
    for most in (replace(limits, max_macs=factor) for factor in factors if factor > 1.0):
        chosen = best_groups(graph, most)
        found += [plan_in_groups(graph, in_groups(graph, chosen), most)] if chosen else []
    return found


def msf_rows() -> Iterator[dict[str, Any]]:
    """At each published point: the fewest bytes of no more work, and the least work of no more bytes."""
    for name, graph in networks().items():
        started, factors = time.process_time(), [factor for factor, _ in MSF[name]]
        own, whole = points(without_io(graph), factors), plan_graph(graph, CAN)
        streamed = plan_graph(graph, replace(CAN, stream_input=True))
        seconds = round(time.process_time() - started, 1)
        for factor, rival in MSF[name]:
            least = min((p for p in own if p.macs <= factor * p.baseline_macs), key=lambda p: (p.peak, p.macs))
            within = min((p for p in own if p.peak <= rival), key=lambda p: (p.macs, p.peak), default=None)
            yield {
                "network": name,
                "work": factor,
                "msf-CNN": rival,
                "bytes at that work": least.peak,
                "work at those bytes": None if within is None else round(within.macs / within.baseline_macs, 4),
                "with input and output, 1.00x": whole.peak,
                "streamed input, 1.00x": streamed.peak,
                "seconds": seconds,
            }


def tinyengine_rows(files: Path) -> Iterator[dict[str, Any]]:
    """Networks of TinyEngine's folder `assets`: planned, compiled and run on an emulated board, every byte counted."""
    from tvm_cascade import api

    for name, (network, published) in TINYENGINE.items():
        path = files / f"{name}.tflite"
        if not path.is_file():
            continue
        for way, options in (("stored input", {}), ("streamed input", {"stream_input": True})):
            row: dict[str, Any] = {"network": network, "way": way}
            row |= dict(zip(("TFLM kB", "X-CUBE-AI kB", "TinyEngine kB"), published or (None,) * 3, strict=True))
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "p"
                made = api.compile(
                    path, target="cortex-m7", board="mps2-an500", output=place, stored_io=True, **options
                )
                ran = api.run(place, check=path)
            yield row | {
                "arena": made.plan.peak,
                "measured": ran.arena_high_water_bytes,
                "layer by layer": made.plan.baseline_peak,
                "work": made.plan.macs / made.plan.baseline_macs,
                "exact": bool(ran.match and ran.equals_host),
                "flash": made.flash_bytes,
            }


def stm32_rows() -> Iterator[dict[str, Any]]:
    """MobileNetV1 as ST's model zoo has it; five classes, and an int8 output, where ST's is float."""
    for alpha, side, channels, kib in STM32:
        graph = mobilenet_v1(side, side, channels, alpha=alpha, classes=5)
        plan, streamed = plan_graph(graph, CAN), plan_graph(graph, replace(CAN, stream_input=True))
        yield {
            "network": f"MobileNetV1 {alpha}, {side}x{side}x{channels}",
            "X-CUBE-AI KiB": kib,
            "arena KiB": round(plan.peak / 1024, 2),
            "streamed KiB": round(streamed.peak / 1024, 2),
            "bytes of the input": graph.tensors[graph.inputs[0]].bytes,
        }


HEADINGS = {
    "msf": "msf-CNN: bytes without input and output, at no more work; planned",
    "tinyengine": "TinyEngine's files: every byte counted, run on an emulated Cortex-M7",
    "stm32": "ST's model zoo: activation RAM with input and output; planned",
}


def page(done: dict[str, list[dict[str, Any]]]) -> str:
    """The results as Markdown."""

    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "NO"
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    lines = [
        "# Published plans of other planners\n",
        "Written by `benchmarks/anchors.py`, whose first lines say where the other figures come from. Work: multiply-accumulates",
        "against those of every layer once. Where a network's file is not to be had, its published layers are planned, with",
        "residual adds, which msf-CNN's own model of the same networks leaves out. kB are 1,000 bytes, KiB are 1,024.",
        "TinyEngine's `vww.tflite` is taken for its `mcunet-vww1`, by its input of 80x80x3 and its 11.0 M of work;",
        "kB are peak memory as its authors measured it on an STM32H743, ours the arena, without the stack.",
    ]
    for name, heading in HEADINGS.items():
        rows = done.get(name, [])
        if rows:
            lines += [f"\n## {heading}\n", f"| {' | '.join(rows[0])} |", f"| {' | '.join('---' for _ in rows[0])} |"]
            lines += [f"| {' | '.join(cell(v) for v in row.values())} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=Path, help="folder with copies of TinyEngine's files")
    parser.add_argument("--only", nargs="*", choices=list(HEADINGS))
    options = parser.parse_args()
    figures = RESULTS / "anchors.json"
    done: dict[str, list[dict[str, Any]]] = json.loads(figures.read_text()) if figures.is_file() else {}
    work = {"msf": msf_rows, "stm32": stm32_rows}
    if options.files is not None:
        work["tinyengine"] = lambda: tinyengine_rows(options.files)
    for name, rows in work.items():
        if not options.only or name in options.only:
            done[name] = []
            for row in rows():
                print(json.dumps(row), flush=True)
                done[name].append(row)
            figures.write_text(json.dumps(done, indent=1) + "\n")
    (RESULTS / "anchors.md").write_text(page(done))


if __name__ == "__main__":
    main()
