"""Writes a page of what was measured on a GPU: `python benchmarks/gpu/table.py RESULTS.json [EARLIER.json] > PAGE.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NAMES = {"inception_v3": "Inception V3", "squeezenet": "SqueezeNet", "nasnet": "NASNet-A", "randwire": "RandWire"}
TORCH_PRECISION = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "tf32": "tf32"}
FORMS = ("eager", "graph, contiguous", "graph, channels_last", "compile, reduce-overhead", "compile, max-autotune")


def rows_of(results: Row, *steps: str) -> Iterator[Row]:
    """The rows of all steps whose names begin so."""
    for name, step in results["steps"].items():
        if name.startswith(steps):
            yield from step.get("rows", [])


def main(path: Path, earlier: Path | None) -> None:
    """Print the page."""
    results = json.loads(path.read_text())
    gpu, driver, *_ = (x.strip() for x in results["gpu"].split(","))
    print(f"""# On a GPU

{gpu}, driver {driver}, PyTorch {results["torch"]}, {results["at"][:10]}, batch 1. `benchmarks/gpu/pack.py` made the programs
without a GPU, `run.sh` measured them there; raw figures: [{path.name}]({path.name}). Everything is one CUDA graph,
PyTorch's too. Sequential, greedy and IOS ran in turn in one process, 25 rounds of 20 runs: medians, and the quartiles of
the rounds' ratios. {results.get("note", "")}
""")
    schedules(results)
    against_torch(results)
    batches(results)
    checks(results)
    if earlier is not None:
        before(results, json.loads(earlier.read_text()), earlier)


def schedules(results: Row) -> None:
    """Times of the schedules."""
    print("## Schedules\n\n| network | precision | sequential ms | greedy ms | IOS ms | sequential / IOS, quartiles |")
    print("|---|---|---|---|---|---|")
    for (network, precision), own in _by_network(results).items():
        low, high = own["ios"]["speedup_quartiles"]
        times = " | ".join(f"{own[s]['median_ms']:.3f}" for s in ("sequential", "greedy", "ios"))
        print(f"| {NAMES[network]} | {precision} | {times} | {own['ios']['speedup']:.2f} ({low:.2f} to {high:.2f}) |")


def against_torch(results: Row) -> None:
    """Times beside PyTorch's."""
    print("""
## Beside PyTorch

The same networks with the same weights, in milliseconds: operator by operator, as a CUDA graph with images in either
layout (cuDNN's fastest algorithms), and compiled where that was measured. The last column is PyTorch's best over ours.
""")
    print(f"| network | precision | our best | {' | '.join(FORMS)} | best / ours |\n|{'---|' * (len(FORMS) + 4)}")
    torch: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows_of(results, "eager", "overhead", "compile"):
        torch.setdefault((row["network"], row["precision"]), {})[row["torch"]] = row["median_ms"]
    for (network, precision), own in _by_network(results).items():
        found = torch.get((network, TORCH_PRECISION[precision]))
        if found:
            ours = min(r["median_ms"] for r in own.values())
            cells = " | ".join(f"{found[f]:.3f}" if f in found else "" for f in FORMS)
            print(f"| {NAMES[network]} | {precision} | {ours:.3f} | {cells} | {min(found.values()) / ours:.2f} |")


def batches(results: Row) -> None:
    """Times of networks for several images, where these were measured."""
    ours: dict[tuple[str, str], dict[str, Row]] = {}
    torch: dict[tuple[str, str], float] = {}
    for row in rows_of(results, "batch-"):
        if "speedup" in row:
            ours.setdefault((row["network"], row["precision"]), {})[row["schedule"]] = row
    for row in rows_of(results, "batch_torch-", "overhead", "compile"):
        key = row["network"], row["precision"]
        torch[key] = min(row["median_ms"], torch.get(key, row["median_ms"]))
    if not ours:
        return
    print("""
## Larger batches

Milliseconds of a batch, and images a second of the fastest of ours; the last column is PyTorch's best (operator by operator, as
a graph in either layout, compiled where that was measured) over ours.
""")
    print("| network | batch | precision | sequential | greedy | IOS | images / s | PyTorch's best | best / ours |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (network, precision), own in ours.items():
        name, batch = network.rsplit("_b", 1)
        best = min(r["median_ms"] for r in own.values())
        times = " | ".join(f"{own[s]['median_ms']:.3f}" for s in ("sequential", "greedy", "ios"))
        other = torch.get((network, TORCH_PRECISION[precision]))
        told = f"{other:.3f} | {other / best:.2f}" if other else " | "
        print(f"| {NAMES[name]} | {batch} | {precision} | {times} | {1e3 * int(batch) / best:.0f} | {told} |")


def checks(results: Row) -> None:
    """What was compared."""
    errors: dict[str, float] = {}
    for row in rows_of(results, "correctness", "batch-"):
        if "relative_error" not in row:
            continue
        errors[row["precision"]] = max(errors.get(row["precision"], 0.0), row["relative_error"])
    told = ", ".join(f"{p} {e:.1e}" for p, e in errors.items())
    print("\n## Right\n")
    print(
        f"- Largest difference from the expected outputs, as a share of the largest of them, of all programs: {told}."
    )
    for tool in ("memcheck", "racecheck"):
        for row in rows_of(results, tool):
            print(f"- compute-sanitizer {tool} on the small network: {row['report'][-1].strip('= ').lower()}.")
    many = list(rows_of(results, "thousand"))
    if many:
        different, runs = (sum(r[k] for r in many) for k in ("different", "runs"))
        print(f"- {many[0]['runs']:,} runs of each IOS schedule: {different} of {runs:,} differ in a bit.")


def before(results: Row, earlier: Row, path: Path) -> None:
    """What the kernels brought: the sequential schedule with dlight's kernels."""
    print(f"""
## The kernels

The sequential schedule with dlight's default kernels and images as the networks have them
([{path.name}]({path.name}), {earlier["at"][:10]}, the same kind of machine) and with ours (rfc/0021), in milliseconds.
""")
    print("| network | precision | dlight's | ours | ratio |\n|---|---|---|---|---|")
    old = _by_network(earlier)
    for key, own in _by_network(results).items():
        was, now = old[key]["sequential"]["median_ms"], own["sequential"]["median_ms"]
        print(f"| {NAMES[key[0]]} | {key[1]} | {was:.2f} | {now:.3f} | {was / now:.1f} |")


def _by_network(results: Row) -> dict[tuple[str, str], dict[str, Row]]:
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows_of(results, "turns"):
        found.setdefault((row["network"], row["precision"]), {})[row["schedule"]] = row
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
