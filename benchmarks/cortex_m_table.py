"""The tables of `cortex_m.py`: totals beside the published figures, what tuning wins, and instructions by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MODELS = ("person_detect", "vww_96_int8", "resnet8_int8", "kws_dscnn_int8", "mobilenetv2_035_160_int8")
BOARDS = {"cortex-m3": "mps2-an385", "cortex-m4": "mps2-an386", "cortex-m55": "mps3-an547"}
PLANS: dict[str, dict[str, object]] = {
    "layer by layer": {"layerwise": True},
    "row rings": {"granularity": "row"},
    "smallest arena": {"row_addresses": True},
}
# Million instructions on M3, M4, M55; July 2026. CMSIS-NN in its best build: gcc -O2 with inline-assembly requantize on
# M3 and M4, clang -O3 on M55. TFLM's reference kernels: -O2. Kernels tuned by hand for each layer, generated from TIR,
# summed over programs of one layer.
CMSIS_NN = {
    "person_detect": (28.84, 21.43, 6.21),
    "vww_96_int8": (30.41, 22.60, 6.26),
    "resnet8_int8": (37.46, 28.50, 4.59),
    "kws_dscnn_int8": (10.04, 7.23, 1.73),
}
TFLM = {
    "person_detect": (None, 97.2, 102.8),
    "vww_96_int8": (None, 101.3, 107.9),
    "resnet8_int8": (None, 112.0, 125.7),
    "kws_dscnn_int8": (None, 41.4, 44.2),
}
BY_HAND = {
    "person_detect": (17.8, 13.0, 2.80),
    "resnet8_int8": (26.0, 17.7, 2.55),
    "kws_dscnn_int8": (7.4, 5.4, 1.20),
}
_BACKENDS = {"c": "C (gcc)", "obj": "LLVM"}
_INTRODUCTION = """# Instructions per inference on Cortex-M

Whole firmware, counted in the emulator: instructions, not cycles. Written by `benchmarks/cortex_m.py`; no cycle model
of a core is used. `--optimise balanced`, the shipped database of counts.

- CMSIS-NN, TFLM and "by hand" are million instructions: CMSIS-NN in its best build, layer by layer; TFLM's reference
  kernels; kernels generated from TIR and tuned by hand for each layer, summed over programs of one layer.
- Code is the image less the kernels' constants (weights, biases, tables), the plan's traces included; flash is the whole
  image. Bytes.
- Smallest arena: `--sram min`, whose steps by pixels may take 1.2 times the time of rows by an estimate (`--max-time`).
- SRAM is arena plus stack; kernels take no scratch beyond what the arena holds.
- Exact: every byte of the output equals LiteRT's reference kernels, through either back end.
"""

Row = dict[str, Any]


def _published(table: dict[str, tuple[float | None, ...]], row: Row) -> float | None:
    known = table.get(row["model"])
    return None if known is None else known[list(BOARDS).index(row["core"])]


def _lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return [*head, *(f"| {' | '.join(str(v) for v in row)} |" for row in rows)]


def totals(rows: Sequence[Row]) -> list[str]:
    """One line a model, core, back end and plan."""
    plain = {(r["model"], r["core"], r["backend"]): r["instructions"] for r in rows if r["plan"] == "layer by layer"}
    lines = []
    for r in rows:
        millions, rival = r["instructions"] / 1e6, _published(CMSIS_NN, r)
        base = plain.get((r["model"], r["core"], r["backend"]))
        others = [_published(t, r) for t in (TFLM, BY_HAND)]
        lines.append(
            (
                *(r["model"], r["core"], _BACKENDS[r["backend"]], r["plan"]),
                *(f"{millions:.3f}", f"{r['instructions'] / r['macs']:.3f}"),
                *(rival or "", f"{millions / rival:.2f}" if rival else "", *(o or "" for o in others)),
                f"{r['instructions'] / base:.3f}" if base else "",
                *(r["flash"] - r["weights"], r["flash"], r["arena"], r["arena"] + r["stack"]),
                "yes" if r["exact"] else "NO",
            )
        )
    columns = ("model", "core", "back end", "plan", "M instructions", "per MAC", "CMSIS-NN", "ratio", "TFLM", "by hand")
    return _lines((*columns, "over layer by layer", "code", "flash", "arena", "SRAM", "exact"), lines)


def tuning(tuned: Sequence[Row], usual: Sequence[Row]) -> list[str]:
    """What the shipped counts win over the variants that rules take without them."""
    by_network = {(r["model"], r["core"], r["backend"]): r for r in tuned if r["plan"] == "row rings"}
    lines = []
    for r in usual:
        other = by_network.get((r["model"], r["core"], r["backend"]))
        if other is None:
            continue
        before, after = r["instructions"] / 1e6, other["instructions"] / 1e6
        codes = [x["flash"] - x["weights"] for x in (r, other)]
        won = f"{100 * (1 - after / before):.1f} %"
        lines.append((r["model"], r["core"], _BACKENDS[r["backend"]], f"{before:.3f}", f"{after:.3f}", won, *codes))
    columns = ("model", "core", "back end", "usual", "tuned", "won", "code, usual", "code, tuned")
    return _lines(columns, lines)


def layers(rows: Sequence[Row]) -> list[str]:
    """Thousand instructions by layer: a table a model and core, a column a back end and plan."""
    lines: list[str] = []
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        if r["layers"]:
            groups.setdefault((r["model"], r["core"]), []).append(r)
    for (model, core), own in groups.items():
        heads = [f"{_BACKENDS[r['backend']]}, {r['plan']}" for r in own]
        made = []
        for i, (name, macs, _) in enumerate(own[0]["layers"]):
            parts = [r["layers"][i][2] for r in own]
            made.append((i, name, macs or "", *(f"{p / 1e3:.1f}" for p in parts)))
        made.append(("", "total", own[0]["macs"], *(f"{r['instructions'] / 1e3:.1f}" for r in own)))
        lines += ["", f"### {model} on {core}", "", *_lines(("", "layer", "MACs", *heads), made)]
    return lines


def table(rows: Sequence[Row]) -> str:
    """All tables as Markdown."""
    tuned, usual = [r for r in rows if r["tuned"]], [r for r in rows if not r["tuned"]]
    parts = [_INTRODUCTION, "## Totals", "", *totals(tuned)]
    parts += ["", "## What tuning wins", "", "Million instructions with row rings.", "", *tuning(tuned, usual)]
    parts += ["", "## By layer", "", "Thousand instructions; the driver's calls belong to the layers called."]
    return "\n".join([*parts, *layers(tuned)]) + "\n"
