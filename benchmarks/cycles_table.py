"""Cycles that our model of the cores predicts beside those that were published: results/cycles.md.

python benchmarks/cycles_table.py        of results/cycles_mlperf.json (`mlperf_tiny.py`), cycles_cmsis.json
                                         (`cmsis_cifar10.py`) and cycles_own.json (`cycles.py`)
"""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from cycles import RESULTS

# MLPerf Tiny v1.1, closed division, mlcommons/tiny_results_v1.1: (submitter, board, MHz), median inferences a second
FASTEST = {
    "cortex-m0plus": ("Bosch HALE", "NUCLEO_G0B1RE", 64, {"ic": 0.599, "kws": 1.472, "vww": 0.535}),
    "cortex-m4": ("Plumerai", "NUCLEO-L4R5ZI", 120, {"ic": 5.961, "kws": 20.929, "vww": 10.126}),
    "cortex-m7": ("Plumerai", "DISCO-F746NG", 216, {"ic": 15.904, "kws": 56.341, "vww": 29.343}),
    "cortex-m33": ("Plumerai", "NUCLEO-U575ZI-Q", 160, {"ic": 9.589, "kws": 33.286, "vww": 16.809}),
}
_HEAD = """# Cycles: predicted and published

Written by `benchmarks/cycles_table.py`. The model counts how often every block of code runs (QEMU) and takes what a block
costs from the manual of the core (M0+, M3, M4) or from llvm-mca 19 (M7, M33, M55), with memory that answers at once: neither
flash wait states nor caches. Nothing in it was fitted to any of the figures below.

## The same code, on boards and by the model

C that microTVM generated for the networks of MLPerf Tiny (OctoML's submission to v1.0, `mlcommons/tiny_results_v1.0`,
`closed/OctoML`), with kernels of its own (native) or those of CMSIS-NN, compiled by GCC 12 -O2 as the submission was by the
compiler of its Zephyr SDK. Published: the clock by the median of the measured inferences a second. Millions of cycles.

| code | network | board | core | predicted | published | error |
| --- | --- | --- | --- | --- | --- | --- |
"""


def same_code(rows: list[dict[str, Any]]) -> str:
    """The table of the same code, and the median error."""
    lines, errors = [], []
    for row in rows:
        errors.append(row["predicted"] / row["published"] - 1)
        cells = (row["code"].removeprefix("microtvm_"), row["network"], row["board"], row["core"])
        lines.append(f"| {' | '.join(cells)} | {row['predicted']:.2f} | {row['published']:.2f} | {errors[-1]:+.1%} |")
    middle, worst = median(map(abs, errors)), max(map(abs, errors))
    return (
        _HEAD
        + "\n".join(lines)
        + (
            f"\n\nMedian of the absolute errors of these {len(rows)}: {middle:.1%}; largest: {worst:.1%}.\n"
            "The boards read code and weights from flash, behind small caches: most errors are on the low side.\n"
        )
    )


def same_kernels(rows: list[dict[str, Any]]) -> str:
    """The table of CMSIS-NN's network on a Cortex-M7."""
    lines, errors = [], []
    for row in rows:
        errors.append(row["predicted"] / row["published"] - 1)
        lines.append(f"| {row['layer']} | {row['predicted']:.3f} | {row['published']:.3f} | {errors[-1]:+.1%} |")
    return (
        "\n## The same kernels on a Cortex-M7\n\n"
        "The CIFAR-10 network of CMSIS-NN's paper (arXiv:1801.06601, Table 1: NUCLEO-F746ZG at 216 MHz), its kernels of January\n"
        "2018 compiled by GCC 12 -O2 (the paper's compiler is not known to us). `benchmarks/cmsis_cifar10.py`; convolutions\n"
        "with the ReLU behind them. The milliseconds were quoted without the paper at hand, so compare them with it; it has\n"
        "them to 0.1 ms, which is little for the last layers. Millions of cycles.\n\n"
        "| layer | predicted | published | error |\n| --- | --- | --- | --- |\n" + "\n".join(lines) + "\n\n"
        f"Median of the absolute errors of the {len(rows) - 1} layers: {median(map(abs, errors[:-1])):.1%}; the network: "
        f"{errors[-1]:+.1%}.\n\n"
        "No published figures of code that we can time were found for M0+, M3 and M55: their cycles are not validated. Looked\n"
        "at: MLPerf Tiny v1.1 and v1.2, which have images of Bosch's for M0+ and M7 (`closed/bosch/code`, without sources and\n"
        "symbols) and, in v1.2, ELF files of Renesas's for a Cortex-M85 (`closed/Renesas/code/EK-RA8D1/elf`), neither of\n"
        "which were timed; no submission there has an M3 or an M55. TFLite Micro with CMSIS-NN, counted by a user on boards\n"
        "(embedded-agent-bridge, February 2026): person_detect 11.53 million cycles on a FRDM-MCXN947 (M33, 150 MHz) and\n"
        "132.4 on a NUCLEO-N657X0-Q (M55, 600 MHz), of which the latter, eleven times those of the smaller core, says nothing\n"
        "of the core alone. TFLite Micro on an RP2350 (M33, 150 MHz; README of `gnotu/pico2-benchmark`): kws 9.06, ic 256 and\n"
        "vww 206 million cycles, by a version that it does not name; the last two are six to seven times what CMSIS-NN\n"
        "takes above, so not those kernels. For M0+ a talk of Raspberry Pi's of 2021, as the press quotes it, has 2,200 ms for\n"
        "detecting a person on an RP2040, without clock, network or kernels; the README of `raspberrypi/pico-tflmicro` has no\n"
        "times.\n"
    )


def own_kernels(rows: list[dict[str, Any]]) -> str:
    """The table of our kernels: what `plan` says, and what the blocks of the image take."""
    lines, errors = [], []
    for row in rows:
        errors.append(row["estimated"] / row["cycles"] - 1)
        cells = f"{row['estimated'] / 1e6:.2f} | {row['cycles'] / 1e6:.2f} | {errors[-1]:+.1%}"
        per, other = row["cycles"] / row["instructions"], "-"
        if row["core"] in FASTEST:
            who, board, clock, rates = FASTEST[row["core"]]
            other = f"{clock / rates[row['network']]:.2f} ({who}, {board})"
        lines.append(f"| {row['network']} | {row['core']} | {cells} | {per:.2f} | {other} |")
    return (
        "\n## Our kernels: what `plan` says, and the blocks of the linked image\n\n"
        "Smallest arenas (`compile` without further options). Estimated: `cycles` of `plan`, from static counts, rates of\n"
        "kernels and their cycles per instruction. By blocks: the linked image in QEMU, timed as above. The last column is the\n"
        "fastest published inference on that core that we found (MLPerf Tiny v1.1, closed, `mlcommons/tiny_results_v1.1`): of\n"
        "other kernels, with all of the board's RAM, so no validation, but an orientation. Millions of cycles.\n\n"
        "| network | core | estimated | by blocks | difference | cycles per instruction | fastest published, other kernels |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(lines) + "\n\n"
        f"Median of the absolute differences: {median(map(abs, errors)):.1%}; largest: {max(map(abs, errors)):.1%}.\n"
        f"Code of {', '.join(dict.fromkeys(row['commit'] for row in rows))}.\n"
    )


def main() -> None:
    names = ("mlperf", "cmsis", "own")
    read = [json.loads((RESULTS / f"cycles_{name}.json").read_text(encoding="utf-8")) for name in names]
    text = same_code(read[0]) + same_kernels(read[1]) + own_kernels(read[2])
    (RESULTS / "cycles.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
